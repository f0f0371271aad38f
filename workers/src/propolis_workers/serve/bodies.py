"""
What a body of JSON may be, before its fields are looked at.

To say what is wrong with a million fields takes seconds, for which nobody else is answered.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING
from typing import Annotated
from typing import Any
from typing import Final

from fastapi import Response
from fastapi.routing import APIRoute
from pydantic import AfterValidator
from pydantic import BaseModel
from pydantic import Field
from pydantic import model_validator
from pydantic_core import PydanticCustomError
from starlette.requests import ClientDisconnect

from propolis_workers import events
from propolis_workers.serve.gate import REQUEST
from propolis_workers.serve.problems import ProblemError


if TYPE_CHECKING:
    from collections.abc import Callable
    from collections.abc import Coroutine

    from fastapi import Request

TopP = Annotated[float, Field(ge=0, le=1), AfterValidator(lambda share: max(share, 1e-9))]
"""What the likeliest tokens have to reach; by 0, which clients send for it, the likeliest alone."""

MOST_VALUES: Final = 1 << 18
"""Of a body: a prompt may be given by its tokens."""

MOST_FIELDS: Final = 64
"""Of an object of which each field is known."""

# Bytes of a body that are logged, where that was asked for: images are long.
_SHOWN: Final = 1 << 16

# Possessive, and to the end where a string has none: what is matched is never looked at again.
_STRING: Final = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL)
_HALF: Final = re.compile(rb"\\u[dD][89a-fA-F]")


class Body(BaseModel):
    """
    An object of which each field is known.  Null counts as not given: clients say so.

    Its lists are ``Field(fail_fast=True)``: refused for their first element that is wrong.
    """

    @model_validator(mode="before")
    @classmethod
    def _expect_few(cls, given: Any) -> Any:
        if isinstance(given, dict) and len(given) > MOST_FIELDS:
            kind = "too_many_fields"
            msg = "{count} fields are more than there are"
            raise PydanticCustomError(kind, msg, {"count": len(given)})
        if isinstance(given, dict):
            needed = {name for name, field in cls.model_fields.items() if field.is_required()}
            return {name: v for name, v in given.items() if v is not None or name in needed}
        return given


def expect_content(role: str, content: object) -> None:
    """
    Check that a message says something: only who answers may not, as where he calls tools.

    Raises:
        PydanticCustomError: it does not: some client lost a text.
    """
    if role != "assistant" and content is None:
        kind, msg = "missing", "a message of the role {role} has no content: give its text"
        raise PydanticCustomError(kind, msg, {"role": role})


class JsonRoute(APIRoute):
    """A route that refuses bodies that are too many values, or that no text can hold."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """What answers a request."""
        handler = super().get_route_handler()

        async def guarded(request: Request) -> Response:
            packed = request.headers.get("content-encoding", "identity")
            if packed != "identity":
                msg = f"the body is compressed ({packed[:40]}); supported: plain ones"
                raise ProblemError(415, msg, code="unsupported_encoding")
            if not request.headers.get("content-type", "").startswith("multipart/"):
                try:
                    body = await request.body()
                except ClientDisconnect:
                    return Response(status_code=499)  # nobody reads it
                expect_readable(body)
                if request.app.state.log_prompts:
                    number = request.scope.get(REQUEST, "")
                    text = body[:_SHOWN].decode(errors="replace")
                    events.HTTP_ASKED.emit(request=number, body=text)
            return await handler(request)

        return guarded


def expect_readable(body: bytes) -> None:
    """
    Refuse JSON of too many values, and half characters, which cannot be told or stored.

    Args:
        body: as it came; what is no JSON is for others to refuse.

    Raises:
        ProblemError: it cannot be read; says why.
    """
    if body.count(b",") >= MOST_VALUES:
        count = _STRING.sub(b"", body).count(b",") + 1
        if count > MOST_VALUES:
            msg = f"the body has {count} values; supported: {MOST_VALUES}"
            raise ProblemError(400, msg, code="too_many_values")
    try:
        body.decode()
    except UnicodeDecodeError as exc:
        msg = f"the body is not UTF-8 (byte {exc.start})"
        raise ProblemError(400, msg, code="invalid_text") from None
    if _HALF.search(body):
        try:
            json.dumps(json.loads(body), ensure_ascii=False).encode()
        except UnicodeEncodeError as exc:
            half = f"\\u{ord(exc.object[exc.start]):04x}"
            msg = f"the body has {half} without its other half: no text can hold it"
            raise ProblemError(400, msg, code="invalid_text") from None
        except (ValueError, RecursionError):
            pass


__all__ = [
    "MOST_FIELDS",
    "MOST_VALUES",
    "Body",
    "JsonRoute",
    "TopP",
    "expect_content",
    "expect_readable",
]
