"""The site builds from `docs/` without a warning, and fetches nothing from elsewhere."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

from tests.servers.cache import CHECKOUT

ELSEWHERE = re.compile(r"(https?:)?//")
LOADED = {"script": "src", "img": "src", "link": "href", "iframe": "src", "source": "src"}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built as `make docs` does. A warning is an error: a link that leads nowhere, a page outside the nav."""
    target = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", target],
        cwd=CHECKOUT, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return target


class Loads(HTMLParser):
    """What a browser loads for a page by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag in LOADED and given.get("rel") != "canonical" and (address := given.get(LOADED[tag])):
            self.found.append(address)


def test_every_page_is_there_and_loads_only_its_own_files(site: Path) -> None:
    documents = {
        path.relative_to(CHECKOUT / "docs").with_suffix("") for path in (CHECKOUT / "docs").rglob("*.md")
    }
    pages = {path.relative_to(site).with_suffix("") for path in site.rglob("*.html")}
    assert {path.parent / ("index" if path.name == "README" else path.name) for path in documents} <= pages
    for page in site.rglob("*.html"):
        parser = Loads()
        parser.feed(page.read_text())
        assert parser.found
        for address in parser.found:
            assert not ELSEWHERE.match(address), f"{page.name} loads {address}"
            # The page for addresses that aren't there is served from any of them, so it names files from the root.
            root = site if address.startswith("/") else page.parent
            assert (root / address.lstrip("/").partition("?")[0]).exists(), address


def test_no_style_loads_from_elsewhere(site: Path) -> None:
    styles = [*site.rglob("*.css")]
    assert styles
    for style in styles:
        assert not re.search(r"(@import|url\()\s*[\"']?(https?:)?//", style.read_text()), style
