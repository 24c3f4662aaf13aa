"""What becomes of a test that needs what this machine doesn't have."""

from __future__ import annotations

import os
from typing import NoReturn

import pytest


def lacking(reason: object) -> NoReturn:
    """Skip the test, and say why. In CI it fails: `.ci/run` installs everything and is root."""
    if os.environ.get("CI") == "true":
        pytest.fail(f"{reason}, and CI skips nothing")
    pytest.skip(f"{reason}")
