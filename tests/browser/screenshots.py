"""Pictures of the status page: `python -m tests.browser.screenshots [DIRECTORY] [webp|png]`.

Without a directory those that the pages in `docs/` show, into `docs/images/`; else each scene in each way.
"""

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

IMAGES = CHECKOUT / "docs" / "images"


def main(target: Path, form: str) -> None:
    """Each scene on a wide screen in light and dark, and on a phone in light and dark; then the relay gone."""
    pages = "".join(page.read_text() for page in (CHECKOUT / "docs").rglob("*.md"))
    browser, stage = Browser(), Stage()

    def photographed(scene: str) -> None:
        for size, screen in ((WIDE, "wide"), (PHONE, "phone")):
            for dark in (False, True):
                name = f"status-{scene}-{screen}-{'dark' if dark else 'light'}.{form}"
                if target == IMAGES and name not in pages:
                    continue
                browser.look(size, dark=dark)
                browser.photograph(target / name)
                print(target / name)

    try:
        for name, scene in SCENES.items():
            stage.play(scene())
            browser.open(stage.address)
            browser.sees("Topics")
            photographed(name)
        stage.play(scenes.healthy())
        browser.open(stage.address)
        browser.sees("Topics")
        stage.leave()
        browser.sees("has not answered since")
        photographed("relay-gone")
        stage.token = "a token"
        stage.play(scenes.healthy())
        browser.open(stage.address)
        browser.sees("asks for a token")
        photographed("token")
    finally:
        browser.close()
        stage.leave()


if __name__ == "__main__":
    directory = Path(sys.argv[1]) if len(sys.argv) > 1 else IMAGES
    directory.mkdir(parents=True, exist_ok=True)
    main(directory, sys.argv[2] if len(sys.argv) > 2 else "webp")
