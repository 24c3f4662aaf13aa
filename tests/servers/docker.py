"""Whether a Docker engine is there for the tests."""

from __future__ import annotations

import os
import shutil
import subprocess
from functools import cache


@cache
def docker_answers() -> bool:
    """Whether an engine answers within three seconds. `CDC_OUTBOX_TEST_DOCKER=no` says no without asking."""
    if os.environ.get("CDC_OUTBOX_TEST_DOCKER") == "no" or shutil.which("docker") is None:
        return False
    try:
        asked = subprocess.run(
            ["docker", "version", "--format", "{{.Server.Version}}"],
            capture_output=True,
            timeout=3,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return asked.returncode == 0
