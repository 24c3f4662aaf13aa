"""The project's own wheel, editable wheel and sdist, made by its own backend."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.servers.cache import CHECKOUT


def build(kind: str, target: Path, checkout: Path = CHECKOUT) -> Path:
    """Build a `wheel`, an `editable` one or an `sdist` from the checkout; the file."""
    script = f"import hatchling.build, sys; print(hatchling.build.build_{kind}(sys.argv[1]))"
    done = subprocess.run(
        [sys.executable, "-c", script, target], cwd=checkout, capture_output=True, text=True, check=True
    )
    return target / done.stdout.split()[-1]
