"""Tools, by OpenAI's and Ollama's own clients."""

from __future__ import annotations

import json

import ollama
import openai
import pytest
from tool_templates import TEMPLATES

from propolis import Config
from propolis_workers.llm.default_model import find_model
from propolis_workers.llm.prompts import Prompts
from propolis_workers.serve.openai_replies import ChatCompletion
from propolis_workers.serve.openai_replies import ChatCompletionChunk
from propolis_workers.serve.openai_tools import spoken
from propolis_workers.serve.openai_types import Message


MESSAGES = [{"role": "user", "content": "What is the weather in Bern?"}]
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"enum": ["Bern", "Zürich"]}, "days": {"enum": [1, 2]}},
            "required": ["city"],
        },
    },
}
NOW = {"type": "function", "function": {"name": "now"}}
TOOLS = [WEATHER, NOW]
ASKED = {"model": "tiny", "messages": MESSAGES, "tools": TOOLS, "max_tokens": 400}
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Zürich"}}\n</tool_call>'


@pytest.fixture(scope="module")
def server(serving, tiny, tmp_path_factory):
    """A server with room for what templates say of tools."""
    path = tmp_path_factory.mktemp("tools") / "tiny.gguf"
    model = tiny.gguf(path, metadata={"llama.context_length": 2048})
    return serving(model=model, context=2048, tokens=8192, template=TEMPLATES["hermes"])


@pytest.fixture
def family(server):
    """Gives the server the chat template of a family."""
    prompts = server.service.prompts

    def choose(name: str | None) -> None:
        template = None if name is None else TEMPLATES[name]
        server.service.prompts = Prompts(prompts._path, prompts.tokenizer, template)

    yield choose
    server.service.prompts = prompts


@pytest.fixture(scope="module")
def client(server):
    """The official client, unchanged."""
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as made:
        yield made


def streamed(chunks) -> tuple[str, list[dict], str]:
    """The text of a stream, its calls and its reason."""
    text, calls, why = "", [], None
    for chunk in chunks:
        (choice,) = chunk.choices
        text += choice.delta.content or ""
        calls += [call.model_dump() for call in choice.delta.tool_calls or ()]
        why = choice.finish_reason or why
    return text, calls, why


def valid(call) -> None:
    """What a call must be: of a tool, by its schema."""
    arguments = json.loads(call.function.arguments)
    if call.function.name == "weather":
        assert arguments["city"] in ("Bern", "Zürich")
        assert set(arguments) <= {"city", "days"}
    else:
        assert (call.function.name, arguments) == ("now", {})


@pytest.mark.parametrize("name", TEMPLATES)
def test_required(client, family, name):
    """A random model calls tools by their schemas where it has to, and takes its calls back."""
    family(name)
    more = {"temperature": 1, "tool_choice": "required", "parallel_tool_calls": False}
    for seed in range(3):
        got = client.chat.completions.create(**ASKED, **more, seed=seed)
        message = got.choices[0].message
        assert got.choices[0].finish_reason == "tool_calls"
        assert message.content is None
        (call,) = message.tool_calls
        valid(call)
        text, calls, why = streamed(
            client.chat.completions.create(**ASKED, **more, seed=seed, stream=True)
        )
        assert (text, why) == ("", "tool_calls")
        assert [one["function"] for one in calls] == [call.function.model_dump()]
        assert [one["index"] for one in calls] == [0]
    answered = {"role": "tool", "tool_call_id": call.id, "content": "sunny"}
    for back in (message, message.model_dump()):
        talk = [*MESSAGES, back, answered]
        got = client.chat.completions.create(**{**ASKED, "messages": talk, "max_tokens": 2})
        assert got.usage.completion_tokens <= 2


def test_several(client):
    """Calls of one answer have numbers and ids of their own."""
    asked = {**ASKED, "temperature": 1, "seed": 2, "tool_choice": "required", "n": 4}
    got = client.chat.completions.create(**asked)
    for choice in got.choices:
        calls = choice.message.tool_calls or []
        for call in calls:
            valid(call)
        assert len({call.id for call in calls}) == len(calls)
    assert max(len(choice.message.tool_calls or ()) for choice in got.choices) > 1


@pytest.mark.parametrize("name", TEMPLATES)
def test_named(client, family, name):
    """The function that is named is called, once."""
    family(name)
    choice = {"type": "function", "function": {"name": "now"}}
    got = client.chat.completions.create(**ASKED, temperature=1, seed=1, tool_choice=choice, n=2)
    for one in got.choices:
        (call,) = one.message.tool_calls
        assert (call.function.name, call.function.arguments) == ("now", "{}")
        assert one.finish_reason == "tool_calls"


def test_stops_are_not_for_calls(client):
    """A stop string that is part of a call that has to be made does not cut it."""
    choice = {"type": "function", "function": {"name": "now"}}
    got = client.chat.completions.create(**ASKED, tool_choice=choice, stop=["name", "{"])
    assert got.choices[0].message.tool_calls[0].function.name == "now"


def test_auto(client, server, said):
    """What the model says is text until a call begins, and nothing of a mark is shown."""
    text = f"I look. \n{CALL}\n{CALL}"
    for pieces in (list(text), [text], [text[:12], text[12:30], text[30:]]):
        said(server, *pieces)
        got = client.chat.completions.create(**ASKED)
        (choice,) = got.choices
        assert (choice.message.content, choice.finish_reason) == ("I look.", "tool_calls")
        assert [json.loads(call.function.arguments) for call in choice.message.tool_calls] == [
            {"city": "Zürich"},
            {"city": "Zürich"},
        ]
        assert "Zürich" in choice.message.tool_calls[0].function.arguments
        shown, calls, why = streamed(client.chat.completions.create(**ASKED, stream=True))
        assert (shown, why) == ("I look.", "tool_calls")
        assert [call["index"] for call in calls] == [0, 1]
        got = client.chat.completions.create(**ASKED, parallel_tool_calls=False)
        assert len(got.choices[0].message.tool_calls) == 1


def test_text_alone(client, server, said):
    """An answer without calls is what it is without tools; so is all where none are wanted."""
    said(server, "1 <", " 2, <tool_c")
    for asked in (ASKED, {**ASKED, "tool_choice": "auto"}):
        (choice,) = client.chat.completions.create(**asked).choices
        assert (choice.message.content, choice.finish_reason) == ("1 < 2, <tool_c", "stop")
        assert choice.message.tool_calls is None
    said(server, CALL)
    (choice,) = client.chat.completions.create(**ASKED, tool_choice="none").choices
    assert (choice.message.content, choice.message.tool_calls) == (CALL, None)


def test_a_call_that_is_cut(client, server, said):
    """A call that the length ends is no call: its text is there, and why it ended."""
    said(server, "Well. ", CALL[:30], reason="MAX_TOKENS")
    (choice,) = client.chat.completions.create(**ASKED).choices
    assert (choice.message.content, choice.finish_reason) == (f"Well. {CALL[:30]}", "length")


def test_what_is_answered_is_described(server, said):
    """Answers with calls are what openapi.json says."""
    said(server, "I look. ", CALL)
    body = {key: value for key, value in ASKED.items() if key != "model"}
    got = server.http.post("/v1/chat/completions", json=body)
    ChatCompletion.model_validate_json(got.content)
    lines = server.http.post("/v1/chat/completions", json={**body, "stream": True}).text
    for line in lines.split("\n\n")[:-2]:
        ChatCompletionChunk.model_validate_json(line.removeprefix("data: "))


def test_tools_are_told(server, client, monkeypatch):
    """The model reads what tools there are, what was called, and what was answered by whom."""
    prompts, shown = server.service.prompts, []
    render = prompts.render
    monkeypatch.setattr(
        prompts, "render", lambda *args, **named: shown.append(render(*args, **named)) or shown[-1]
    )
    function = {"name": "weather", "arguments": '{"city": "Bern"}'}
    called = {"id": "abcdefghi", "type": "function", "function": function}
    talk = [
        *MESSAGES,
        {"role": "assistant", "content": None, "tool_calls": [called], "annotations": []},
        {"role": "tool", "tool_call_id": "abcdefghi", "content": "rain"},
        {"role": "assistant", "content": "Rain.", "tool_calls": None, "refusal": None},
        {"role": "user", "content": "And tomorrow?"},
    ]
    client.chat.completions.create(**{**ASKED, "messages": talk, "max_tokens": 1})
    assert '"name": "weather", "description": "The weather of a city."' in shown[0]
    assert '<tool_call>\n{"name": "weather", "arguments": {"city": "Bern"}}' in shown[0]
    assert "<|im_start|>tool\nrain<|im_end|>" in shown[0]
    client.chat.completions.create(**ASKED | {"max_tokens": 1}, tool_choice="none")
    assert "weather of a city" not in shown[1]


def test_names_of_those_who_speak_are_told():
    """Templates get the name of a message; of a tool's answer that of the call comes first."""
    function = {"name": "weather", "arguments": "{}"}
    talk = [
        {"role": "user", "content": "hi", "name": "Ann"},
        {"role": "assistant", "tool_calls": [{"id": "1", "function": function}]},
        {"role": "tool", "content": "rain", "tool_call_id": "1", "name": "else"},
        {"role": "tool", "content": "rain", "tool_call_id": "2", "name": "news"},
    ]
    told = spoken([Message.model_validate(one) for one in talk])
    assert [one.get("name") for one in told] == ["Ann", None, "weather", "news"]


@pytest.mark.parametrize(
    ("wrong", "param", "says"),
    [
        ({"tool_choice": "sometimes"}, "tool_choice", "'none', 'auto' or 'required'"),
        ({"tool_choice": {"type": "function", "function": {"name": "x"}}}, "tool_choice", "now"),
        ({"tools": [], "tool_choice": "required"}, "tool_choice", "give tools"),
        ({"tools": [NOW, NOW]}, "tools", "two tools have the name now"),
        (
            {"tools": [{"type": "function", "function": {"name": "a b"}}]},
            "tools",
            "texts of the form",
        ),
        ({"tools": [{"type": "custom", "custom": {}}]}, "tools", "'function'"),
        ({"tools": [NOW] * 129}, "tools", "at most 128"),
        ({"response_format": {"type": "json_object"}}, "response_format", "one of them"),
        (
            {
                "tool_choice": "required",
                "tools": [
                    {"type": "function", "function": {"name": "f", "parameters": {"type": "array"}}}
                ],
            },
            "tools",
            "parameters of f are of type 'array'",
        ),
        (
            {"messages": [{"role": "user", "content": "x", "annotations": [1]}]},
            "messages",
            "supported: at most 0",
        ),
    ],
)
def test_what_cannot_be_used_is_named(server, wrong, param, says):
    """What a request says of tools and cannot be used is refused by its name."""
    got = server.http.post("/v1/chat/completions", json={**ASKED, **wrong})
    assert got.status_code == 400, got.text
    error = got.json()["error"]
    assert (error["param"] or "").split(".")[0] == (param or "")
    assert says in error["message"]


def test_a_model_without_tools(server, family, client):
    """A chat template that takes no tools is said to, unless none are to be called."""
    family(None)
    with pytest.raises(openai.BadRequestError, match="takes no tools: leave them out, or give"):
        client.chat.completions.create(**ASKED)
    asked = ASKED | {"max_tokens": 1}
    assert client.chat.completions.create(**asked, tool_choice="none").choices
    described = server.http.post("/api/show", json={"model": "tiny"}).json()
    assert described["capabilities"] == ["completion"]


def weather(city: str, days: int = 1) -> str:
    """
    The weather of a city.

    Args:
        city: its name.
        days: from now.
    """
    return f"{city}: rain for {days} days"


def test_ollama(server, said):
    """Ollama's client gives functions, gets calls, and gives back what they returned."""
    client = ollama.Client(host=server.url)
    assert "tools" in client.show("tiny").capabilities
    said(server, *f"I look.\n{CALL} {CALL}")
    got = client.chat("tiny", MESSAGES, tools=[weather])
    assert got.message.content == "I look."
    assert got.done_reason == "stop"
    calls = got.message.tool_calls
    assert [(call.function.name, call.function.arguments) for call in calls] == [
        ("weather", {"city": "Zürich"})
    ] * 2
    pieces = list(client.chat("tiny", MESSAGES, tools=[weather], stream=True))
    assert "".join(piece.message.content or "" for piece in pieces) == "I look."
    again = [call for piece in pieces for call in piece.message.tool_calls or ()]
    assert again == list(calls)
    answered = [
        {"role": "tool", "tool_name": "weather", "content": weather(**call.function.arguments)}
        for call in calls
    ]
    said(server, "Rain.")
    told = client.chat("tiny", [*MESSAGES, got.message, *answered], tools=[weather])
    assert told.message.content == "Rain."
    with pytest.raises(ollama.ResponseError, match="one of them"):
        client.chat("tiny", MESSAGES, tools=[weather], format="json")
    client._client.close()


def test_ollama_calls_get_ids(server, family, said):
    """Templates that want ids get them, though Ollama's messages have none."""
    family("mistral")
    call = {"function": {"name": "weather", "arguments": {"city": "Bern"}}}
    talk = [
        *MESSAGES,
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "rain"},
    ]
    said(server, "Rain.")
    got = server.http.post("/api/chat", json={"messages": talk, "tools": TOOLS, "stream": False})
    assert got.json()["message"] == {"role": "assistant", "content": "Rain."}


@pytest.mark.model
@pytest.mark.slow
def test_the_packaged_model(serving):
    """SmolLM2 calls a function that is named, by its schema, with a template that takes tools."""
    path = find_model(Config())
    server = serving(model=path, context=1024, template=TEMPLATES["hermes"])
    choice = {"type": "function", "function": {"name": "weather"}}
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        asked = ASKED | {"model": server.service.name, "tool_choice": choice}
        (told,) = client.chat.completions.create(**asked, temperature=0).choices
    assert told.finish_reason == "tool_calls"
    (call,) = told.message.tool_calls
    valid(call)
