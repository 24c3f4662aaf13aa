"""What every test may use; the servers' fixtures are in integration/conftest.py."""

import pytest
from hypothesis import HealthCheck, settings

# How long an example takes says how busy the machine is, and nothing about the code.
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that wait most of their time queue up with one worker, so that the others have the cores to themselves."""
    for item in items:
        if item.get_closest_marker("patient"):
            item.add_marker(pytest.mark.xdist_group("patient"))
