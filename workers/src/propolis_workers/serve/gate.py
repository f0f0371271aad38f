"""
What stands before every route: who may ask, how much, and a line for each request.

Written for the ASGI protocol, so that streams pass as they are.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import ipaddress
import json
import re
import time
import traceback
import uuid
from http import HTTPStatus
from typing import TYPE_CHECKING
from typing import Final

from propolis_workers import events
from propolis_workers.serve import page
from propolis_workers.serve.problems import ProblemError
from propolis_workers.serve.tracing import SCOPE


if TYPE_CHECKING:
    from collections.abc import Callable
    from collections.abc import Collection

    from starlette.types import ASGIApp
    from starlette.types import Message
    from starlette.types import Receive
    from starlette.types import Scope
    from starlette.types import Send

# Anyone may ask whether the process lives, and for the page, which asks for the token.
OPEN: Final = frozenset({"/health", *page.PATHS})

# What browsers send across origins unasked, bytes of no type among it; all else they ask for, and
# get no leave.
FORMS: Final = frozenset(
    {b"application/x-www-form-urlencoded", b"multipart/form-data", b"text/plain", b""}
)
_ABSOLUTE: Final = re.compile(r"https?://([^/]+)(/.*)?", re.IGNORECASE | re.DOTALL)
_ENDLESS: Final = ("/progress", "/stream")
"""Of paths whose answers go on for as long as what they tell of."""
READS: Final = frozenset({"GET", "HEAD"})

REQUEST: Final = "propolis.request"
"""The key of a scope that has the request's number."""

MOST_HEADERS: Final = 64 << 10
"""Bytes of the names and values together."""

# Where bodies hold images; of others this many bytes are enough.
_WITH_IMAGES: Final = ("/v1/images/", "/v1/jobs", "/v1/infer")
_TEXT: Final = 4 << 20
# Bytes of a body that is too large that are taken, and seconds for which.
_SWALLOWED: Final = 64 << 20
_SWALLOWING: Final = 10.0


class Gate:
    """
    Checks the host, forms of other pages, the token and the size of what comes in, numbers
    requests and logs them.

    A page of somebody else's, whose name comes to mean this machine once a browser has loaded
    it (DNS rebinding), would be let at the server by that browser: its name is in the Host
    header.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        token: str | None,
        most_bytes: int,
        most_open: int = 2048,
        hosts: Collection[str] | None = (),
        origins: Collection[str] = (),
        ending: Callable[[], bool] = lambda: False,
        responded: Callable[[str, int], None] = lambda _route, _status: None,
    ) -> None:
        """
        Stand before an application.

        Args:
            app: what answers.
            token: that requests must bear; None for none.
            most_bytes: of a request's body.
            most_open: requests that are answered at once, streams among them.
            hosts: the names that the server has, beside those of this machine to itself; None
                where any will do.
            origins: of pages that may ask; ``*`` for any.
            ending: whether the server is about to end.
            responded: is told of each request's route and the status of its response.
        """
        self._app = app
        self._ending = ending
        self._responded = responded
        self._token = None if token is None else token.encode()
        self._most = most_bytes
        self._most_open = most_open
        self._open = 0
        self._origins = frozenset(origins)
        self._hosts = None if hosts is None else frozenset(map(str.lower, hosts))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or answer it here."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        scope = _in_origin_form(scope)
        passage = _Passage(scope, receive, send, self._most_of(scope["path"]))
        asked = {**_as_json(scope), REQUEST: passage.number}
        self._open += 1
        try:
            problem = self._problem(scope, passage.headers)
            if problem is None and self._open > self._most_open and scope["path"] != "/health":
                msg = f"{self._most_open} requests are being answered, and no more may: try again"
                problem = ProblemError(429, msg, code="busy", retry=1)
            if problem is not None:
                await passage.refuse(problem)
            else:
                if scope["method"] == "HEAD" and not scope["path"].endswith(_ENDLESS):
                    asked["method"] = "GET"  # whose body the server does not send
                SCOPE.set(asked)  # the application adds its route to this very one
                await self._app(asked, passage.receive, passage.send)
        except asyncio.CancelledError:
            # The server ends, and this client had not taken its answer; no fault of the program.
            if not self._ending():
                raise
        except Exception as exc:  # noqa: BLE001  (a fault of ours, told without what was asked)
            msg = f"the server failed: {type(exc).__name__}"
            await passage.refuse(ProblemError(500, msg, code="internal_error"))
            where = [
                f"{f.filename}:{f.lineno} {f.name}" for f in traceback.extract_tb(exc.__traceback__)
            ]
            events.HTTP_FAILED.emit(
                error=type(exc).__name__, where=where[-8:], request=passage.number
            )
        finally:
            self._open -= 1
            passage.log()
            route = getattr(asked.get("route"), "path", "")  # none is known where it was refused
            self._responded(route or "other", passage.status)

    def _problem(self, scope: Scope, headers: dict[bytes, bytes]) -> ProblemError | None:
        path = scope["path"]
        if sum(len(name) + len(value) for name, value in scope["headers"]) > MOST_HEADERS:
            msg = f"the headers have more than {MOST_HEADERS} bytes"
            return ProblemError(431, msg, code="headers_too_large")
        host = headers.get(b"host", b"").decode("latin-1")
        # Browsers always send one; probes of HTTP/1.0 do not.
        known = path == "/health" if not host else _is_own(_name(host), self._hosts or frozenset())
        if self._hosts is not None and not known:
            what = f"this server is not {host[:100]!r}" if host else "there is no Host header"
            msg = f"{what}; it is localhost, or what --allowed-host names"
            return ProblemError(421, msg, code="host_not_allowed")
        origin = headers.get(b"origin", b"").decode("latin-1")
        if (
            origin
            and scope["method"] not in READS
            and _is_form(headers)
            and not self._is_of_ours(origin, host)
        ):
            msg = f"a page of {origin[:100]!r} may not ask this server; --allow-origin lets it"
            return ProblemError(403, msg, code="origin_not_allowed")
        if self._token is not None and path not in OPEN:
            given = headers.get(b"authorization", b"")
            if not given:
                return ProblemError(
                    401, "give the token: Authorization: Bearer ...", code="MISSING_API_KEY"
                )
            scheme, _, token = given.partition(b" ")
            if scheme.lower() != b"bearer":
                msg = "the Authorization header has no Bearer; send Authorization: Bearer TOKEN"
                return ProblemError(401, msg, code="INVALID_API_KEY")
            # Both are compared whole, so that the time tells nothing.
            if not hmac.compare_digest(token.strip(), self._token):
                return ProblemError(401, "this token is not the server's", code="INVALID_API_KEY")
        length, most = headers.get(b"content-length", b"0"), self._most_of(path)
        if length.isdigit() and int(length) > most:
            return _too_much(most)
        return None

    def _most_of(self, path: str) -> int:
        """Bytes of a body: texts need no more than some, and to read JSON holds everybody."""
        return self._most if path.startswith(_WITH_IMAGES) else min(self._most, _TEXT)

    def _is_of_ours(self, origin: str, host: str) -> bool:
        """Whether a page that sends something may: the server's own, one of this machine."""
        if {"*", origin.lower()} & self._origins:
            return True
        name = _name(origin.partition("://")[2])
        return name == _name(host) or _is_own(name, self._hosts or frozenset())


class _Passage:
    """One request on its way in, and its answer on the way out."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, most: int) -> None:
        self.headers: dict[bytes, bytes] = dict(scope["headers"])
        self._scope = scope
        self._receive = receive
        self._send = send
        self._most = most
        self._had = 0
        self._more = True  # of the body is to come
        self.status = 0
        self._refused = False
        self._started = time.perf_counter()
        given = self.headers.get(b"x-request-id", b"")[:64].decode("latin-1")
        self.number = "".join(c for c in given if c.isalnum() or c in "-_.") or uuid.uuid4().hex

    async def receive(self) -> Message:
        """What comes in; a body that did not say how long it is, is no longer than others."""
        message = await self._receive()
        self._had += len(message.get("body", b""))
        self._more = bool(message.get("more_body"))
        if self._had > self._most and not self._refused:
            await self.refuse(_too_much(self._most))
            return {"type": "http.disconnect"}
        return message

    async def send(self, message: Message) -> None:
        """What goes out, unless the request was refused meanwhile."""
        if self._refused:
            return
        if message["type"] == "http.response.start":
            self.status = message["status"]
            own = (b"x-request-id", self.number.encode("latin-1"))
            message["headers"] = [*message.get("headers", []), own]
        await self._send(message)

    async def refuse(self, problem: ProblemError) -> None:
        """Answer with that problem, where nothing was said yet."""
        if self.status:
            return
        if problem.status == HTTPStatus.REQUEST_ENTITY_TOO_LARGE:
            await self._swallow()
        body = json.dumps(problem.body_at(self._scope["path"])).encode()
        headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
        headers += [(k.lower().encode(), v.encode()) for k, v in problem.headers.items()]
        if problem.status == HTTPStatus.UNAUTHORIZED:
            headers.append((b"www-authenticate", b"Bearer"))
        start = {"type": "http.response.start", "status": problem.status, "headers": headers}
        await self.send(start)
        await self.send({"type": "http.response.body", "body": body})
        self._refused = True

    async def _swallow(self) -> None:
        """Take what comes, up to a bound: who still sends as he is refused would not read why."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_SWALLOWING):
                # Who asks first whether he may (Expect) sends nothing.
                while self._more and self._had < _SWALLOWED and b"expect" not in self.headers:
                    message = await self._receive()
                    self._had += len(message.get("body", b""))
                    self._more = bool(message.get("more_body"))

    def log(self) -> None:
        """A line about it, without what was asked."""
        events.HTTP_REQUEST.emit(
            method=self._scope["method"],
            path=self._scope["path"][:200],
            status=self.status,
            seconds=round(time.perf_counter() - self._started, 4),
            request=self.number,
        )


def _is_form(headers: dict[bytes, bytes]) -> bool:
    """Whether a browser sends this for any page, without asking the server first."""
    return headers.get(b"content-type", b"").partition(b";")[0].strip().lower() in FORMS


def _name(host: str) -> str:
    """A Host header without the port, the brackets of an IPv6 address, and the root's dot."""
    name, colon, port = host.rpartition(":")
    bare = name if colon and port.isdigit() else host
    return bare.removeprefix("[").removesuffix("]").removesuffix(".").lower()


def _is_own(name: str, hosts: frozenset[str]) -> bool:
    """Whether a name is one of ours, or means the machine itself wherever it is looked up."""
    if name == "localhost" or name in hosts:
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def _in_origin_form(scope: Scope) -> Scope:
    """
    A target may have the host, which then is the one that counts (RFC 9112, 3.2.2).

    No path does, which begins with a slash: a page may ask for any, at a host that it names.
    """
    found = _ABSOLUTE.fullmatch(scope["path"])
    if found is None:
        return scope
    host, path = found[1].encode(), found[2] or "/"
    kept = [(name, value) for name, value in scope["headers"] if name != b"host"]
    raw = b"/" + b"".join(scope["raw_path"].split(b"/", 3)[3:])
    return {**scope, "path": path, "raw_path": raw, "headers": [(b"host", host), *kept]}


def _as_json(scope: Scope) -> Scope:
    """Ollama takes JSON by any other name, as curl sends it; what pages send was refused before."""
    if not scope["path"].startswith("/api/"):
        return scope
    kept = [(name, value) for name, value in scope["headers"] if name != b"content-type"]
    return {**scope, "headers": [*kept, (b"content-type", b"application/json")]}


def _too_much(most: int) -> ProblemError:
    msg = f"the body has more than {most} bytes, which are supported here: send less"
    return ProblemError(413, msg, code="body_too_large")


__all__ = ["MOST_HEADERS", "REQUEST", "Gate"]
