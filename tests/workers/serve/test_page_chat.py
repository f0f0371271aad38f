"""Chatting on the page for people, in a browser."""

from __future__ import annotations

from contextlib import aclosing
from contextlib import contextmanager

import pytest
from patience import until
from selenium.webdriver import Keys

from propolis_workers.serve.engine import EngineGoneError


pytestmark = pytest.mark.slow


@contextmanager
def taken(server):
    """All that may run or wait does, meanwhile."""
    answers = server.engine._answers
    most, answers.most = answers.most, 1
    answers._open[0] = None  # of nobody
    yield
    del answers._open[0]
    answers.most = most


def test_a_conversation(page, server):
    """An answer is what the API gives; it knows what was said; both are there after a reload."""
    first = server.chat("hi").json()["choices"][0]["message"]["content"]
    page.say("hi")
    until(page.answered)
    assert page.texts("#log .text") == ["hi", first]
    assert "8 tokens" in page.texts(".note")[1]
    assert "cut short" in page.texts(".note")[1]
    spoken = "".join(page.texts("#spoken p"))
    assert spoken.split() == first.split()
    said = [("user", "hi"), ("assistant", first), ("user", "and")]
    messages = [{"role": role, "content": text} for role, text in said]
    second = server.chat(messages=messages).json()["choices"][0]["message"]["content"]
    page.say("and")
    until(page.answered)
    assert page.texts("#log .text") == ["hi", first, "and", second]
    page.open()
    assert page.texts("#log .text") == ["hi", first, "and", second]
    assert page.all("[name=max_tokens]")[0].get_property("value") == "8"
    page["clear"].click()
    assert page.texts("#log .text") == []
    assert page["nothing"].is_displayed()
    page.open()
    assert page.texts("#log .text") == []


def test_pieces_and_stop(page, server, paced):
    """An answer is shown as it comes; Stop ends it at the server too, and keeps what was said."""
    page.say("hi")
    until(page["stop"].is_displayed)
    assert page.texts(".assistant .text") == [""]
    paced.allowed = 3
    until(lambda: page.texts(".assistant .text") != [""])
    (article,) = page.all(".assistant")
    assert article.get_attribute("aria-busy") == "true"
    assert not page["send"].is_displayed()
    page["stop"].click()
    until(page.answered)
    assert page.texts(".note")[1] == "stopped"
    assert page.texts(".assistant .text") != [""]
    assert article.get_attribute("aria-busy") is None
    assert page["problem"].text == ""
    until(lambda: server.engine.waiting == 0)
    paced.allowed = 1 << 20
    page.say("more")
    until(page.answered)
    assert len(page.texts(".assistant .text")) == 2


def test_what_models_say_is_text(page, server, monkeypatch):
    """Markup in an answer, or in a question, is shown as it is, and is nothing else."""
    evil = "<img src=/x onerror=document.title='owned'><script>alert(1)</script>\n\n& <b>bold</b>"

    real = server.service.answer

    async def answer(request, *_):
        async with aclosing(real(request)) as told:
            async for one in told:
                yield {**one, "text": evil if "finish" in one else ""}

    monkeypatch.setattr(server.service, "answer", answer)
    page["message"].send_keys("<b>hi</b>", Keys.ENTER)
    until(page.answered)
    assert page.texts("#log .text") == ["<b>hi</b>", evil]
    page.open()
    assert page.texts("#log .text") == ["<b>hi</b>", evil]
    assert not page.all("main b, #log img, main script, #spoken b")
    assert "owned" not in page.browser.title


def test_errors_in_words(page, server, paced):
    """What the server refuses is said in words, and the question is there to be sent again."""
    with taken(server):
        page.say("hi")
        until(page["problem"].is_displayed)
        assert page["problem"].text.startswith("The server is busy: ")
        assert page["problem"].text.endswith("(worth another try in 1 s)")
        assert page["problem"].aria_role == "alert"
        until(page.answered)
    assert page.texts("#log .text") == []
    assert page["message"].get_property("value") == "hi"
    paced.allowed = 2
    page["send"].click()
    until(lambda: page.texts(".assistant .text") not in ([], [""]))
    assert not page["problem"].is_displayed()
    paced.error = EngineGoneError("the engine was ended by SIGKILL; try again")
    until(page.answered)
    assert page["problem"].text == "the engine was ended by SIGKILL; try again"
    assert page.texts(".note")[1] == "ended by an error"
    page["clear"].click()
    page.say("long " * 100)
    until(page["problem"].is_displayed)
    assert "no room for an answer" in page["problem"].text


def test_settings_that_cannot_be(page):
    """The browser says what is wrong with a setting, and nothing is asked."""
    page.set("sampling-form", temperature=3)
    page.say("hi")
    assert page.browser.switch_to.active_element.get_attribute("name") == "temperature"
    assert page.texts("#log .text") == []
    page.set("sampling-form", temperature=0, top_p=0.5, top_k=3, min_p=0.1, seed=7)
    page["send"].click()
    until(lambda: len(page.texts("#log .text")) == 2 and page.answered())
    assert page["problem"].text == ""


def test_without_a_server(page):
    """Where the server cannot be reached the page says so, and goes on once it can."""
    offline = {"latency": 0, "downloadThroughput": -1, "uploadThroughput": -1}
    page.browser.execute_cdp_cmd("Network.enable", {})
    network = "Network.emulateNetworkConditions"
    page.browser.execute_cdp_cmd(network, {"offline": True, **offline})
    page.say("hi")
    until(lambda: "cannot be reached" in page["problem"].text)
    until(lambda: "cannot be reached" in page["state"].text)
    page.browser.execute_cdp_cmd(network, {"offline": False, **offline})
    until(lambda: page["state"].text == "Ready.")
    page["send"].click()
    until(lambda: len(page.texts("#log .text")) == 2 and page.answered())


def test_beside_the_conversation(page, server):
    """The model, the device, its memory, and who computes which op are shown."""
    page.say("hi")
    until(lambda: "attention" in page.texts("#ops th"))
    facts = dict(zip(page.texts("dt"), page.texts("dd"), strict=True))
    assert facts["Model"] == "tiny"
    assert facts["Device"].endswith("(cpu)")
    assert facts["Context"] == "96 tokens"
    now = server.http.get("/info").json()["now"]
    ops = len(now["placement"]["ops"])
    (who,) = now["placement"]["ops"]["attention"]
    assert page["placement-text"].text == f"{ops} of {ops} ops on cpu by {who}"
    assert page.texts("#ops td") == [who] * ops
    assert page["memory-text"].text.endswith(" in use")
    # At once, as the page draws it anew from time to time.
    script = "const meter = document.getElementById('memory-used'); return [meter.value, meter.max]"
    value, most = page.browser.execute_script(script)
    assert float(most) == now["memory"]["total"]
    assert 0 < value < most


def test_the_token(visit, serving):
    """A server with a token asks for it, says when it is wrong, and a tab keeps it."""
    server = serving(token="secret")
    page = visit(server.url)
    until(page["token-form"].is_displayed)
    assert page.browser.switch_to.active_element.get_attribute("id") == "token"
    assert not page["panel-chat"].is_displayed()
    page["token"].send_keys("wrong", Keys.ENTER)
    until(lambda: "not the server's" in page["token-help"].text)
    page["token"].send_keys("secret", Keys.ENTER)
    until(page["panel-chat"].is_displayed)
    assert not page["token-form"].is_displayed()
    page.set("sampling-form", temperature=0, max_tokens=8)
    page.say("hi")
    until(page.answered)
    expected = server.chat("hi").json()["choices"][0]["message"]["content"]
    assert page.texts("#log .text") == ["hi", expected]
    page.open()
    assert page["panel-chat"].is_displayed()
    assert "secret" not in page.browser.execute_script("return JSON.stringify(localStorage)")
