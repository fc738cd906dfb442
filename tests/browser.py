"""A page in a real browser without a screen."""

import tempfile
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter, sleep
from typing import Any

from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement

from tests.chromium import Chromium

_FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--window-size=1280,900",
)
_PATIENCE_S = 30


@dataclass(frozen=True)
class Browser:
    driver: webdriver.Chrome

    def open(self, page: Path) -> float:
        """Opens a page and waits for its figures; seconds that took."""
        self.driver.get("about:blank")
        start = perf_counter()
        self.driver.get(page.resolve().as_uri())
        while self.run("return document.body.dataset.drawn") != "yes":
            assert perf_counter() - start < _PATIENCE_S, self.errors()
            sleep(0.02)
        return perf_counter() - start

    def busy_s(self) -> float:
        """Returns the CPU time that the page has taken, which does not depend on what else runs."""
        found = self.driver.execute_cdp_cmd("Performance.getMetrics", {})["metrics"]
        return next(entry["value"] for entry in found if entry["name"] == "TaskDuration")

    def errors(self) -> list[Mapping[str, Any]]:
        """Returns messages of the console since the last call."""
        return list(self.driver.get_log("browser"))

    def run(self, script: str, *arguments: object) -> Any:
        return self.driver.execute_script(script, *arguments)

    def all(self, css: str) -> list[WebElement]:
        return self.driver.find_elements(By.CSS_SELECTOR, css)

    def one(self, css: str) -> WebElement:
        return self.driver.find_element(By.CSS_SELECTOR, css)

    def click(self, element: WebElement) -> None:
        self.run("arguments[0].scrollIntoView({block: 'center'}); arguments[0].click()", element)

    def prefer(self, scheme: str) -> None:
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})

    def hover(self, figure: str, x: float, y: float) -> str:
        """Moves the mouse to a place of the plot, in parts of its width and height; what the label says."""
        self.run("document.getElementById(arguments[0]).scrollIntoView({block: 'center'})", figure)
        box = self.run("""
            const r = document.querySelector(`#${arguments[0]} .nsewdrag`).getBoundingClientRect();
            return [r.x, r.y, r.width, r.height]""", figure)  # fmt: skip
        for nudge in (3, 0):
            place = {"x": box[0] + x * box[2] + nudge, "y": box[1] + y * box[3]}
            self.driver.execute_cdp_cmd("Input.dispatchMouseEvent", {"type": "mouseMoved", **place})
            sleep(0.15)
        return " ".join(element.text for element in self.all(f"#{figure} .hoverlayer .hovertext"))


@contextmanager
def browser(paths: Chromium) -> Generator[Browser]:
    """Chromium, driven."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        options = webdriver.ChromeOptions()
        options.binary_location = paths.program
        for flag in (*_FLAGS, f"--user-data-dir={profile}"):
            options.add_argument(flag)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        running = webdriver.Chrome(options=options, service=Service(paths.driver))
        try:
            running.execute_cdp_cmd("Performance.enable", {"timeDomain": "threadTicks"})
            yield Browser(running)
        finally:
            running.quit()
