"""The pictures of the status page in `docs/images/`: `python -m tests.browser.screenshots [DIRECTORY]`."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.browser import scenes
from tests.browser.stage import Stage
from tests.servers.browser import PHONE, WIDE, Browser
from tests.servers.cache import CHECKOUT

SCENES = {
    "healthy": scenes.healthy,
    "broker-away": scenes.broker_away,
    "near-limit": scenes.near_limit,
}


def main(target: Path) -> None:
    """Each scene on a wide screen in light and dark, and on a phone in light and dark; then the relay gone."""
    browser, stage = Browser(), Stage()
    try:
        for name, scene in SCENES.items():
            stage.play(scene())
            browser.open(stage.address)
            browser.sees("Topics")
            photograph(browser, target, name)
        stage.leave()
        browser.sees("has not answered since")
        photograph(browser, target, "relay-gone")
        stage.token = "a token"
        stage.play(scenes.healthy())
        browser.open(stage.address)
        browser.sees("asks for a token")
        photograph(browser, target, "token")
    finally:
        browser.close()
        stage.leave()


def photograph(browser: Browser, target: Path, name: str) -> None:
    """One scene in four ways."""
    for size, form in ((WIDE, "wide"), (PHONE, "phone")):
        for dark in (False, True):
            browser.look(size, dark=dark)
            picture = target / f"status-{name}-{form}-{'dark' if dark else 'light'}.png"
            browser.photograph(picture)
            print(picture)


if __name__ == "__main__":
    directory = Path(sys.argv[1]) if len(sys.argv) > 1 else CHECKOUT / "docs" / "images"
    directory.mkdir(parents=True, exist_ok=True)
    main(directory)
