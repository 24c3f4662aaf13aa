"""Documents that are made from the code, so that they can't say anything else: `python -m tests.documents`.

Each has a module that answers its text. `tests/unit/test_references.py` compares them with what is committed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from tests.documents import commands, errors, manual, settings

DOCUMENTS: Final[dict[str, Callable[[], str]]] = {
    "docs/reference/cli.md": commands.text,
    "docs/reference/settings.md": settings.text,
    "docs/reference/errors.md": errors.text,
    "docs/man/cdc-outbox.1": manual.text,
}
"""Path in the checkout, and what makes its text."""
