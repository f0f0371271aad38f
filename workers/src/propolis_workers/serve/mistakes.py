"""
Mistakes of whoever asks, in words of ours: what was given, what is supported and what to do.

A route that is not there, a body that is no JSON, and what is wrong with each of its fields.
"""

from __future__ import annotations

import difflib
import json
import math
import re
from http import HTTPStatus
from typing import TYPE_CHECKING
from typing import Any
from typing import Final

from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from propolis.errors import PropolisError
from propolis_workers.serve.jobs import OPERATIONS
from propolis_workers.serve.problems import ProblemError
from propolis_workers.serve.problems import problem_of
from propolis_workers.serve.problems import wrong_field


if TYPE_CHECKING:
    from fastapi import FastAPI
    from fastapi import Request as HttpRequest
    from fastapi import Response

    from propolis_workers.serve.image_service import ImageService
    from propolis_workers.serve.service import Service

Told = dict[str, Any]

# How pydantic names the kinds that a field may be of, where those stand among names.
_TYPE: Final = re.compile(
    r"\[(?!\]$)|^constrained-|^(Text|Refusal|Chosen|str|int|float|bool|none)$"
)
# Fields of several kinds, told apart by their type.
_TAGGED: Final = ("response_format",)
# Errors of which so many are told.
_MOST: Final = 20
_SHORT: Final = 60

# Of what has the right type.
_BOUNDS: Final = ("too_long", "greater_than", "greater_than_equal", "less_than", "less_than_equal")

# What a value may be, by pydantic's name of the mistake; {...} is of what it says besides.
_SUPPORTED: Final = {
    "bool_parsing": "true or false",
    "bool_type": "true or false",
    "dict_type": "an object",
    "finite_number": "a finite number",
    "float_parsing": "a number",
    "float_type": "a number",
    "greater_than": "more than {gt}",
    "greater_than_equal": "at least {ge}",
    "int_from_float": "an integer",
    "int_parsing": "an integer",
    "int_parsing_size": "an integer of fewer digits",
    "int_type": "an integer",
    "less_than": "less than {lt}",
    "less_than_equal": "at most {le}",
    "list_type": "a list",
    "literal_error": "{expected}",
    "model_attributes_type": "an object",
    "model_type": "an object",
    "none_required": "null",
    "string_pattern_mismatch": "texts of the form {pattern}",
    "string_too_long": "at most {max_length} characters",
    "string_too_short": "at least {min_length} characters",
    "string_type": "a text",
    "too_long": "at most {max_length} elements",
    "too_short": "at least {min_length} elements",
    "union_tag_invalid": "{expected_tags}",
    "union_tag_not_found": "an object with {discriminator}",
}


def answer(app: FastAPI, service: Service | None, images: ImageService | None) -> None:
    """
    Let an application say what is wrong with a request.

    Args:
        app: that answers.
        service: the model that writes, where there is one.
        images: the model that draws, where there is one.
    """

    async def unknown(http: HttpRequest, exc: Exception) -> Response:
        return _unknown(http, exc, writes=service is not None, draws=images is not None)

    app.add_exception_handler(PropolisError, _ours)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, unknown)


async def _ours(http: HttpRequest, exc: Exception) -> Response:
    problem = problem_of(exc) if isinstance(exc, PropolisError) else ProblemError(500, str(exc))
    body = problem.body_at(http.url.path)
    return JSONResponse(body, status_code=problem.status, headers=problem.headers)


def _unknown(http: HttpRequest, exc: Exception, *, writes: bool, draws: bool) -> Response:
    """No such route, another method, or a body that cannot be read."""
    status = exc.status_code if isinstance(exc, HTTPException) else 500
    headers = dict(exc.headers or {}) if isinstance(exc, HTTPException) else {}
    path = http.url.path[:200]
    if status == HTTPStatus.NOT_FOUND:
        msg = f"there is no {path} here; /openapi.json says what there is"
        if path.startswith("/v1/images/") and not draws:
            msg = f"{path} needs a model that draws, and none is served: start it with --images"
        elif path.startswith(("/api/", "/v1/chat", "/v1/completions", "/v1/emb")) and not writes:
            msg = f"{path} needs a model that writes, and none is served: start it with --model"
        problem = ProblemError(status, msg, code="not_found")
    elif status == HTTPStatus.METHOD_NOT_ALLOWED:
        msg = f"{path} is not for {http.method}; supported: {headers.get('Allow', 'another')}"
        problem = ProblemError(status, msg, code="method_not_allowed")
    elif isinstance(exc.__cause__, ValueError) and "digits" in str(exc.__cause__):
        msg = "the body has a number of too many digits: send fewer"
        problem = ProblemError(status, msg, code="too_long_a_number")
        problem.errors = [wrong_field("", "too_long_a_number", msg)]
    elif isinstance(exc.__cause__, RecursionError):
        msg = "the body is nested too deeply: send fewer objects and lists within each other"
        problem = ProblemError(status, msg, code="too_deep")
        problem.errors = [wrong_field("", "too_deep", msg)]
    else:
        problem = ProblemError(status, str(exc.detail) if isinstance(exc, HTTPException) else "")
    return JSONResponse(problem.body_at(path), status_code=status, headers=headers)


async def _invalid(http: HttpRequest, exc: Exception) -> Response:
    """What is wrong with a body, field by field; in the ancestor's words too."""
    found = list(exc.errors() if isinstance(exc, RequestValidationError) else [])[:_MOST]
    told = [_finite(one) for one in found]
    found = _causes(told)
    kept = {_field(one) for one in found}
    types = [o for o in told if o["type"] == "literal_error" and _field(o) not in kept]
    errors = [_wrong(one, [*found, *types], http) for one in found]
    fields = [one["field"] for one in errors]  # the first of each tells all that it may be
    errors = [one for i, one in enumerate(errors) if one["field"] not in fields[:i]]
    headline = _headline(errors, found, http)
    if errors and not errors[0]["field"]:  # of the body itself there is one thing to say
        errors = [wrong_field("", errors[0]["constraint"], headline)]
    problem = ProblemError(400, headline)
    problem.param = errors[0]["field"] or None if errors else None
    problem.errors = errors
    return JSONResponse(problem.body_at(http.url.path), status_code=400)


def _finite(one: Told) -> Told:
    """A mistake; of NaN not that it is beyond a bound, which no number would mend."""
    given = one.get("input")
    nan = isinstance(given, float) and math.isnan(given)
    return {**one, "type": "finite_number"} if nan and one["type"] in _BOUNDS else one


def _causes(found: list[Told]) -> list[Told]:
    """
    Mistakes without those that follow from others.

    Of a field that may be several things, each of these complains of all that it is not.
    """
    # A list that is too long is one, and a number beyond a bound, whatever else the field may be.
    bound = {_field(one) for one in found if one["type"] in _BOUNDS}
    found = [
        one
        for one in found
        if one["type"] in _BOUNDS
        or not any(f"{_field(one)}.".startswith(f"{field}.") for field in bound)
    ]
    found = _of_the_kind_meant(found)
    fields = [_field(one) for one in found]
    wrong_types = {
        field.removesuffix(".type")
        for field, one in zip(fields, found, strict=True)
        if field.endswith(".type") and one["type"] == "literal_error"
    }

    def follows(field: str) -> bool:
        """Whether something within it is wrong, or it is beside a type that is."""
        parent, _, name = field.rpartition(".")
        within = any(other.startswith(f"{field}.") for other in fields)
        return bool(field) and (within or (parent in wrong_types and name != "type"))

    kept = [one for field, one in zip(fields, found, strict=True) if not follows(field)]
    return kept or found


def _of_the_kind_meant(found: list[Told]) -> list[Told]:
    """Of what may be of several kinds, each with its type, not what is wrong with the others."""
    places = [tuple(one["loc"]) for one in found]
    other = {
        place[:-1]
        for place, one in zip(places, found, strict=True)
        if place[-1:] == ("type",) and one["type"] == "literal_error"
    }
    several = {kind[:-1] for kind in other}
    meant = {
        place[:depth]
        for place in places
        for depth in range(len(place))
        if place[:depth] in several and place[: depth + 1] not in other
    }
    return [
        one
        for place, one in zip(places, found, strict=True)
        if not any(place[: len(kind)] == kind and kind[:-1] in meant for kind in other)
    ]


def _headline(errors: list[Told], found: list[Told], http: HttpRequest) -> str:
    """What is wrong, in one line."""
    if not found:
        return "the body is not valid"
    if found[0]["type"] == "json_invalid":
        said = found[0].get("ctx", {}).get("error", "it ends too early")
        return f"the body is not JSON: {said}, at {found[0]['loc'][-1]}"
    if tuple(found[0]["loc"]) == ("body",):
        kind = http.headers.get("content-type", "").partition(";")[0][:100]
        if kind and not kind.endswith("json"):
            return f"the body is of the type {kind}; send JSON, with Content-Type: application/json"
        if found[0]["type"] == "missing":
            return "there is no body: send JSON, with Content-Type: application/json"
        if not kind:
            return "the body is of no type; send JSON, with Content-Type: application/json"
    return str(errors[0]["message"])


def _wrong(one: Told, found: list[Told], http: HttpRequest) -> Told:
    """One mistake, as it is told."""
    field, kind = _field(one), one["type"]
    if kind == "operation" and field:
        one = {**one, "input": one["input"].get("operation")}
    given = None if kind == "missing" else one.get("input")
    return wrong_field(field, kind, _message(one, field, found, http), given)


def _message(one: Told, field: str, found: list[Told], http: HttpRequest) -> str:
    """What was given, what is supported and what to do."""
    kind, name = one["type"], field or "the body"
    if kind == "missing" and one["msg"] == "Field required":
        return f"{name} is missing: give it"
    if kind == "extra_forbidden":
        known = [] if "." in field or len(field) > _SHORT else _fields(http)
        near = difflib.get_close_matches(field, known, 1, cutoff=0.8)
        return f"{name} is not supported here: " + (
            f"did you mean {near[0]}?" if near else "leave it out"
        )
    if kind == "operation":
        supported = ", ".join(OPERATIONS) if field else "an object"
        return f"{name} {_given(one)}; supported: {supported}"
    if kind == "union_tag_not_found":
        return f"{name}.{_plain(one, 'discriminator')} is missing: give it"
    if kind not in _SUPPORTED:
        said = str(one["msg"])  # words of ours, or of a validator
        return said if said.startswith((name, "a message of")) or not field else f"{name}: {said}"
    # Of a field that may be several things, each of them: an object by its type, where it has one.
    same = [other for other in found if _field(other) == field and other["type"] in _SUPPORTED]
    kinds = dict.fromkeys(_supported(other) for other in same)
    typed = (other for other in found if field and _field(other) == f"{field}.type")
    kinds |= dict.fromkeys(f"an object of the type {_supported(other)}" for other in typed)
    if len(kinds) > 1:
        kinds = dict.fromkeys(map(_of_what, kinds))
    if kind == "union_tag_invalid":
        name, given = f"{name}.{_plain(one, 'discriminator')}", f"is {one['ctx']['tag']!r:.60}"
    else:
        given = _given(one)
    return f"{name} {given}; supported: {_listed(list(kinds))}"


def _listed(kinds: list[str]) -> str:
    """
    Kinds in a sentence.

    >>> _listed(["a text", "a number", "a list"])
    'a text, a number or a list'
    >>> _listed(["'none' or 'auto'", "an object"])
    "'none' or 'auto', or an object"
    """
    last = f"{',' if any(' or ' in kind for kind in kinds) else ''} or {kinds[-1]}"
    return ", ".join(kinds[:-1]) + last if len(kinds) > 1 else kinds[0]


def _supported(one: Told) -> str:
    context = {key: str(value)[:300] for key, value in one.get("ctx", {}).items()}
    said = _SUPPORTED[one["type"]].format_map(context)
    return said.removesuffix("s") if " 1 " in said else said


def _of_what(bounds: str) -> str:
    """Bounds beside other kinds of values say what they are of."""
    if not bounds.startswith("at "):
        return bounds
    what = (
        "a list of "
        if "element" in bounds
        else "a text of "
        if "character" in bounds
        else "a number, "
    )
    return what + bounds


def _plain(one: Told, key: str) -> str:
    return str(one["ctx"][key]).strip("'")


def _given(one: Told) -> str:
    """What a field has, as far as that is short."""
    value = one.get("input")
    if one["type"] in ("string_too_long", "string_too_short", "too_long", "too_short"):
        what = "characters" if isinstance(value, str) else "elements"
        return f"has {len(value or '')} {what}"
    if isinstance(value, dict | list):
        return "is an object" if isinstance(value, dict) else "is a list"
    if isinstance(value, str | int | float | None):
        told = json.dumps(value, ensure_ascii=False)
        return f"is {told}" if len(told) <= _SHORT else f"is {told[:_SHORT]}..."
    return f"is a {type(value).__name__}"


def _fields(http: HttpRequest) -> list[str]:
    """The fields of the body that a route takes."""
    body = getattr(http.scope.get("route"), "body_field", None)
    fields = getattr(getattr(body, "field_info", None), "annotation", None)
    return list(getattr(fields, "model_fields", ()))


def _field(wrong: Told) -> str:
    """The name of a field, with dots; pydantic's names of types beside it left out."""
    if wrong["type"] == "json_invalid":
        return ""
    if wrong["type"] == "operation":  # of a body that names one
        return "operation" if isinstance(wrong["input"], dict) else ""
    loc = tuple(wrong["loc"])[1:]  # it begins with the body
    if loc and loc[0] in OPERATIONS:  # the kind of a job, and a name only where nobody has it
        loc = loc[1:] or (loc if wrong["type"] == "extra_forbidden" else ())
    # Of one of several kinds, its kind stands behind its name.
    parts = [
        part
        for part, before in zip(loc, ("", *loc), strict=False)
        if before not in _TAGGED and not _TYPE.search(str(part))
    ]
    if wrong["type"] == "extra_forbidden":  # whoever sent it named it, by whatever name
        parts = [*parts, *loc[-1:]] if parts[-1:] != list(loc[-1:]) else parts
    return ".".join(map(str, parts))


__all__ = ["answer"]
