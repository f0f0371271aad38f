"""JSON schemas as grammars are made of them."""

import json
import sys
import time

import pytest
from patience import patience


pytest.importorskip("llguidance")

from propolis.errors import UsageError
from propolis_workers.llm.grammar import json_grammar
from propolis_workers.llm.grammar import lark_grammar
from propolis_workers.llm.schemas import listed_only


def _within(schema):
    """A schema of an object whose property ``a`` has another one's property ``b``."""
    inner = {"type": "object", "properties": {"b": schema}}
    return {"type": "object", "properties": {"a": inner}}


@pytest.mark.parametrize(
    ("schema", "says"),
    [
        ({"type": "array", "uniqueItems": True}, "'uniqueItems' cannot be followed: leave it out"),
        ({"not": {"type": "string"}}, "'not' cannot be followed: leave it out"),
        ({"type": "strin"}, "type is 'strin'; supported: array, boolean"),
        ({"type": "string", "pattern": "("}, "its pattern '(' is no regular expression here"),
        ({"type": "string", "pattern": "(?=a)b"}, "look-around"),
        ({"$ref": "#/nope"}, "$ref is '#/nope', where nothing is; supported: places in the schema"),
        ({"$ref": "http://x/y"}, "$ref is 'http://x/y', where nothing is"),
        ({"type": "integer", "minimum": "x"}, 'minimum is "x"; supported: a number'),
        ({"type": "integer", "minimum": -(2**64)}, f"{-(2**64)} takes more than 64 bits"),
        ({"type": "string", "minLength": -3}, "minLength is -3; supported: a number from 0 on"),
        ({"type": "string", "maxLength": 10**10}, "maxLength is 10000000000: too many"),
        ({"type": "integer", "multipleOf": 0}, "multipleOf is 0; supported: numbers above 0"),
        (
            {"type": "integer", "multipleOf": 999999937},
            "multipleOf is 999999937; supported: up to 10000, and powers of ten",
        ),
        ({"type": "number", "minimum": -1e30}, "its bounds are {'minimum': -1e+30}; supported:"),
    ],
)
def test_what_is_wrong_with_a_schema_is_said_with_its_place(schema, says):
    """A schema that cannot be followed is refused by what is wrong, where, and what to do."""
    with pytest.raises(UsageError) as caught:
        json_grammar(_within(schema))
    assert "the JSON schema cannot be used: at /properties/a/properties/b: " in str(caught.value)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "integer", "multipleOf": 9999991},
        {"type": "number", "multipleOf": 0.9999991},
        {"type": "integer", "multipleOf": 10**400 + 1},
        {"anyOf": [{"type": "integer", "multipleOf": n} for n in (1999, 1997, 1993)]},
        {"properties": {f"p{n}": {"type": "integer", "multipleOf": n} for n in range(9900, 9930)}},
        {"properties": {"a": {"$ref": "#/default"}}, "default": {"multipleOf": 59999}},
        {"x": [[{"multipleOf": 59999}]], "properties": {"a": {"$ref": "#/x/0/0"}}},
        {"$defs": {"x": {"multipleOf": 97}}, "multipleOf": 991, "$ref": "#/$defs/x"},
        {"allOf": [{"type": "integer", "multipleOf": 1000000}, {"multipleOf": 997}]},
        {"allOf": [{"type": "integer", "multipleOf": 9973}, {"multipleOf": 9967}]},
        {
            "type": "object",
            "properties": {"a": {"type": "integer", "multipleOf": 9973}},
            "patternProperties": {"^a": {"multipleOf": 9967}},
        },
    ],
)
def test_multiples_that_take_long_are_refused_soon(schema):
    """A request cannot keep the server busy: automata have a state for each remainder."""
    started = time.monotonic()
    with pytest.raises(UsageError, match="multiple"):
        json_grammar(_within(schema))
    with pytest.raises(UsageError, match="multiple"):
        lark_grammar(f"start: %json {json.dumps(schema)}")
    assert time.monotonic() - started < patience(1)


@pytest.mark.parametrize("number", [1, 7, 0.01, 2.5, 9999, 1e-9, 1_000_000, 10**9])
def test_multiples_that_are_told_soon(number):
    """Numbers up to ten thousand, parts of tens and powers of ten can be followed, apart too."""
    schema = {"type": "number", "multipleOf": number}
    assert json_grammar(_within(schema))
    several = {"a": schema, "b": {"type": "integer", "multipleOf": 9973}}
    assert json_grammar({"type": "object", "properties": several})
    either = f"%json {json.dumps(schema)} | %json {json.dumps(several['b'])}"
    assert lark_grammar(f"start: {either}", checked=True)
    note = {"anyOf": [{"type": "integer"}, {"type": "null"}], "title": "C"}
    assert json_grammar({"type": "object", "properties": several | {"c": note}})


@pytest.mark.parametrize("bound", [{"minimum": 10**400}, {"maximum": -sys.float_info.max}])
def test_bounds_beyond_all_numbers(bound):
    """Bounds that nothing satisfies are not left out, as those are that everything does."""
    with pytest.raises(UsageError):
        json_grammar(_within({"type": "integer", **bound}))


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "integer", "minimum": -(2**63), "maximum": 2**63 - 1},
        {"type": "integer", "minimum": 0, "maximum": 2**64 - 1},
        {"type": "integer", "exclusiveMinimum": -(2**63)},
        {"type": "number", "minimum": -sys.float_info.max, "maximum": sys.float_info.max},
    ],
)
def test_bounds_of_types_of_64_bits(schema):
    """What writers of schemas say of their types' ends is followed."""
    assert json_grammar(_within(schema))


def test_a_schema_that_allows_nothing():
    """What no answer can be is refused, with the reason."""
    with pytest.raises(UsageError, match=r"nothing that it allows: minLength \(5\) is greater"):
        json_grammar({"type": "string", "minLength": 5, "maxLength": 2})


def test_what_is_wrong_where_others_refer_to():
    """Of a definition the definition is named, and not what refers to it."""
    schema = {
        "type": "object",
        "properties": {"x": {"$ref": "#/$defs/q"}},
        "$defs": {"q": {"type": "array", "contains": {}}},
    }
    with pytest.raises(UsageError, match=r"at /\$defs/q: 'contains'"):
        json_grammar(schema)
    reversed_ = dict(reversed(schema.items()))
    with pytest.raises(UsageError, match=r"at /\$defs/q: 'contains'"):
        json_grammar(reversed_)


def test_a_large_schema_is_refused_soon():
    """What is wrong in a schema of thousands of parts is looked for in some of them."""
    many = {f"p{n}": {"type": "string", "maxLength": 9} for n in range(20000)}
    started = time.monotonic()
    with pytest.raises(UsageError, match="uniqueItems"):
        json_grammar({"type": "object", "uniqueItems": True, "properties": many})
    assert time.monotonic() - started < patience(30)


def test_a_schema_of_many_definitions_is_refused_soon():
    """Each part of it takes as long as all of it, so that not all are tried."""
    many = {f"d{n}": {"enum": [f"{n} {k}" for k in range(20)]} for n in range(1000)}
    parts = {f"p{n}": {"$ref": f"#/$defs/d{n}"} for n in range(500)}
    schema = {"$defs": many, "type": "object", "properties": parts | {"z": {"not": {}}}}
    started = time.monotonic()
    with pytest.raises(UsageError, match="'not' cannot be followed"):
        json_grammar(schema)
    assert time.monotonic() - started < patience(10)


def test_places_are_json_pointers():
    """What has a meaning in a pointer is escaped."""
    with pytest.raises(UsageError, match="at /properties/a~1b~0c: 'not'"):
        json_grammar({"type": "object", "properties": {"a/b~c": {"not": {}}}})


def test_a_list_of_nothing():
    """``required`` may be null, as Go writes it, and nothing else that is no list."""
    schema = {"type": "object", "properties": {"a": {}}}
    assert json_grammar(listed_only(schema | {"required": None})) == json_grammar(
        listed_only(schema)
    )
    for wrong in (3, "a"):
        with pytest.raises(UsageError, match="cannot be used"):
            json_grammar(listed_only(schema | {"required": wrong}))


def test_formats_leave_nothing_behind():
    """However long and many they are, no format is kept, or tried."""
    many = {f"p{n}": {"type": "string", "format": f"f{n}" * 100} for n in range(2000)}
    started = time.monotonic()
    json_grammar({"type": "object", "properties": many, "required": list(many)})
    assert time.monotonic() - started < patience(20)


@pytest.mark.parametrize("name", ["password", "path", "my-own", "int32"])
def test_formats_that_nobody_checks_are_notes(name):
    """A format that no grammar is known for changes nothing, as JSON Schema has it."""
    plain, told = {"type": "string"}, {"type": "string", "format": name}
    assert json_grammar(_within(told)) == json_grammar(_within(plain))


def test_formats_that_are_checked_are_followed():
    """Of the formats that JSON Schema defines, the answer has that form."""
    plain, told = {"type": "string"}, {"type": "string", "format": "date-time"}
    assert json_grammar(_within(told)) != json_grammar(_within(plain))


def test_what_is_called_format_is_no_format():
    """Properties, values and definitions of that name stay."""
    for kept in ({"properties": {"format": {"const": "x"}}}, {"const": {"format": "zip"}}):
        assert '"format"' in json_grammar(kept).replace("\\", "")


def test_one_of_several_is_any_of_them():
    """``oneOf`` of schemas that allow the same is followed as ``anyOf``."""
    parts = [{"type": "string"}, {"type": "string", "minLength": 2}]
    grammar = json.loads(json_grammar({"oneOf": parts}))
    assert grammar
    with pytest.raises(UsageError, match=r"at /oneOf/1: 'not'"):
        json_grammar({"oneOf": [{"type": "string"}, {"not": {}}]})


@pytest.mark.parametrize(
    "schema", [{"$ref": "#"}, {"$defs": {"a": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}], ids=str
)
def test_a_schema_without_an_end(schema):
    """One that is only itself again is refused before anything is drawn."""
    with pytest.raises(UsageError, match="nothing that it allows: it has no beginning"):
        json_grammar(schema)


def test_a_schema_that_comes_to_itself():
    """One that may end, as of a tree, is followed."""
    tree = {"type": "object", "properties": {"next": {"anyOf": [{"type": "null"}, {"$ref": "#"}]}}}
    assert json_grammar(tree)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("start: start", "nothing that it allows"),
        ('root ::= "a"', "GBNF: write it in the syntax of Lark"),
        ("start: foo", 'line 1, column 8: unknown name: "foo"'),
        ("start: /(/", "unclosed group"),
        ("x", "line 1"),
    ],
)
def test_what_is_wrong_with_a_grammar_is_one_line(text, says):
    """A grammar that cannot be read is refused with the line and the column."""
    with pytest.raises(UsageError) as caught:
        lark_grammar(text)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)
