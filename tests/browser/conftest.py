"""One browser for all tests here, and for each a stage of its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.browser.stage import Stage
from tests.servers.browser import WIDE, Browser


@pytest.fixture(scope="session")
def running_browser() -> Iterator[Browser]:
    browser = Browser()
    try:
        yield browser
    finally:
        browser.close()


@pytest.fixture
def browser(running_browser: Browser) -> Browser:
    """The browser, as a wide screen in light."""
    running_browser.look(WIDE)
    return running_browser


@pytest.fixture
def stage() -> Iterator[Stage]:
    stage = Stage()
    try:
        yield stage
    finally:
        stage.leave()
