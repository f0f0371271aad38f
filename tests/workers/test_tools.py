"""Calls of tools, as models of each family write them, whole and cut anywhere."""

from __future__ import annotations

import json
import sys
import time
from functools import cached_property
from typing import Any

import numpy as np
import pytest
from small_vocabularies import sentence_piece
from tiny_model import CHATML
from tiny_model import CONTROL
from tiny_model import Tiny
from tool_templates import TEMPLATES

from propolis.errors import UsageError
from propolis_workers.llm import SamplingParams
from propolis_workers.llm.batch.engine import BatchEngine
from propolis_workers.llm.batch.engine import Request
from propolis_workers.llm.detokenizer import Detokenizer
from propolis_workers.llm.grammar import Grammars
from propolis_workers.llm.grammar import json_grammar
from propolis_workers.llm.grammar import lark_grammar
from propolis_workers.llm.prompts import Prompts
from propolis_workers.llm.schemas import listed_only
from propolis_workers.llm.tokenizer import Tokenizer
from propolis_workers.llm.tools.calls import Call
from propolis_workers.llm.tools.families import FAMILIES
from propolis_workers.llm.tools.families import Family
from propolis_workers.llm.tools.families import family_of
from propolis_workers.llm.tools.forcing import forced
from propolis_workers.llm.tools.reader import Reader
from propolis_workers.serve import messages


NAMES = ("weather", "now", "a.b-c_d")
BY_NAME = {family.name: family for family in FAMILIES}
# Hard to tell from what is around them: marks, brackets, quotes and escapes within strings.
HARD = {
    "text": 'a "quoted" \\ {[ </tool_call><tool_call> [TOOL_CALLS][ARGS] }] \n\té 🐝',
    "deep": {"list": [[], {}, [{"x": [1, -2.5e3, None, True]}]], "": ""},
}
CALLS = [Call("weather", {"city": "Zürich"}), Call("now", {}), Call("a.b-c_d", HARD)]


def written(name: str, calls: list[Call], *, ascii_only: bool = False) -> str:
    """Calls as a model of that family writes them."""

    def say(value: object) -> str:
        return json.dumps(value, ensure_ascii=ascii_only)

    def whole(call: Call, key: str = "arguments") -> str:
        return f'{{"name": {say(call.name)}, "{key}": {say(call.arguments)}}}'

    if name == "hermes":
        return "\n".join(f"<tool_call>\n{whole(one)}\n</tool_call>" for one in calls)
    if name == "mistral":
        return f"[TOOL_CALLS] [{', '.join(map(whole, calls))}]"
    if name == "mistral-args":
        return "".join(f"[TOOL_CALLS]{one.name}[ARGS]{say(one.arguments)}" for one in calls)
    return "; ".join(whole(one, "parameters") for one in calls)


def read(name: str, *pieces: str, most: int | None = None) -> list:
    """What a reader says, its texts joined where they follow each other."""
    reader = Reader(BY_NAME[name], NAMES, most=most)
    said = [one for piece in pieces for one in reader.push(piece)]
    joined: list = []
    for one in said + reader.push("", final=True):
        if isinstance(one, str) and joined and isinstance(joined[-1], str):
            joined[-1] += one
        else:
            joined.append(one)
    return joined


def read_cut_everywhere(name: str, text: str, **options) -> list:
    """As :func:`read`, which must say the same for each place of a cut, and by characters."""
    expected = read(name, text, **options)
    assert expected == read(name, *text, **options)
    for place in range(1, len(text)):
        assert expected == read(name, text[:place], text[place:], **options), text[:place]
    return expected


@pytest.mark.parametrize("ascii_only", [False, True])
@pytest.mark.parametrize("name", BY_NAME)
def test_calls_are_read(name, ascii_only):
    """All calls are read with their arguments, of a family with one call a message the first."""
    expected = CALLS[:1] if BY_NAME[name].single else CALLS
    assert expected == read_cut_everywhere(name, written(name, CALLS, ascii_only=ascii_only))
    assert [CALLS[2]] == read_cut_everywhere(name, written(name, CALLS[2:], ascii_only=ascii_only))


@pytest.mark.parametrize("name", sorted(BY_NAME.keys() - {"llama"}))
def test_text_comes_before_calls(name):
    """Text before calls is said without the space between, and what follows them without it too."""
    text = f"I look.\n\n{written(name, CALLS[:2])}\n Done. "
    assert ["I look.", *CALLS[:2], "Done. "] == read_cut_everywhere(name, text)
    assert ["I look.", CALLS[0]] == read_cut_everywhere(name, text, most=1)


def test_python_tag():
    """A Llama may say which of its answers is a call."""
    text = "Well: <|python_tag|>" + written("llama", CALLS[2:])
    assert ["Well:", CALLS[2]] == read_cut_everywhere("llama", text)


def test_call_ids():
    """An id between a name and its arguments is left out."""
    text = '[TOOL_CALLS]now[CALL_ID]abcdef123[ARGS] {"x": 1}'
    assert [Call("now", {"x": 1})] == read_cut_everywhere("mistral-args", text)


@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        ('{"name": "now"}', {}),
        ('{"name": "now", "arguments": null}', None),
        ('{"name": "now", "parameters": {"a": 1}}', {"a": 1}),
        ('{"type": "function", "function": {"name": "now", "arguments": {"a": 1}}}', {"a": 1}),
        ('{"name": "now", "arguments": "{\\"a\\": 1}"}', {"a": 1}),
        ('{"name": "now", "arguments": {"a": "two\nlines"}}', {"a": "two\nlines"}),
        ('[{"name": "now", "arguments": {"a": 1}}]', {"a": 1}),
    ],
)
def test_how_models_vary(text, arguments):
    """Small models write calls a little otherwise; what cannot be meant otherwise is taken."""
    for closing in ("</tool_call>", "\n</tool_call>", ""):
        said = read_cut_everywhere("hermes", f"<tool_call>{text}{closing}")
        if arguments is None:
            assert said == [f"<tool_call>{text}{closing}"]
        else:
            assert said == [Call("now", arguments)]


@pytest.mark.parametrize(
    "text",
    [
        "",
        " \n ",
        "plain text\n",
        "a < b, <tool, <tool_cal",
        "<tool_call>",
        "<tool_call>\n",
        "<tool_call>no JSON</tool_call> and more",
        '<tool_call>{"name": "now", "argu',
        '<tool_call>{"name": "now", "arguments": {"a": "</tool_call>',
        '<tool_call>{"name": "now", "arguments": {}} junk</tool_call>',
        '<tool_call>{"name": "now", "arguments": {}]</tool_call>',
        '<tool_call>{"name": "now", "arguments": {"a": NaN}}</tool_call>',
        '<tool_call>{"name": "now", "arguments": {"a": 1e999}}</tool_call>',
        '<tool_call>{"name": "now", "arguments": {"a": %s}}</tool_call>' % ("9" * 5000),
        '<tool_call>{"name": "now", "arguments": [1]}</tool_call>',
        '<tool_call>{"name": "now", "arguments": "x"}</tool_call>',
        '<tool_call>{"name": "other", "arguments": {}}</tool_call>',
        '<tool_call>{"name": ["now"], "arguments": {}}</tool_call>',
        '<tool_call>[{"name": "now", "arguments": {}}, 7]</tool_call>',
        "<tool_call>[]</tool_call>",
        "<tool_call>" + "[" * 200 + "]" * 200,
        '<tool_call>{"name": "now", "arguments": {"a": "\\ud83d\\u12"}}</tool_call>',
    ],
)
def test_what_is_no_call_is_text(text):
    """Nothing that a model wrote is lost, and nothing that is no call becomes one."""
    said = read_cut_everywhere("hermes", text) if len(text) < 1000 else read("hermes", *text)
    assert ([text] if text else []) == said


def test_a_call_after_what_is_none():
    """What is no call hides none that follows."""
    text = f"<tool_call>oops <tool_call>{{}}</tool_call> {written('hermes', CALLS[:1])}"
    assert ["<tool_call>oops <tool_call>{}</tool_call>", CALLS[0]] == read_cut_everywhere(
        "hermes", text
    )


@pytest.mark.parametrize(
    ("name", "text", "shown"),
    [
        ("llama", '{"answer": 42}', '{"answer": 42}'),
        ("llama", ' {"answer": 42} {"name": "now"}', ' {"answer": 42} {"name": "now"}'),
        ("llama", "<|python_tag|>print(1)", "print(1)"),
        ("llama", '{"name": "now", "par', '{"name": "now", "par'),
        ("mistral", "x [TOOL_CALLS] no", "x  no"),
        ("mistral", '[TOOL_CALLS] [{"name": "now"}, {"name": "then"}]', None),
        ("mistral-args", "[TOOL_CALLS]now\n[ARGS]{}", "now\n[ARGS]{}"),
        ("mistral-args", "[TOOL_CALLS]" + "n" * 300, "n" * 300),
        ("mistral-args", "[TOOL_CALLS]then[ARGS]{}", "then[ARGS]{}"),
    ],
)
def test_control_tokens_are_no_text(name, text, shown):
    """Marks that are control tokens are not shown where no call follows them."""
    if shown is None:
        shown = text.removeprefix("[TOOL_CALLS]")
    assert [shown] == read_cut_everywhere(name, text)


def test_half_a_surrogate():
    """A character that JSON can say and UTF-8 cannot is said as JSON says it."""
    (call,) = read("hermes", '<tool_call>{"name": "now", "arguments": {"a": "\\ud83d é"}}')
    assert call.text == '{"a": "\\ud83d \\u00e9"}'
    assert Call("now", {"a": "é"}).text == '{"a": "é"}'


@pytest.mark.parametrize("name", BY_NAME)
@pytest.mark.parametrize("unit", ["<tool_call>", '<tool_call>{"', "{", "[TOOL_CALLS]", " ", "{[}]"])
def test_time_grows_with_the_text_alone(name, unit):
    """Text made to be looked at again and again is not."""
    reader = Reader(BY_NAME[name], NAMES)
    text = unit * (60_000 // len(unit))
    started = time.process_time()
    for at in range(0, len(text), 20):
        reader.push(text[at : at + 20])
    reader.push("", final=True)
    assert time.process_time() - started < 10


@pytest.mark.parametrize(
    ("template", "name"),
    [
        (
            '{% for t in tools %}{% endfor %}<tool_call>{\\"name\\": x, \\"arguments\\": y}',
            "hermes",
        ),
        ('<tool_call>{"name": x, "arguments": y}</tool_call>', "hermes"),
        ('<tool_call><function=x> {"name", "arguments"}', None),
        ("[AVAILABLE_TOOLS] [TOOL_CALLS][", "mistral"),
        ("[TOOL_CALLS]name[ARGS]", "mistral-args"),
        ('<|start_header_id|> {"name": x, "parameters": y}', "llama"),
        ("<|im_start|>", None),
    ],
)
def test_families_are_told_apart(template, name):
    """A template shows how its model writes calls."""
    family = family_of(template)
    assert (family.name if family else None) == name


SCHEMAS = {
    "weather": {
        "type": "object",
        "properties": {"city": {"enum": ["Zürich", "Bern"]}, "days": {"$ref": "#/$defs/days"}},
        "required": ["city", "days"],
        "$defs": {"days": {"type": "integer", "minimum": 1, "maximum": 9}},
    },
    "now": None,
}


class Marked(Tiny):
    """The tiny model with marks that are control tokens."""

    marks = ("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", "<|python_tag|>", "<tool_call>", "</tool_call>")

    @cached_property
    def tokens(self) -> list[str]:
        """The vocabulary, with the marks."""
        return [*super().tokens, *self.marks]

    @cached_property
    def metadata(self) -> dict[str, Any]:
        """What the file says."""
        count = len(CONTROL) + len(self.marks)
        types = [1] * (len(self.tokens) - count) + [3] * count
        return {**super().metadata, "tokenizer.ggml.token_type": types}


def sentence_pieces(marks: tuple[str, ...]) -> Tokenizer:
    """A vocabulary that begins each run of text by a space, with marks that are control tokens."""
    metadata = sentence_piece()
    more: dict[str, list[Any]] = {
        "tokens": list(marks),
        "token_type": [3] * len(marks),
        "scores": [0.0] * len(marks),
    }
    lists = {f"tokenizer.ggml.{key}": value for key, value in more.items()}
    return Tokenizer.from_gguf(metadata | {key: metadata[key] + lists[key] for key in lists})


VOCABULARIES = {
    "spelt": lambda: Tokenizer.from_gguf(Tiny().metadata),
    "control": lambda: Tokenizer.from_gguf(Marked().metadata),
    "pieces-spelt": lambda: sentence_pieces(()),
    "pieces-control": lambda: sentence_pieces(Marked.marks),
}


@pytest.fixture(scope="module", params=VOCABULARIES)
def tokenizer(request):
    """Vocabularies of both kinds in which marks are text, and in which they are control tokens."""
    return VOCABULARIES[request.param]()


def test_json_of_a_schema(tokenizer):
    """Whatever follows the grammar of a schema is JSON that the schema allows, from its start."""
    # A text that is a control token's is that text within a string.
    wanted = {"enum": ["the then", "</s>", "<|im_end|>", " é "]}
    schema = {"type": "object", "properties": {"the": wanted}, "required": ["the"]}
    grammar = json_grammar({**schema, "additionalProperties": False})
    said = {json.loads(drawn(tokenizer, FAMILIES[0], grammar, seed))["the"] for seed in range(12)}
    assert said <= set(wanted["enum"])
    assert len(said) > 1


NUMBER, TEXT = {"type": "integer"}, {"type": "string"}
ONE_MORE = {"B": {"type": "object", "properties": {"b": TEXT}, "required": ["b"]}}


@pytest.mark.parametrize(
    ("schema", "instance"),
    [
        ({"properties": {"a": NUMBER}, "additionalProperties": NUMBER}, {"a": 1, "z": 2}),
        ({"properties": {"a": NUMBER}, "required": ["a", "z"]}, {"a": 1, "z": 2}),
        (
            {"properties": {"a": NUMBER}, "allOf": [{"$ref": "#/$defs/B"}], "$defs": ONE_MORE},
            {"a": 1, "b": "x"},
        ),
        (
            {"properties": {"a": NUMBER}, "$ref": "#/$defs/B", "$defs": ONE_MORE},
            {"a": 1, "b": "x"},
        ),
        (
            {"allOf": [{"properties": {"a": NUMBER}}, {"$ref": "#/$defs/B"}], "$defs": ONE_MORE},
            {"a": 1, "b": "x"},
        ),
        (
            {
                "properties": {"k": NUMBER},
                "anyOf": [{"properties": {"x": NUMBER}}, {"properties": {"y": TEXT}}],
            },
            {"k": 1, "y": "z"},
        ),
        ({"enum": [{"properties": {"a": 1}}]}, {"properties": {"a": 1}}),
        ({"anyOf": [{"$ref": "#/$defs/B"}, {"type": "null"}], "$defs": ONE_MORE}, {"b": "x"}),
    ],
)
def test_what_a_schema_allows_stays_allowed(tokenizer, schema, instance):
    """Properties of several parts, of which none lists all, and others where they may be."""
    constraint = Grammars(tokenizer).constraint(json_grammar(listed_only(schema)))
    zeros = np.zeros(tokenizer.vocab_size, np.float32)
    for token in tokenizer.encode(json.dumps(instance), parse_special=False, continues=True):
        assert np.isfinite(constraint.allowed(zeros)[token])
        constraint.push(token)
    assert np.isfinite(constraint.allowed(zeros)[sorted(tokenizer.eos_ids)]).any()


def test_objects_within_objects():
    """Each has what it lists: in lists, by reference, and under names that are words here."""
    inner = {"properties": {"x": {"type": "null"}}}
    shut = {**inner, "additionalProperties": False}
    other = {"$ref": "#/$defs/c"}
    properties = {"allOf": inner, "required": inner, "b": {"anyOf": [inner, other]}}
    got = listed_only({"properties": properties, "$defs": {"c": inner}})
    assert got["properties"] == {"allOf": shut, "required": shut, "b": {"anyOf": [shut, other]}}
    assert got["$defs"] == {"c": shut}
    assert got["additionalProperties"] is False
    # Parts of one object, somewhere, leave the others closed.
    parts = {"allOf": [{"type": "integer"}, {"minimum": 1}]}
    assert listed_only({"properties": {"n": parts}})["additionalProperties"] is False


def test_schemas_too_deep_to_be_followed():
    """They are an error that says so, as they are where nothing is closed."""
    deep: dict = {}
    for _ in range(sys.getrecursionlimit()):
        deep = {"properties": {"a": deep}}
    with pytest.raises(UsageError, match="nested too deeply"):
        listed_only(deep)


def drawn(tokenizer: Tokenizer, family: Family, grammar: str, seed: int) -> str:
    """A text that follows a grammar, by chance alone."""
    constraint = Grammars(tokenizer).constraint(grammar)
    marks = [tokenizer.encode(mark) for mark in family.marks]
    decoder = Detokenizer(tokenizer, shown=[ids[0] for ids in marks if len(ids) == 1])
    random, ids = np.random.default_rng(seed), []
    for _ in range(2000):
        can = np.flatnonzero(
            np.isfinite(constraint.allowed(np.zeros(tokenizer.vocab_size, np.float32)))
        )
        token = int(random.choice(can))
        if token in tokenizer.eos_ids:
            return "".join(map(decoder.push, ids)) + decoder.flush()
        ids.append(token)
        constraint.push(token)
    pytest.fail("the grammar has no end")


@pytest.mark.parametrize("most", [None, 1])
@pytest.mark.parametrize("name", BY_NAME)
def test_what_is_forced_is_read(tokenizer, name, most):
    """Whatever follows the grammar is calls of the tools, by their schemas, and nothing else."""
    family = BY_NAME[name]
    begin, grammar = forced(family, SCHEMAS, tokenizer, most=most)
    counts = set()
    for seed in range(12):
        calls = read(name, begin + drawn(tokenizer, family, grammar, seed), most=most)
        counts.add(len(calls))
        for call in calls:
            assert isinstance(call, Call), calls
            if call.name == "now":
                assert call.arguments == {}
            else:
                assert set(call.arguments) == {"city", "days"}
                assert call.arguments["city"] in ("Zürich", "Bern")
                assert call.arguments["days"] in range(1, 10)
    assert (max(counts) == 1) == (most == 1 or family.single)


@pytest.mark.parametrize(
    ("schema", "says"),
    [({"type": "array"}, "supported: object"), ({"properties": 3}, "cannot be used")],
)
def test_schemas_that_cannot_be_used(llm, schema, says):
    """What is wrong with the parameters of which tool is said."""
    with pytest.raises(UsageError, match=f"parameters of bad.*{says}"):
        forced(BY_NAME["hermes"], {"bad": schema}, llm.tokenizer)


def test_marks_that_are_control_tokens_are_shown(llm):
    """A request says which control tokens are text, over the wire too; the others are none."""
    (start,) = llm.tokenizer.encode("<|im_start|>")
    shown = {}
    for wanted in ((), (start,)):
        request = Request(
            prompt=[65],
            params=SamplingParams(),
            max_tokens=9,
            grammar=lark_grammar(f'start: "a" <[{start}]> "b"'),
            shown=wanted,
        )
        assert request == messages.request(messages.added(request))
        engine = BatchEngine(llm, context=32, most=1)
        engine.add("one", request)
        told = [one for _ in range(9) for one in engine.step()]
        shown[wanted] = told[-1].finish.text
    assert shown == {(): "ab", (start,): "a<|im_start|>b"}


TOOL_USE = TEMPLATES["hermes"]


def test_a_template_for_tools(tiny, tmp_path):
    """Files may have another template for conversations with tools; each is used for its own."""
    key = "tokenizer.chat_template.tool_use"
    found = [Tokenizer.from_gguf(tiny.metadata | {key: TOOL_USE})]
    named = [{"name": "default", "template": CHATML}, {"name": "tool_use", "template": TOOL_USE}]
    for place in ("list", "file"):
        folder = tiny.folder(tmp_path / place)
        config = folder / "tokenizer_config.json"
        if place == "list":
            told = json.loads(config.read_text()) | {"chat_template": named}
            config.write_text(json.dumps(told))
        else:
            (folder / "additional_chat_templates").mkdir()
            (folder / "additional_chat_templates/tool_use.jinja").write_text(TOOL_USE)
        found.append(Tokenizer.from_folder(folder))
    talk = [{"role": "user", "content": "hi"}]
    for tokenizer in found:
        prompts = Prompts(tmp_path / "x.gguf", tokenizer)
        assert prompts.template == CHATML
        assert prompts.family.name == "hermes"
        tool = {"type": "function", "function": {"name": "now"}}
        assert '"name": "now"' in prompts.render(talk, tools=[tool])
        assert prompts.render(talk) == prompts.render(talk, tools=[tool]).partition("}}")[2]
    plain = Prompts(tmp_path / "x.gguf", Tokenizer.from_gguf(tiny.metadata))
    with pytest.raises(UsageError, match=r"of x\.gguf takes no tools"):
        plain.family  # noqa: B018  (what it raises)
    odd = Prompts(tmp_path / "x.gguf", plain.tokenizer, "{{ tools }}")
    with pytest.raises(UsageError, match="is not read here; supported: hermes, mistral"):
        odd.family  # noqa: B018
