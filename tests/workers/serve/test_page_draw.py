"""Drawing on the page for people, in a browser."""

from __future__ import annotations

import pytest
from fake_images import STEPS
from patience import until
from selenium.webdriver import Keys


pytestmark = pytest.mark.slow


def test_an_image(visit, served):
    """Steps and previews are shown as they come, then the image, to be kept; fields are sent."""
    served.allowed = 2
    page = visit(served.url)
    fields = {"steps": 4, "guidance_scale": 4.5, "seed": 7, "width": 64, "height": 128}
    page.set("draw-form", negative_prompt="green", **fields)
    page["prompt"].send_keys("a red square", Keys.ENTER)
    until(lambda: page["steps-done"].get_property("position") == 2 / STEPS)
    until(lambda: page["image"].get_property("naturalWidth") == 8)
    assert page["image"].get_attribute("alt") == "Not finished: a red square"
    assert not page["download"].is_displayed()
    assert page["draw-stop"].is_displayed()
    served.allowed = STEPS
    until(lambda: page["image"].get_property("naturalWidth") == 16)
    assert page["image"].get_attribute("alt") == "a red square"
    assert page["download"].get_attribute("download") == "a-red-square.png"
    assert page["download"].get_attribute("href") == page["image"].get_attribute("src")
    until(lambda: page["draw-status"].text == "The image is ready.")
    assert page["caption"].text == "a red square; seed 7"
    assert not page["drawing"].is_displayed()
    asked = {"operation": "image_generation", "prompt": "a red square", **fields}
    assert served.asked == [{**asked, "negative_prompt": "green"}]
    page.open()
    assert page["prompt"].get_property("value") == "a red square"


def test_a_real_image(visit, drawing):
    """A model draws what was asked for, and the page knows what sizes that model has."""
    server = drawing()
    page = visit(server.url)
    (width,) = page.all("[name=width]")
    assert width.get_attribute("placeholder") == "64"
    page.set("draw-form", steps=2, seed=3, width=65)
    page["prompt"].send_keys("noise", Keys.ENTER)
    assert page.browser.switch_to.active_element == width  # no multiple of 8
    page.set("draw-form", width=72, height=64)
    page["draw"].click()
    until(lambda: page["draw-status"].text == "The image is ready.")
    size = [page["image"].get_property(name) for name in ("naturalWidth", "naturalHeight")]
    assert size == [72, 64]
    assert "seed 3" in page["caption"].text
    until(lambda: page.texts("#ops th"))
    facts = dict(zip(page.texts("dt"), page.texts("dd"), strict=True))
    assert facts["Size"] == "64 pixels, 64 to 256"


def test_drawing_ends_early(visit, served):
    """Stop cancels the job; errors of the job, of the request and of the wire are said in words."""
    served.allowed = 1
    page = visit(served.url)
    page["prompt"].send_keys("a square")
    page["draw"].click()
    until(page["image"].is_displayed)
    page.keys(Keys.ESCAPE)
    until(lambda: page["draw-status"].text == "Stopped.")
    assert served.cancelled == ["job-1"]
    assert page["problem"].text == ""
    assert list(served.asked[0]) == ["operation", "prompt"]  # the rest is the server's
    served.allowed = STEPS
    served.fails = "the card is full"
    page["draw"].click()
    until(lambda: page["problem"].text == "the card is full")
    served.fails, served.breaks = "", True
    page["draw"].click()
    until(lambda: "ended before the image was there" in page["problem"].text)
    served.refuses = (400, {"error": {"message": "steps: too many"}})
    page["draw"].click()
    until(lambda: page["problem"].text == "steps: too many")
    served.refuses = (502, {})
    page["draw"].click()
    until(lambda: page["problem"].text == "The server answered 502 Bad Gateway")
    assert served.cancelled == ["job-1"]
