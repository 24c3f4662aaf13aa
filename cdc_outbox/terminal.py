"""What a terminal shows."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import IO, Any


def coloured(stream: IO[Any], environ: Mapping[str, str] = os.environ) -> bool:
    """Whether to write colours to a stream: a terminal that knows them, and nobody said no (https://no-color.org)."""
    return stream.isatty() and not environ.get("NO_COLOR") and environ.get("TERM") != "dumb"
