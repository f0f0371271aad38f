"""
Photograph the page of `propolis serve`, light and dark; `make page-images` runs it.

The packaged model answers in a headless Chromium; both images are of the same conversation.
"""

from __future__ import annotations

import io
import json
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from typing import Final

from browser import Browser
from browser import missing
from PIL import Image
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import WebDriverWait


if TYPE_CHECKING:
    from collections.abc import Iterator

FOLDER: Final = Path(__file__).parents[1] / "docs/images"
SIZE: Final = (1000, 860)
# What the model answers well.
QUESTION: Final = "What is the capital of France?"
SETTINGS: Final = {"temperature": "0", "max_tokens": "200"}


@contextmanager
def served() -> Iterator[str]:
    """A server of the packaged model: where it is."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "propolis", "serve", "--serve", "both", "--port", str(port)]
    server = subprocess.Popen(command)
    url = f"http://127.0.0.1:{port}/"
    try:
        while not _is_ready(url):
            if server.poll() is not None:
                raise SystemExit(server.returncode)
            time.sleep(0.2)
        yield url
    finally:
        server.terminate()
        server.wait(60)


def _is_ready(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}v1/ready") as answer:  # noqa: S310  (our own)
            return bool(json.load(answer)["ready"])
    except urllib.error.URLError:
        return False


def converse(browser: Browser, url: str) -> None:
    """Open the page, ask, and wait for the answer and for what the server says after it."""
    browser.window(*SIZE)
    browser.get(url)
    wait = WebDriverWait(browser, 120)
    area = browser.find_element(By.ID, "message")
    wait.until(lambda _: area.is_displayed())
    for name, value in SETTINGS.items():
        browser.find_element(By.CSS_SELECTOR, f"#sampling-form [name={name}]").send_keys(value)
    area.send_keys(QUESTION + "\n")
    wait.until(lambda _: browser.find_elements(By.CSS_SELECTOR, "article.assistant .note"))
    wait.until(lambda _: browser.find_elements(By.CSS_SELECTOR, ".assistant .note")[-1].text)
    wait.until(lambda _: browser.find_elements(By.CSS_SELECTOR, "#ops tr"))
    wait.until(lambda _: "0 being computed" in browser.find_element(By.ID, "facts").text)


def main() -> None:
    """Write both files and say where they are."""
    why = missing()
    if why:
        raise SystemExit(why)
    FOLDER.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as profile, served() as url:
        browser = Browser(Path(profile))
        try:
            converse(browser, url)
            for scheme in ("light", "dark"):
                browser.colours(scheme)
                file = FOLDER / f"page-{scheme}.png"
                shot = Image.open(io.BytesIO(browser.get_screenshot_as_png()))
                shot.convert("RGB").quantize(128).save(file, optimize=True)
                print(file)
        finally:
            browser.quit()


if __name__ == "__main__":
    main()
