"""
What stands before every route: who may ask, how much, and a line for each request.

Written for the ASGI protocol, so that streams pass as they are.
"""

from __future__ import annotations

import hmac
import json
import time
import uuid
from http import HTTPStatus
from typing import TYPE_CHECKING
from typing import Final

from propolis_workers import events
from propolis_workers.serve.problems import ProblemError


if TYPE_CHECKING:
    from starlette.types import ASGIApp
    from starlette.types import Message
    from starlette.types import Receive
    from starlette.types import Scope
    from starlette.types import Send

# Anyone may ask whether the process lives.
OPEN: Final = frozenset({"/health"})


class Gate:
    """Checks the token and the size of what comes in, numbers requests and logs them."""

    def __init__(self, app: ASGIApp, *, token: str | None, most_bytes: int) -> None:
        self._app = app
        self._token = None if token is None else token.encode()
        self._most = most_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or answer it here."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        passage = _Passage(scope, receive, send, self._most)
        try:
            problem = self._problem(scope["path"], passage.headers)
            if problem is not None:
                await passage.refuse(problem)
            else:
                await self._app(scope, passage.receive, passage.send)
        except Exception as exc:
            msg = f"the server failed: {type(exc).__name__}"
            await passage.refuse(ProblemError(500, msg, code="internal_error"))
            raise
        finally:
            passage.log()

    def _problem(self, path: str, headers: dict[bytes, bytes]) -> ProblemError | None:
        if self._token is not None and path not in OPEN:
            given = headers.get(b"authorization", b"")
            if not given:
                return ProblemError(
                    401, "give the token: Authorization: Bearer ...", code="MISSING_API_KEY"
                )
            scheme, _, token = given.partition(b" ")
            # Both are compared whole, so that the time tells nothing.
            if not hmac.compare_digest(token.strip(), self._token) or scheme.lower() != b"bearer":
                return ProblemError(401, "this token is not the server's", code="INVALID_API_KEY")
        length = headers.get(b"content-length", b"0")
        if length.isdigit() and int(length) > self._most:
            return _too_much(self._most)
        return None


class _Passage:
    """One request on its way in, and its answer on the way out."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, most: int) -> None:
        self.headers: dict[bytes, bytes] = dict(scope["headers"])
        self._scope = scope
        self._receive = receive
        self._send = send
        self._most = most
        self._had = 0
        self._status = 0
        self._refused = False
        self._started = time.perf_counter()
        given = self.headers.get(b"x-request-id", b"")[:64].decode("latin-1")
        self._number = "".join(c for c in given if c.isalnum() or c in "-_.") or uuid.uuid4().hex

    async def receive(self) -> Message:
        """What comes in; a body that did not say how long it is, is no longer than others."""
        message = await self._receive()
        self._had += len(message.get("body", b""))
        if self._had > self._most and not self._refused:
            await self.refuse(_too_much(self._most))
            return {"type": "http.disconnect"}
        return message

    async def send(self, message: Message) -> None:
        """What goes out, unless the request was refused meanwhile."""
        if self._refused:
            return
        if message["type"] == "http.response.start":
            self._status = message["status"]
            own = (b"x-request-id", self._number.encode("latin-1"))
            message["headers"] = [*message.get("headers", []), own]
        await self._send(message)

    async def refuse(self, problem: ProblemError) -> None:
        """Answer with that problem, where nothing was said yet."""
        if self._status:
            return
        body = json.dumps(problem.body()).encode()
        headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
        if problem.status == HTTPStatus.UNAUTHORIZED:
            headers.append((b"www-authenticate", b"Bearer"))
        start = {"type": "http.response.start", "status": problem.status, "headers": headers}
        await self.send(start)
        await self.send({"type": "http.response.body", "body": body})
        self._refused = True

    def log(self) -> None:
        """A line about it, without what was asked."""
        events.HTTP_REQUEST.emit(
            method=self._scope["method"],
            path=self._scope["path"][:200],
            status=self._status,
            seconds=round(time.perf_counter() - self._started, 4),
            request=self._number,
        )


def _too_much(most: int) -> ProblemError:
    return ProblemError(413, f"the body has more than {most} bytes", code="body_too_large")


__all__ = ["Gate"]
