"""A headless Chromium that tests and tools drive through Selenium; nothing is downloaded for it."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING
from typing import Any

import pytest
from patience import until
from selenium.webdriver import ActionChains
from selenium.webdriver import Chrome
from selenium.webdriver import ChromeOptions
from selenium.webdriver import Keys
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By


if TYPE_CHECKING:
    from pathlib import Path

    from selenium.webdriver.remote.webelement import WebElement

# As Debian and others call them.
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
DRIVER = "chromedriver"


def missing() -> str:
    """What there is not, in words; nothing where a browser can be driven."""
    if not any(map(shutil.which, BROWSERS)):
        return "no Chromium is installed (apt-get install chromium chromium-driver)"
    if shutil.which(DRIVER) is None:
        return "no chromedriver is installed (apt-get install chromium-driver)"
    return ""


class Browser(Chrome):
    """Chromium with an empty profile, which notes requests and what the console says."""

    def __init__(self, profile: Path) -> None:
        options = ChromeOptions()
        options.binary_location = next(filter(None, map(shutil.which, BROWSERS)))
        for argument in (
            "headless=new",
            "no-sandbox",  # root has none, and only our own page is shown
            "disable-dev-shm-usage",
            "disable-gpu",
            "disable-background-networking",
            "force-device-scale-factor=1",
            "hide-scrollbars",
            "lang=en",
            f"user-data-dir={profile}",
        ):
            options.add_argument(f"--{argument}")
        options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
        super().__init__(options, Service(shutil.which(DRIVER)))
        self.get("about:blank")  # not the page that a new tab has
        self.requested()

    def emulate(self, what: str, **parameters: Any) -> None:
        """Let the page believe something, by a command ``Emulation.what`` of the DevTools."""
        self.execute_cdp_cmd(f"Emulation.{what}", parameters)

    def colours(self, scheme: str) -> None:
        """Prefer light or dark colours; any where it is empty."""
        wanted = [{"name": "prefers-color-scheme", "value": scheme}]
        self.emulate("setEmulatedMedia", features=wanted)

    def window(self, width: int, height: int) -> None:
        """Give the page so many CSS pixels."""
        self.emulate(
            "setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )

    def requested(self) -> list[str]:
        """The addresses that pages asked for since the last time."""
        told = [json.loads(entry["message"])["message"] for entry in self.get_log("performance")]
        sent = [one["params"] for one in told if one["method"] == "Network.requestWillBeSent"]
        return [one["request"]["url"] for one in sent]

    def complaints(self) -> list[str]:
        """What the console said since the last time, save that a request was refused."""
        entries = self.get_log("browser")
        return [entry["message"] for entry in entries if entry["source"] != "network"]


@dataclass
class Page:
    """The page in a browser."""

    browser: Browser
    url: str

    def open(self) -> None:
        """Come to the page, anew too."""
        self.browser.get(self.url)
        until(lambda: self["state"].text not in ("", "Asking the server…"))

    def __getitem__(self, name: str) -> WebElement:
        return self.browser.find_element(By.ID, name)

    def all(self, selector: str) -> list[WebElement]:
        """The elements of a selector."""
        return self.browser.find_elements(By.CSS_SELECTOR, selector)

    def texts(self, selector: str) -> list[str]:
        """What the elements of a selector hold, to the last space."""
        # At once: the page may replace them meanwhile.
        script = "return [...document.querySelectorAll(arguments[0])].map((e) => e.textContent)"
        return list(self.browser.execute_script(script, selector))

    def set(self, form: str, **fields: object) -> None:
        """Type into the fields of a form."""
        for name, value in fields.items():
            (field,) = self.all(f"#{form} [name={name}]")
            field.clear()
            field.send_keys(str(value))

    def say(self, text: str) -> None:
        """Type a message and send it."""
        self["message"].send_keys(text, Keys.ENTER)

    def answered(self) -> bool:
        """Whether no answer is on its way."""
        return self["send"].is_displayed()

    def keys(self, *keys: str) -> WebElement:
        """Press keys, wherever the focus is; where it is then."""
        ActionChains(self.browser).send_keys(*keys).perform()
        return self.browser.switch_to.active_element

    def tab_to(self, name: str) -> WebElement:
        """Press Tab until something has the focus, which must show at each stop."""
        for _ in range(40):
            at = self.keys(Keys.TAB)
            assert at.value_of_css_property("outline-style") == "solid", at.get_attribute("id")
            if at.get_attribute("id") == name:
                return at
        pytest.fail(f"Tab does not lead to {name}")


__all__ = ["Browser", "Page", "missing"]
