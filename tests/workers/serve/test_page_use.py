"""The page for people in a browser: who can use it, on what, and what it may not do."""

from __future__ import annotations

import pytest
from patience import until
from selenium.webdriver import ActionChains
from selenium.webdriver import Keys


pytestmark = pytest.mark.slow
COLOURS = """
const rgb = (text) => text.match(/[\\d.]+/g).map(Number);
const light = (c) => c.slice(0, 3).map((v) => v / 255)
  .map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4))
  .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
const behind = (e) => {
  const own = rgb(getComputedStyle(e).backgroundColor);
  return own.length === 3 || own[3] === 1 || !e.parentElement ? own : behind(e.parentElement);
};
const found = [];
for (const e of document.querySelectorAll("body *")) {
  const own = [...e.childNodes].some((n) => n.nodeType === 3 && n.data.trim());
  if (!own || !e.checkVisibility()) continue;
  const [a, b] = [light(rgb(getComputedStyle(e).color)), light(behind(e))].sort((x, y) => y - x);
  found.push([e.textContent.trim().slice(0, 30), (a + 0.05) / (b + 0.05)]);
}
return found;
"""


def test_keyboard_alone(page, paced):
    """Who has no pointer gets everywhere, sees where they are, and Escape stops."""
    page.open()  # the focus is nowhere
    paced.allowed = 2
    skip = page.keys(Keys.TAB)
    assert skip.text == "Skip to the conversation"
    assert skip.rect["y"] >= 0
    assert page.keys(Keys.ENTER).get_attribute("id") == "main"
    page.tab_to("log")
    page.tab_to("message")
    page.keys("one")
    ActionChains(page.browser).key_down(Keys.SHIFT).send_keys(Keys.ENTER).key_up(
        Keys.SHIFT
    ).perform()
    page.keys("two")
    page.tab_to("send")
    page.keys(Keys.ENTER)
    until(page["stop"].is_displayed)
    assert page.browser.switch_to.active_element.get_attribute("id") == "stop"
    assert page.texts(".user .text") == ["one\ntwo"]
    until(lambda: page.texts(".assistant .text") != [""])
    page.keys(Keys.ESCAPE)
    until(page.answered)
    assert page.texts(".note")[1] == "stopped"
    assert page.browser.switch_to.active_element.get_attribute("id") == "send"
    page.tab_to("clear")
    page.keys(Keys.SPACE)
    assert page.texts("#log .text") == []
    assert page.browser.switch_to.active_element.get_attribute("id") == "message"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_colours(page, scheme):
    """Texts stand out from what is behind them, by light and by dark, errors too."""
    page.browser.colours(scheme)
    page.say("hi")
    until(page.answered)
    page.browser.execute_script("document.getElementById('problem').textContent = 'wrong'")
    found = page.browser.execute_script(COLOURS)
    assert len(found) > 20
    assert not [one for one in found if one[1] < 4.5]
    back = page.all("body")[0].value_of_css_property("background-color")
    assert (max(map(int, back[5:-1].split(",")[:3])) < 64) == (scheme == "dark")


def test_narrow_screens(page, visit, served):
    """At 320 pixels nothing is cut off, of either tab."""
    page.browser.window(320, 640)
    wide = "return document.scrollingElement.scrollWidth"
    served.info |= {"model": "tiny", "state": "ready"}
    for url in (page.url, served.url):
        page = visit(url)
        for tab in page.all("[role=tab]"):
            if tab.is_displayed():
                tab.click()
                assert page.browser.execute_script(wide) <= 320
                for one in page.all("button, input, textarea, meter"):
                    if one.is_displayed():
                        assert 0 <= one.rect["x"] <= 320 - one.rect["width"]


def test_names_for_who_does_not_see(page, visit, served):
    """Whatever can be used or read off has a name and a role; the page has its landmarks."""
    served.info |= {"model": "tiny", "state": "ready"}
    for url in (page.url, served.url):
        page = visit(url)
        for tab in page.all("[role=tab]"):
            if tab.is_displayed():
                tab.click()
                used = page.all("button, input, textarea, meter, summary, [tabindex='0']")
                used = [one for one in used if one.is_displayed()]
                assert len(used) > 5
                assert not [one.tag_name for one in used if not one.accessible_name]
        assert page["spoken"].get_attribute("aria-live") == "polite"
        assert page["state"].aria_role == "status"
        roles = {one.aria_role for one in page.all("header, main, aside")}
        assert {"banner", "main", "complementary"} <= roles
        assert page.all("html")[0].get_attribute("lang") == "en"


def test_tabs_of_what_is_served(visit, server, served):
    """Who serves no images has no tab for them, nor who serves no language; arrows change tabs."""
    page = visit(server.url)
    assert [tab.text for tab in page.all("[role=tab]") if tab.is_displayed()] == ["Chat"]
    page = visit(served.url)
    assert [tab.text for tab in page.all("[role=tab]") if tab.is_displayed()] == ["Draw"]
    assert page["panel-draw"].is_displayed()
    assert not page["sampling"].is_displayed()
    served.info |= {"model": "tiny", "state": "loading"}
    until(page["tab-chat"].is_displayed)
    page["tab-draw"].click()
    at = page.keys(Keys.ARROW_RIGHT)
    assert at.get_attribute("id") == "tab-chat"
    assert at.get_attribute("aria-selected") == "true"
    assert page["panel-chat"].is_displayed()
    assert not page["panel-draw"].is_displayed()
    assert page["state"].text == "The model is being loaded."
    page["tab-draw"].click()
    assert page["state"].text == "Ready."  # what draws is another one


def test_the_policy_holds(visit, server):
    """Markup put into the page by whatever means is refused, and the browser says so."""
    page = visit(server.url)
    refused = """
        const said = [];
        const hear = (event) => said.push(event.effectiveDirective);
        document.addEventListener("securitypolicyviolation", hear);
        try { document.body.innerHTML = "<b>" } catch (error) { said.push(error.name) }
        await fetch("http://127.0.0.2:9/").catch((error) => said.push(error.name));
        const image = document.body.appendChild(new Image());
        image.src = "data:image/gif;base64,R0lGODlhAQABAAAAACw=";
        await new Promise((done) => { image.onerror = done });
        image.remove();
        await new Promise((done) => setTimeout(done));
        return said;
    """
    said = page.browser.execute_script(refused)
    policies = {"require-trusted-types-for", "connect-src", "img-src"}
    assert {"TypeError", *policies} == set(said)
    assert len(page.browser.complaints()) >= 3
