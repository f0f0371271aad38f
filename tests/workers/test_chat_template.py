from __future__ import annotations

import datetime as dt
import json
import resource
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from propolis.errors import ModelError
from propolis.errors import UsageError
from propolis_workers.llm import chat_template
from propolis_workers.llm.chat_template import ChatTemplate


CHATML = """\
{% for message in messages %}
{{ '<|im_start|>' + message['role'] + '\\n' + message.content | trim + '<|im_end|>\\n' }}
{%- endfor %}
{% if add_generation_prompt %}
{{ '<|im_start|>assistant\\n' }}
{%- endif %}
"""
LLAMA3 = """\
{{- bos_token }}
{%- if not date_string is defined %}{% set date_string = strftime_now("%d %b %Y") %}{% endif %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system = messages[0]['content'] | trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system = "" %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\nToday: " + date_string + "\\n" }}
{{- system + "<|eot_id|>" }}
{%- for m in messages %}
    {{- '<|start_header_id|>' + m.role + '<|end_header_id|>\\n\\n' + m.content + '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
"""
MISTRAL = """\
{%- if messages[0].role == "system" %}{% set start = 1 %}{% else %}{% set start = 0 %}{% endif %}
{{- bos_token }}
{%- for message in messages[start:] %}
    {%- if (message.role == "user") != (loop.index0 % 2 == 0) %}
        {{- raise_exception("roles must alternate: user,\\nassistant") }}
    {%- endif %}
    {%- if message.role == "user" %}{{ "[INST] " ~ message.content ~ " [/INST]" }}
    {%- elif message.role == "assistant" %}{{ " " ~ message.content ~ eos_token }}
    {%- else %}{{ raise_exception("unknown role " + message.role) }}{% endif %}
{%- endfor %}
"""
TOOLS = """\
{%- if tools %}
{{- '<|im_start|>system\\n<tools>' }}
    {%- for tool in tools %}{{- "\\n" }}{{- tool | tojson }}{%- endfor %}
{{- '\\n</tools><|im_end|>\\n' }}
{%- endif %}
{%- set ns = namespace(last=messages|length - 1, found=false) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if not ns.found and message.role == "user" and not(message.content.startswith('<t>')) %}
        {%- set ns.last = index %}{%- set ns.found = true %}
    {%- endif %}
{%- endfor %}
{%- macro one(message) %}{{ message.role ~ ':' ~ message.content.split('</think>')[-1].lstrip() }}
{%- endmacro %}
{%- for message in messages %}
    {%- if loop.first and message.role == 'developer' %}{% continue %}{% endif %}
    {{- one(message) }}
    {%- if message.tool_calls is defined and message.tool_calls %}
        {%- for call in message.tool_calls %}
            {%- if call.function is mapping %}{% set call = call.function %}{% endif %}
            {{- '<call>' }}{{ call.name }}{{ call.arguments | tojson(indent=2) }}
            {%- for key, value in call.arguments | items %}{{ key }}={{ value|string }};{% endfor %}
        {%- endfor %}
    {%- endif %}
    {%- if not loop.last %}|{% endif %}
{%- endfor %}
{{- ns.last }}
{%- generation %}!{% endgeneration %}
"""
DOUBLE = (
    "{% set ns = namespace(x='aaaa') %}{% for i in range(99) %}{% set ns.x = ONE %}{% endfor %}"
)
LOOP = "{% for i in range(99999) %}ONE{% endfor %}"
HOSTILE = {
    "loops": LOOP.replace("ONE", LOOP.replace("ONE", LOOP)),
    "many loops": LOOP * 50,
    "filtered loop": "{% for a in range(99999) if false %}{% endfor %}" * 200,
    "long body": LOOP.replace("ONE", "{% set x = a and a and a %}" * 900),
    "data": LOOP.replace("ONE", "x" * 100_000),
    "data in a macro": "{% macro m() %}BIG{% endmacro %}{{ m()|length }}".replace(
        "BIG", LOOP.replace("ONE", "x" * 100_000)
    ),
    "data in a set": "{% set m %}BIG{% endset %}".replace(
        "BIG", LOOP.replace("ONE", "x" * 100_000)
    ),
    "range": "{{ range(10**9)|length }}",
    "endless macro": "{% macro m(n) %}{{ m(n+1) }}{% endmacro %}{{ m(0) }}",
    "exponential macro": (
        "{% macro m(n) %}{% if n %}{{ m(n-1) }}{{ m(n-1) }}{% endif %}{% endmacro %}{{ m(99) }}"
    ),
    "call block": (
        "{% macro m() %}{{ caller() }}{{ caller() }}{% endmacro %}"
        "{% macro z() %}{% call m() %}{{ z() }}{% endcall %}{% endmacro %}{{ z() }}"
    ),
    "recursive loop": "{% for a in [1] recursive %}{{ loop([1,2]) }}{{ loop([1]) }}{% endfor %}",
    "double ~": DOUBLE.replace("ONE", "ns.x ~ ns.x"),
    "double +": DOUBLE.replace("ONE", "ns.x + ns.x"),
    "double list": DOUBLE.replace("ONE", "[ns.x]+[ns.x]") + "{{ ns.x }}",
    "shared list": DOUBLE.replace("ONE", "[ns.x, ns.x]") + "{{ ns.x }}",
    "shared dict": DOUBLE.replace("ONE", "{'a': ns.x, 'b': ns.x}") + "{{ ns.x == ns.x }}",
    "shared varargs": (
        "{% macro m(n, x) %}{% if n %}{{ m(n-1, 1, varargs, varargs) }}{% else %}"
        "{{ {varargs: 1} }}{% endif %}{% endmacro %}{{ m(90, 1, 2) }}"
    ),
    "join filter": DOUBLE.replace("ONE", "[ns.x, ns.x]|join(ns.x)"),
    "join method": DOUBLE.replace("ONE", "ns.x.join([ns.x, ns.x])"),
    "replace filter": DOUBLE.replace("ONE", "ns.x|replace('a', 'aaaaaaaaa')"),
    "replace method": DOUBLE.replace("ONE", "ns.x.replace('a', 'aaaaaaaaa')"),
    "empty replace": DOUBLE.replace("ONE", "ns.x.replace('', 'aaaaaaaaa')"),
    "times": "{{ 'a' * 10**10 }}",
    "times left": "{{ 10**10 * 'a' }}",
    "list times": "{{ [1] * 10**10 }}",
    "power": "{{ 10 ** 10 ** 10 ** 10 }}",
    "squares": "{% set ns = namespace(x=3) %}" + LOOP.replace("ONE", "{% set ns.x=ns.x*ns.x %}"),
    "big int": "{{ ('9' * 4000)|int * 2 }}",
    "ljust": "{{ 'a'.ljust(10**10) }}",
    "zfill": "{{ 'a'.zfill(10**10) }}",
    "center": "{{ 'a'|center(10**10) }}",
    "expandtabs": "{{ '\t'.expandtabs(10**10) }}",
    "format method": "{{ '{:>9999999999}'.format(1) }}",
    "format filter": "{{ '%9999999999d'|format(1) }}",
    "format operator": "{{ '%9999999999d' % 1 }}",
    "format star": "{{ '%*d' % (9999999999, 1) }}",
    "to_bytes": "{{ (1).to_bytes(10**10, 'big') }}",
    "round": "{{ 1.5|round(999999999, 'ceil') }}",
    "indent": "{{ 'x'|indent(10**10, true) }}",
    "indent lines": "{{ ('\\n' * 1000000)|indent(64, true, true) }}",
    "tojson indent": "{{ [1]|tojson(indent=10**10) }}",
    "tojson depth": "{{ (" + "[" * 40 + "1" + "]" * 40 + " * 10000)|tojson(indent=16) }}",
    "strftime": "{{ strftime_now('%999999999Y') }}",
    "in range": LOOP.replace("ONE", "{% if 'a' in range(99999) %}{% endif %}"),
    "compare": "{% set x = 'a' * 999999 %}"
    + LOOP.replace("ONE", "{% if x == x ~ '' %}{% endif %}"),
    "slice": "{% set x = 'a' * 999999 %}" + LOOP.replace("ONE", "{% set y = x[1:] %}"),
    "strip": "{% set x = 'a' * 999999 %}{{ x.strip('b' * 999999 ~ 'a') }}",
    "rfind": "{% set x = 'a' * 999999 %}{{ x.rfind('b' ~ 'a' * 499999) }}",
    "sort": LOOP.replace("ONE", "{% set x = range(99999)|sort %}"),
    "map": LOOP.replace("ONE", "{% set x = range(99999)|map('string')|list %}"),
    "split": LOOP.replace("ONE", "{% set x = ('aa ' * 99999).split(' ') %}"),
    "parentheses": "{{ " + "(" * 20000 + "1" + ")" * 20000 + " }}",
    "nested loops": "{% for i in range(2) %}" * 50 + "{% endfor %}" * 50,
    "long sum": "{{ " + "+".join(["1"] * 9000) + " }}",
    "many macros": "{% macro m(a) %}{% endmacro %}" * 4000,
    "long source": "x" * 200_000,
    "digits": "{{ " + "9" * 100_000 + " }}",
    "unclosed": "{#" * 60_000,
    "syntax": "{% for x %}",
    "include": "{% include 'self' %}",
    "import": "{% import 'self' as me %}",
    "extends": "{% extends 'self' %}",
    "block": "{% block a %}{{ self.a() }}{% endblock %}",
    "autoescape": "{% autoescape true %}{% endautoescape %}",
    "class": "{{ ''.__class__.__mro__ }}",
    "class item": "{{ ''['__class__'] }}",
    "class mapped": "{{ messages|map(attribute='__class__')|list }}",
    "class attr": "{{ ''|attr('__class__') }}",
    "globals": "{{ raise_exception.__globals__ }}",
    "self": "{{ self._TemplateReference__context }}",
    "undefined": "{{ foo.bar }}",
    "undefined call": "{{ foo() }}",
    "mutation": "{{ messages.append(1) }}",
    "namespace text": "{% set a = namespace(x=1) %}{% set a.y = [a, a] %}{{ a }}",
    "refusal": "{{ raise_exception('not\nlike\nthis') }}",
}


def user(text: str = "Hi", **more) -> dict:
    """Return a user's message."""
    return {"role": "user", "content": text, **more}


def assistant(text: str = "Yes", **more) -> dict:
    """Return a model's message."""
    return {"role": "assistant", "content": text, **more}


def test_chatml():
    """A ChatML template renders to the known text, with and without the answer's start."""
    template = ChatTemplate(CHATML)
    expected = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nYes<|im_end|>\n"
    messages = [user(" Hi "), assistant()]
    assert expected == template.render(messages, add_generation_prompt=False)
    assert expected + "<|im_start|>assistant\n" == template.render(messages)


def test_llama3():
    """Slices, set, defined and strftime_now work as in transformers."""
    template = ChatTemplate(LLAMA3, bos_token="<s>")
    head, system = "<s><|start_header_id|>system<|end_header_id|>\n\nToday: ", "Be brief."
    tail = "<|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|>"
    tail += "<|start_header_id|>assistant<|end_header_id|>\n\n"
    messages = [{"role": "system", "content": system}, user()]
    expected = f"{head}1 May 2024\n{system}<|eot_id|>{tail}"
    assert expected == template.render(messages, date_string="1 May 2024")
    today = dt.datetime.now().astimezone().strftime("%d %b %Y")
    assert today in template.render([user()])


def test_mistral():
    """Alternating roles are checked by the template, whose refusal is one line."""
    template = ChatTemplate(MISTRAL, bos_token="<s>", eos_token="</s>")
    expected = "<s>[INST] Hi [/INST] Yes</s>[INST] Hi [/INST]"
    assert expected == template.render([user(), assistant(), user()])
    with pytest.raises(ModelError, match=r"roles must alternate: user, assistant$"):
        template.render([user(), user()])


def test_tools():
    """Tools, macros, namespaces, continue, tojson and generation blocks work."""
    template = ChatTemplate(TOOLS)
    tool = {"type": "function", "function": {"name": "f<é>", "parameters": {"a": [1, None]}}}
    call = {"function": {"name": "f", "arguments": {"x": 1, "y": "<"}}}
    messages = [
        {"role": "developer", "content": "no"},
        user(),
        assistant("<think>hm</think> ok", tool_calls=[call]),
    ]
    arguments = json.dumps(call["function"]["arguments"], indent=2)
    expected = f"<|im_start|>system\n<tools>\n{json.dumps(tool, ensure_ascii=False)}\n</tools>"
    expected += f"<|im_end|>\nuser:Hi|assistant:ok<call>f{arguments}x=1;y=<;1!"
    assert expected == template.render(messages, tools=[tool])


def test_long_conversations_fit_the_budget():
    """A conversation of any length can be paid for."""
    messages = [user("word " * 40), assistant("word " * 40)] * 3000
    for source in (CHATML, LLAMA3, MISTRAL, TOOLS):
        assert 1_000_000 < len(ChatTemplate(source).render(messages))


# What takes no more than a template may, and shows nothing.
HARMLESS = {
    *("loops", "many loops", "filtered loop", "long body", "data in a set", "shared dict", "power"),
    *("big int", "rfind", "many macros", "autoescape", "namespace text", "strip", "split", "map"),
    *("compare", "slice", "sort", "in range", "range", "tojson depth", "shared varargs"),
}


@pytest.fixture
def hasty(monkeypatch):
    """A fifth of a second of processor time for each template."""
    monkeypatch.setattr(chat_template, "SECONDS", 0.2)


@pytest.mark.usefixtures("hasty")
@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_template_ends_soon(name):
    """Whatever a template tries, it ends soon and small: in an error of one line, or in a text."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start = time.process_time()
    result: str | ModelError
    try:
        result = ChatTemplate(HOSTILE[name]).render([user()])
    except ModelError as error:
        result = error
    if isinstance(result, str):
        assert name in HARMLESS
        assert len(result) < 1 << 20
    else:
        assert ModelError is type(result)
        assert "\n" not in str(result)
    assert time.process_time() - start < 1
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100 * 1024


@pytest.mark.usefixtures("hasty")
def test_template_recovers():
    """Templates are usable after one that was ended, whose process took them with it."""
    endless = ChatTemplate("{% for i in range(n) %}{% for j in range(n) %}{% endfor %}{% endfor %}")
    another = ChatTemplate("{{ messages[0].content }}")
    for _ in range(2):
        with pytest.raises(
            ModelError, match=r"asks for too much: it cannot be rendered within 0\.2"
        ):
            endless.render([user()], n=99999)
        assert endless.render([user()], n=9) == ""
        assert another.render([user()]) == "Hi"


def test_a_template_sees_no_variable_of_the_environment(monkeypatch):
    """The process has no token of the user's, should a template ever get out of the sandbox."""
    monkeypatch.setenv("HF_TOKEN", "secret")
    monkeypatch.setattr(chat_template, "_renderer", renderer := chat_template._Renderer())
    assert ChatTemplate("{{ messages[0].content }}").render([user()]) == "Hi"
    environment = Path(f"/proc/{renderer._process.pid}/environ").read_bytes()
    renderer.stop()
    assert b"secret" not in environment


def test_it_runs_with_less_memory_than_it_would_take():
    """Where the machine's own limit is lower, that holds."""
    less = 300 << 20
    done = subprocess.run(
        [sys.executable, chat_template._CHILD],
        input=b'{"source": "{{ x }}"}\n{"template": 0, "variables": {"x": 3}}\n',
        capture_output=True,
        check=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (less, less)),
    )
    known, text = map(json.loads, done.stdout.splitlines())
    assert (known["names"], text) == (["x"], {"text": "3"})


def test_without_a_process(monkeypatch):
    """Where none can be started the error says so; a fork's child starts its own."""
    monkeypatch.setattr(chat_template, "_renderer", renderer := chat_template._Renderer())
    template = ChatTemplate("{{ messages[0].content }}")
    first = renderer._process
    with monkeypatch.context() as forked:
        forked.setattr(chat_template.os, "getpid", lambda: -1)
        assert template.render([user()]) == "Hi"
        assert renderer._process is not first
        renderer.stop()
    with first:
        first.kill()
    monkeypatch.setattr(chat_template.sys, "executable", "/absent/python")
    with pytest.raises(
        ModelError, match=r"renders chat templates cannot be started: .*No such file"
    ):
        template.render([user()])


def test_begun_before_it_is_asked(monkeypatch):
    """The process that was begun is the one that renders; where none can be, who asks is told."""
    monkeypatch.setattr(chat_template, "_renderer", renderer := chat_template._Renderer())
    chat_template.begin()
    first = renderer._process
    chat_template.begin()
    assert ChatTemplate("{{ messages[0].content }}").render([user()]) == "Hi"
    assert renderer._process is first is not None
    renderer.stop()
    monkeypatch.setattr(chat_template.sys, "executable", "/absent/python")
    chat_template.begin()
    with pytest.raises(ModelError, match="cannot be started"):
        ChatTemplate("{{ messages[0].content }}")


def test_a_prompt_that_is_too_long():
    """That is said of the messages, and not of a template that asks for too much."""
    template = ChatTemplate("{{ messages[0].content }}")
    with pytest.raises(UsageError, match=r"^the prompt is too long: its messages have 5000000 "):
        template.render([user("x" * 5_000_000)])
    assert len(template.render([user("x" * 4_000_000)])) == 4_000_000


@pytest.mark.parametrize("alive", [False, True], ids=["killed before", "killed amid"])
def test_a_process_that_somebody_kills(monkeypatch, alive):
    """The next text comes from another process; who asked meanwhile gets an error in words."""
    monkeypatch.setattr(chat_template, "_renderer", renderer := chat_template._Renderer())
    template = ChatTemplate("{{ messages[0].content }}")
    messages = [{"role": "user", "content": "hi" * 100_000}]
    process = renderer._process
    if alive:  # it dies of what it is told, as far as anybody can tell
        monkeypatch.setattr(process, "poll", lambda: None)
    process.kill()
    process.wait()
    if alive:
        with pytest.raises(ModelError, match="asks for too much"):
            template.render(messages)
    assert template.render(messages) == "hi" * 100_000
    renderer.stop()


def test_templates_are_told_apart():
    """Whatever is compiled twice, or cannot be, between them."""
    first = ChatTemplate("1{{ x }}")
    ChatTemplate("1{{ x }}")
    with pytest.raises(ModelError, match="cannot be compiled in line 1"):
        ChatTemplate("{% for x %}")
    second = ChatTemplate("2{{ x }}")
    assert [first.render([user()], x=3), second.render([user()], x=4)] == ["13", "24"]


def test_many_threads_share_it():
    """Each gets its own text."""
    template = ChatTemplate("{{ messages[0].content }}")
    texts = [str(n) * 1000 for n in range(64)]
    with ThreadPoolExecutor(8) as pool:
        assert texts == list(pool.map(lambda text: template.render([user(text)]), texts))


def test_undefined_is_empty():
    """As in transformers an undefined variable is false and prints as nothing."""
    template = ChatTemplate("[{{ x }}{% if x or messages[0].tool_calls %}no{% endif %}]")
    assert template.render([user()]) == "[]"


@pytest.mark.parametrize(
    "message", [{"role": "user"}, {"role": 1, "content": ""}, user(None), "user", None, [user()]]
)
def test_message_types(message):
    """A message without a role and content of type str is refused by its number."""
    with pytest.raises(TypeError, match=r"message 1 (has .* as its (role|content)|is .*; a mess)"):
        ChatTemplate(CHATML).render([user(), message])


@pytest.mark.parametrize("messages", ["hello", b"hello", None, user(), 3])
def test_messages_are_a_list(messages):
    """What is no list of messages is refused, with how to make one of a text."""
    message = r"^messages is .*; supported: a list of messages: put .*\"role\": \"user\""
    with pytest.raises(TypeError, match=message) as caught:
        ChatTemplate(CHATML).render(messages)
    assert isinstance(caught.value, UsageError)


@pytest.mark.parametrize(
    ("source", "more"),
    [
        (CHATML, ()),
        (LLAMA3, ()),
        (MISTRAL, ()),
        (TOOLS, ("developer", "tool")),
        ("{{ tools }}{% for m in messages %}{{ m.role }}{% endfor %}", ("tool",)),
        ("{% if messages[-1]['role'] in ['tool', 'ipython'] %}{% endif %}", ("ipython", "tool")),
        (
            "{% for m in messages %}{% set role = m.role %}{{ role != 'tool' }}{% endfor %}",
            ("tool",),
        ),
        ("{{ 'tool' == messages[0].role }}{{ messages[0].content == 'x' }}", ("tool",)),
        ("{{ {'role': 'x'} == messages[0] }}{{ messages[0].role == 1 }}{{ 'role' == 'y' }}", ()),
    ],
)
def test_roles(source, more):
    """System, user and assistant, and what else the template tells apart; others are refused."""
    template = ChatTemplate(source)
    assert ("system", "user", "assistant", *more) == template.roles
    for role in more:
        template.render([user(), {"role": role, "content": ""}])
    known = ", ".join(template.roles)
    for role in ("narrator", "User", "", "x" * 99):
        with pytest.raises(
            UsageError, match=f"message 1 has the role .* says nothing of; supported: {known}"
        ):
            template.render([user(), {"role": role, "content": ""}])


def test_an_unknown_role_runs_nothing():
    """It is refused before the template runs."""
    template = ChatTemplate("{{ raise_exception('run') }}")
    with pytest.raises(UsageError, match="the role 'narrator', which"):
        template.render([{"role": "narrator", "content": ""}])


def test_variables_are_json():
    """Python objects never reach a template, nor can a caller change the model's tokens."""
    template = ChatTemplate("{{ x }}")
    with pytest.raises(UsageError, match="JSON"):
        template.render([user()], x=object())
    with pytest.raises(UsageError, match="bos_token"):
        template.render([user()], bos_token="x")
