"""What every test may use; the servers' fixtures are in integration/conftest.py."""

import os
import shutil
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# How long an example takes says how busy the machine is, and nothing about the code.
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")

# On a disk with online discard each server that was removed makes the files of the next ones slow: a new database took
# 0.2 s instead of 0.02.
MEMORY = Path("/dev/shm")
PLENTY = 8 << 30
if MEMORY.is_dir() and os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free > PLENTY:
    os.environ.setdefault("CDC_OUTBOX_TEST_DATA", str(MEMORY))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that wait most of their time queue up with one worker, so that the others have the cores to themselves."""
    for item in items:
        if item.get_closest_marker("patient"):
            item.add_marker(pytest.mark.xdist_group("patient"))
