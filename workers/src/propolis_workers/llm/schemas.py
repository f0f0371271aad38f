"""
JSON schemas as grammars are made of them: what they close, what is read in them, and what is wrong
with one, where.
"""

from __future__ import annotations

import math
import re
import sys
import time
from fractions import Fraction
from itertools import islice
from typing import TYPE_CHECKING
from typing import Any
from typing import Final

from propolis.errors import UsageError


if TYPE_CHECKING:
    from collections.abc import Callable
    from collections.abc import Iterator

# What else an object may have, where a schema says it.
_MORE: Final = frozenset({"additionalProperties", "unevaluatedProperties", "patternProperties"})
# Schemas that hold for the same object as the one that has them.
_ALSO: Final = frozenset({"allOf", "anyOf", "oneOf", "$ref"})
# Those of which several may hold for one number at once.
_JOINING: Final = frozenset({"allOf", "anyOf", "oneOf", "patternProperties"})
# Names that lead to schemas, and what holds none.
_DEFINITIONS: Final = frozenset({"$defs", "definitions"})
_NAMED: Final = frozenset({"properties", "patternProperties", "dependentSchemas"}) | _DEFINITIONS
_NO_SCHEMAS: Final = frozenset({"enum", "const", "default", "examples", "required"})
# Schemas within one that are looked at for what is wrong, and seconds for which: each may take as
# long as all of them.
_LOOKED_AT: Final = 500
_LOOKING: Final = 0.5
# Whose multiples are told by as many states of an automaton; compiling is quadratic in them.
_MULTIPLES: Final = 10_000
_LEAST: Final = frozenset({"minimum", "exclusiveMinimum"})
_BOUNDS: Final = _LEAST | {"maximum", "exclusiveMaximum"}
# The least whole number of 64 bits, and about the least that can be followed: nobody means one
# that lies between.
_LEAST_OF_64: Final = -(2**63)
_FOLLOWED: Final = _LEAST_OF_64 + 2048
_TYPES: Final = "array, boolean, integer, null, number, object, string"


def listed_only(schema: dict[str, Any]) -> dict[str, Any]:
    """
    A schema whose objects have what it lists and nothing else, as llama.cpp reads schemas.

    JSON Schema allows any others where nothing says otherwise, and a small model goes on with them
    without an end. An object stays open where the schema says what else it may have, where one is
    required that is not listed, and where several parts list its properties: none of them has all.

    >>> listed_only({"type": "array", "items": {"properties": {"a": {"type": "null"}}}})["items"]
    {'properties': {'a': {'type': 'null'}}, 'additionalProperties': False}

    Raises:
        UsageError: it is nested too deeply.
    """
    try:
        return _closed(schema, parts=any(_in_parts(one) for _, one in _each(schema)))
    except RecursionError as exc:
        msg = "the JSON schema cannot be used: it is nested too deeply"
        raise UsageError(msg) from exc


def _in_parts(schema: dict[str, Any]) -> bool:
    """Whether several parts say what one object has."""
    parts = schema.keys() & _ALSO
    own = schema.keys() & (_MORE | {"properties", "required"})
    several = isinstance(all_of := schema.get("allOf"), list) and len(all_of) > 1
    return bool(parts) and (len(parts) > 1 or bool(own) or several)


def _each(schema: dict[str, Any], place: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """All schemas within one and their places in it as JSON pointers, itself first."""
    yield place, schema
    for key, value in schema.items():
        own = f"{place}/{_escaped(key)}"
        within: list[tuple[str, Any]] = []
        if key in _NAMED and isinstance(value, dict):
            within = [(f"{own}/{_escaped(name)}", one) for name, one in value.items()]
        elif key not in _NO_SCHEMAS:
            listed = isinstance(value, list)
            within = (
                [(f"{own}/{n}", one) for n, one in enumerate(value)] if listed else [(own, value)]
            )
        for where, one in within:
            if isinstance(one, dict):
                yield from _each(one, where)


def _escaped(key: str) -> str:
    """A key as a JSON pointer has it (RFC 6901)."""
    return key.replace("~", "~0").replace("/", "~1")


def _closed(schema: dict[str, Any], *, parts: bool) -> dict[str, Any]:
    """
    A schema whose objects are closed.

    Args:
        schema: of anything.
        parts: whether what is referred to may be one of several parts of an object.
    """
    parted = _in_parts(schema)
    kept = _NO_SCHEMAS | (_DEFINITIONS if parts else set()) | (_ALSO if parted else set())

    def closed(key: str, value: Any) -> Any:
        if key in kept:
            return value
        if key in _NAMED and isinstance(value, dict):
            return {name: closed("", one) for name, one in value.items()}
        if isinstance(value, list):
            return [closed("", one) for one in value]
        return _closed(value, parts=parts) if isinstance(value, dict) else value

    told = {key: closed(key, value) for key, value in schema.items()}
    listed, wanted = schema.get("properties"), schema.get("required")
    wanted = wanted if isinstance(wanted, list) else []  # what else it is, is refused elsewhere
    open_ = parted or not schema.keys().isdisjoint(_MORE)
    if isinstance(listed, dict) and not open_ and set(map(str, wanted)) <= listed.keys():
        told["additionalProperties"] = False
    return told


def readable(schema: dict[str, Any], known: Callable[[str], bool]) -> dict[str, Any]:
    """
    A schema without formats that no grammar is known for, and bounds that bound nothing.

    JSON Schema means a format as a note to the reader where nobody checks it, and lets anyone
    make up others, such as ``password``.  Types of 64 bits are written with the least and the
    largest number that they have.

    Args:
        schema: of anything.
        known: whether there is a grammar for a format.
    """

    def read(key: str, value: Any) -> Any:
        if key in _NO_SCHEMAS:
            return value
        if key in _NAMED and isinstance(value, dict):
            return {name: read("", one) for name, one in value.items()}
        if isinstance(value, list):
            return [read("", one) for one in value]
        return readable(value, known) if isinstance(value, dict) else value

    name = schema.get("format")
    told = {key: read(key, value) for key, value in schema.items()}
    if isinstance(name, str) and not known(name):
        del told["format"]
    for key in _BOUNDS & told.keys():
        bound = told[key]
        if not isinstance(bound, int | float):
            continue
        if (-bound if key in _LEAST else bound) >= sys.float_info.max:
            del told[key]
        elif key in _LEAST and _LEAST_OF_64 <= bound < _FOLLOWED:
            told[key] = _FOLLOWED
    if told.get("required", []) is None:  # as Go writes a list of nothing
        del told["required"]
    return told


def check_multiples(schema: dict[str, Any]) -> None:
    """
    Check that multiples can be told in little time, of several numbers at once too.

    Raises:
        ValueError: they cannot.
    """
    numbers, _, joined = _multiples(schema)
    if joined:
        _expect_few(numbers)
    if sum(one for one in numbers if not _is_power_of_ten(one)) > 2 * _MULTIPLES:
        few = ", ".join(map(str, sorted(numbers, reverse=True)[:4]))
        msg = f"multipleOf has {len(numbers)} values, as {few}, which are too many to be told: "
        raise ValueError(msg + f"supported: up to {2 * _MULTIPLES} together")


def _multiples(value: Any) -> tuple[set[int], bool, bool]:
    """
    What multiples within a value are of, whatever their keys: any place can be referred to.

    Returns:
        The numbers, in units of a decimal place; whether anything is referred to; and whether
        that is done where several schemas hold for one number, so that it may be of any of them.
    """
    if not isinstance(value, dict | list):
        return set(), False, False
    within = value.values() if isinstance(value, dict) else value
    numbers, refers, joined = set(), False, False
    for own, other, beside in map(_multiples, within):
        numbers |= own
        refers |= other
        joined |= beside
    if isinstance(value, dict):
        numbers |= _own_multiple(value)
        refers |= isinstance(value.get("$ref"), str)
        if _joins(value):
            _expect_few(numbers)
            joined |= refers
    return numbers, refers, joined


def _own_multiple(schema: dict[str, Any]) -> set[int]:
    """
    What a schema's multiples are of, in units of a decimal place.

    Raises:
        ValueError: it is too large to be told.
    """
    number = schema.get("multipleOf")
    if not isinstance(number, int | float) or isinstance(number, bool) or not number:
        return set()
    if isinstance(number, float) and not math.isfinite(number):
        return set()
    parts = abs(Fraction(str(number))).numerator
    if parts > _MULTIPLES and not _is_power_of_ten(parts):
        msg = f"multipleOf is {number}; supported: up to {_MULTIPLES}, and powers of ten"
        raise ValueError(msg)
    return {parts}


def _joins(schema: dict[str, Any]) -> bool:
    """Whether one number may have to be told by several of the schemas within a schema."""
    return not schema.keys().isdisjoint(_JOINING) or ("$ref" in schema and len(schema) > 1)


def _expect_few(numbers: set[int]) -> None:
    told = math.lcm(*numbers)
    if told > _MULTIPLES and not _is_power_of_ten(told):
        few = ", ".join(map(str, sorted(numbers, reverse=True)[:4]))
        msg = (
            f"multiples of {few} may be wanted of one number: supported are those whose least "
            f"common multiple is up to {_MULTIPLES}; leave one out"
        )
        raise ValueError(msg)


def _is_power_of_ten(number: int) -> bool:
    return str(number).rstrip("0") == "1"


def refused(schema: dict[str, Any], said: str, compiles: Callable[[dict[str, Any]], str]) -> str:
    """
    Why a schema cannot be used: the place in it, what is there, and what to do.

    Args:
        schema: that cannot be used.
        said: what the library said of it.
        compiles: what it says of another one; nothing where that can be used.
    """
    beside = {key: schema[key] for key in _DEFINITIONS & schema.keys()}
    place, found = "", schema
    looked = list(islice(_each(schema), _LOOKED_AT))
    end = time.monotonic() + _LOOKING
    for where, one in reversed(looked[1:]):  # the innermost first
        if time.monotonic() > end:
            break
        to = str(one.get("$ref", ""))
        elsewhere = to.startswith("#") and repr(to[1:]) not in said  # it is wrong there
        if not elsewhere and compiles({**beside, **one}) == said:
            place, found = where, one
            break
    at = f"at {place}: " if place else ""
    return f"the JSON schema cannot be used: {at}{_said(found, said)}"


def _said(found: dict[str, Any], said: str) -> str:
    """What is wrong with the schema at fault, in words of ours."""
    if keys := re.match(r"Unimplemented keys: \[(.*)\]", said):
        names = keys[1].replace('"', "'")
        return f"{names} cannot be followed: leave it out, and check answers for it"
    if kind := re.match("Invalid type: (.*)", said):
        return f"type is {kind[1][:50]!r}; supported: {_TYPES}"
    if why := re.match("Unsatisfiable schema: (.*)", said):
        return f"there is nothing that it allows: {why[1][:300]}"
    if number := re.match("Expected (?:f64|positive integer) for '(.*)', got (.*)", said):
        least = " from 0 on" if "positive" in said else ""
        return f"{number[1]} is {number[2][:50]}; supported: a number{least}"
    if said == "invalid multiple of":
        return f"multipleOf is {found.get('multipleOf')}; supported: numbers above 0"
    if said.startswith("Failed to generate regex for"):
        bounds = {key: found[key] for key in sorted(_BOUNDS & found.keys())}
        return (
            f"its bounds are {bounds}; supported: whole numbers of 64 bits, others up to 9e18: "
            "leave out what is further"
        )
    for key in ("maxLength", "minLength"):
        if key in found and "regex parse error" in said and "pattern" not in found:
            return f"{key} is {found[key]}: too many to be counted; leave it out"
    if "pattern" in found and "regex parse error" in said:
        why = re.search("error: (.*)", said)
        told = f": {why[1][:200]}" if why else ""
        return f"its pattern {str(found['pattern'])[:100]!r} is no regular expression here{told}"
    if "$ref" in found and re.match("Pointer|Resource", said):
        names = f"$ref is {str(found['$ref'])[:100]!r}"
        return f"{names}, where nothing is; supported: places in the schema, as '#/$defs/name'"
    return " ".join(said.split())[:300]


__all__ = ["check_multiples", "listed_only", "readable", "refused"]
