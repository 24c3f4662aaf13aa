"""The pictures of the status page in `docs/images/`: `python -m tests.browser.screenshots [DIRECTORY] [webp|png]`."""

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


def main(target: Path, form: str) -> None:
    """Each scene on a wide screen in light and dark, and on a phone in light and dark; then the relay gone."""
    browser, stage = Browser(), Stage()
    try:
        for name, scene in SCENES.items():
            stage.play(scene())
            browser.open(stage.address)
            browser.sees("Topics")
            photograph(browser, target / name, form)
        stage.play(scenes.healthy())
        browser.open(stage.address)
        browser.sees("Topics")
        stage.leave()
        browser.sees("has not answered since")
        photograph(browser, target / "relay-gone", form)
        stage.token = "a token"
        stage.play(scenes.healthy())
        browser.open(stage.address)
        browser.sees("asks for a token")
        photograph(browser, target / "token", form)
    finally:
        browser.close()
        stage.leave()


def photograph(browser: Browser, scene: Path, form: str) -> None:
    """One scene in four ways."""
    for size, screen in ((WIDE, "wide"), (PHONE, "phone")):
        for dark in (False, True):
            browser.look(size, dark=dark)
            picture = scene.with_name(f"status-{scene.name}-{screen}-{'dark' if dark else 'light'}.{form}")
            browser.photograph(picture)
            print(picture)


if __name__ == "__main__":
    directory = Path(sys.argv[1]) if len(sys.argv) > 1 else CHECKOUT / "docs" / "images"
    directory.mkdir(parents=True, exist_ok=True)
    main(directory, sys.argv[2] if len(sys.argv) > 2 else "webp")
