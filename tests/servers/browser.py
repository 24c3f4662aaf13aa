"""A real browser: Debian's Chromium without a window, driven by its chromedriver."""

from __future__ import annotations

import base64
import contextlib
import shutil
from pathlib import Path
from typing import Any, Final

from selenium.common.exceptions import StaleElementReferenceException
from selenium.webdriver import ChromeOptions, Remote
from selenium.webdriver.remote.webelement import WebElement

from tests.servers.cache import Missing
from tests.servers.process import Process, directory, free_port
from tests.servers.wait import PATIENCE, eventually

PHONE: Final = (390, 844)
WIDE: Final = (1280, 900)


def _program(*names: str) -> str:
    found = next((path for path in map(shutil.which, names) if path is not None), None)
    if found is None:
        raise Missing(
            f"the status page is tested in a browser, and there is no {' or '.join(names)} on this machine; "
            "on Debian: apt-get install chromium chromium-driver"
        )
    return found


class Browser:
    """One browser with one tab, as large as a desktop's or a phone's, in light or dark."""

    def __init__(self) -> None:
        """Start driver and browser. Raises Missing when one of them isn't installed."""
        driver = _program("chromedriver")
        options = ChromeOptions()
        options.binary_location = _program("chromium", "chromium-browser", "google-chrome")
        profile = directory("browser-")
        for argument in (
            "--headless=new",
            "--no-sandbox",  # the tests may run as root, and open nothing but their own pages
            "--disable-dev-shm-usage",
            "--disable-gpu",
            "--disable-background-networking",
            "--no-first-run",
            "--hide-scrollbars",
            f"--user-data-dir={profile}",
        ):
            options.add_argument(argument)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        port = free_port()
        self._log = profile / "chromedriver.log"
        self._process = Process([driver, f"--port={port}"], log=self._log)
        try:
            eventually(self._listens, PATIENCE, lambda: f"chromedriver listens:\n{self._log.read_text()}")
            self._driver = Remote(f"http://127.0.0.1:{port}", options=options)
        except BaseException:
            self._process.kill()
            raise
        self.look()

    def _listens(self) -> bool:
        assert self._process.running, self._log.read_text()
        return "started successfully" in self._log.read_text()

    def close(self) -> None:
        """End browser and driver."""
        try:
            self._driver.quit()
        finally:
            self._process.kill()

    def _devtools(self, command: str, **parameters: Any) -> Any:
        answer = self._driver.execute("executeCdpCommand", {"cmd": command, "params": parameters})
        return answer["value"]

    def look(self, size: tuple[int, int] = WIDE, *, dark: bool = False) -> None:
        """Be a screen of this many pixels (width, height), of somebody who likes it dark or light."""
        width, height = size
        self._devtools(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=2,
            mobile=size == PHONE,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self._devtools("Emulation.setEmulatedMedia", features=[scheme])

    def open(self, address: str) -> None:
        """Open a page in a tab that remembers nothing of the one before."""
        self._driver.get(address)
        self._driver.execute_script("sessionStorage.clear()")
        self.complaints()
        self._driver.refresh()

    def reload(self) -> None:
        self._driver.refresh()

    def run(self, script: str, *arguments: Any) -> Any:
        """What a script in the page returns."""
        return self._driver.execute_script(script, *arguments)

    def find(self, selector: str) -> WebElement:
        """The first element of a CSS selector, which must be there."""
        return self._driver.find_element("css selector", selector)

    def text(self, selector: str = "body") -> str:
        """The visible text of an element, as a reader sees it; empty when it is hidden."""
        while True:
            # The page may draw the element anew between the two questions, as it does its charts every two seconds.
            with contextlib.suppress(StaleElementReferenceException):
                return self.find(selector).text

    @property
    def title(self) -> str:
        return self._driver.title

    def sees(self, words: str, selector: str = "body", *, timeout: float = PATIENCE) -> None:
        """Wait until the element shows these words."""
        eventually(
            lambda: words in self.text(selector),
            timeout,
            lambda: f"{words!r} in {selector}:\n{self.text()}",
        )

    def complaints(self) -> list[str]:
        """What the browser has written to its console since the last call: errors, refusals of the policy."""
        return [line["message"] for line in self._driver.execute("getLog", {"type": "browser"})["value"]]

    def photograph(self, target: Path) -> None:
        """The whole page as a picture, PNG or WebP by the file's name."""
        size = self._devtools("Page.getLayoutMetrics")["cssContentSize"]
        picture = self._devtools(
            "Page.captureScreenshot",
            format=target.suffix.removeprefix("."),
            captureBeyondViewport=True,
            clip={"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1},
        )
        target.write_bytes(base64.b64decode(picture["data"]))
