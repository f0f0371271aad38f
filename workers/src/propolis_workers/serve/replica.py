"""
Some models in one process of a cluster, which a load balancer finds among others like it.

It knows nothing of who starts it: :mod:`propolis_workers.ray` does so with Ray Serve.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from functools import partial
from typing import TYPE_CHECKING
from typing import Any
from typing import Final

from propolis.config import Config
from propolis.errors import PropolisError
from propolis_workers.llm.default_model import find_model
from propolis_workers.llm.default_model import located
from propolis_workers.serve import TOKENS
from propolis_workers.serve.app import application
from propolis_workers.serve.engine import Engine
from propolis_workers.serve.gate import Gate
from propolis_workers.serve.problems import ProblemError
from propolis_workers.serve.service import Service


if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from starlette.types import Message
    from starlette.types import Receive
    from starlette.types import Scope
    from starlette.types import Send

_MOST_BYTES: Final = 32 << 20
# What Ray's clients say the model by, in front of what the body says.
_HEADER: Final = b"serve_multiplexed_model_id"
# A job lives in one process, and what asks for its events may come to another.
_JOBS: Final = ("/v1/jobs", "/v1/inference")


class Model:
    """
    A model that a replica has loaded, and the application that serves it.

    Attributes:
        engine: its own.
        app: answers for it.
        closing: it is being unloaded.
    """

    def __init__(self, service: Service, drain: float) -> None:
        self.engine = service.engine
        self.app = application(service, token=None, gated=False)
        self._drain = drain
        self._life = contextlib.AsyncExitStack()
        self._loop = asyncio.get_running_loop()
        self.closing = False

    async def load(self) -> None:
        """
        Start its engine, and wait until it is ready.

        Raises:
            PropolisError: it cannot be loaded; says why.
        """
        await self._life.enter_async_context(self.app.router.lifespan_context(self.app))
        while self.engine.status.state != "ready":
            if self.engine.status.state in ("failed", "stopped"):
                why = self.engine.status.error
                await self.close()
                raise PropolisError(why)
            await self.engine.changed(1.0)

    async def close(self) -> None:
        """Finish the answers on their way, and end its engine."""
        if not self.closing:
            self.closing = True
            await self.engine.drain(self._drain)
            await self._life.aclose()

    def __del__(self) -> None:
        # Ray calls it in a thread to unload a model, and waits; Python does once it is gone.
        if not self.closing and not self._loop.is_closed():
            done = asyncio.run_coroutine_threadsafe(self.close(), self._loop)
            with contextlib.suppress(RuntimeError):  # no loop here: a thread that may wait
                asyncio.get_running_loop()
                return
            done.result()


class Replica:
    """
    The models that one process serves, as many at a time as fit.

    :meth:`asgi` is an ASGI application.  A header, or a request's body, names the model.
    """

    def __init__(self, args: Mapping[str, Any]) -> None:
        """
        Prepare; nothing is loaded yet.

        Args:
            args: as :class:`propolis_workers.ray.Arguments` describes them.

        Raises:
            ModelError: no model is named, and none is installed; or one was not pulled.
        """
        self._args = args
        self._ending = False
        self._here: dict[str, Model] = {}
        config = self._config("")
        self._paths = {name: located(path, config) for name, path in args["models"].items()}
        if not self._paths:
            path = find_model(self._config(args["model"]))
            self._paths = {path.stem if path.suffix == ".gguf" else path.name: path}
        self._default = next(iter(self._paths))
        token = next(filter(None, (os.environ.get(name, "").strip() for name in TOKENS)), None)
        self._gate = Gate(
            self._answer,
            token=token,
            hosts=None,  # whoever passes requests on has names of its own
            most_bytes=_MOST_BYTES,
            ending=lambda: self._ending,
        )

    async def asgi(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or begin and end with whoever serves."""
        if scope["type"] == "lifespan":
            await self._live(receive, send)
        elif scope["type"] == "http":
            await self._gate(scope, receive, send)

    async def model(self, name: str) -> Model:
        """A model, loaded now if it is not yet; whoever limits their number does so here."""
        return self._here.get(name) or await self.load(name)

    async def load(self, name: str) -> Model:
        """
        Load a model.

        Raises:
            PropolisError: it cannot be loaded; says why.
        """
        path, args = self._paths[name], self._args
        engine = Engine(
            {**self._config(path).model_dump(mode="json"), "model": str(path)},
            {
                "context": args["context"],
                "most": args["sequences"],
                "tokens": args["cache_tokens"],
                "speculate": 0,
            },
            most_waiting=args["queue"],
        )
        model = Model(
            await asyncio.to_thread(partial(Service, path, engine, name=name)), args["drain"]
        )
        await model.load()
        self._here = {key: one for key, one in self._here.items() if not one.closing}
        self._here[name] = model
        return model

    def check_health(self) -> None:
        """
        Be asked now and then by whoever replaces what fails.

        Raises:
            PropolisError: an engine failed, and will not be started again.
        """
        for name, model in self._here.items():
            if model.engine.status.state == "failed" and not model.closing:
                msg = f"{name}: {model.engine.status.error}"
                raise PropolisError(msg)

    def _config(self, model: str | Path) -> Config:
        args = self._args
        device = args["device"] or ("rocm:0" if args["gpus"] else None)
        given = {"device": device, "threads": args["threads"], "model": str(model) or None}
        return Config.load(**{name: value for name, value in given.items() if value is not None})

    async def _live(self, receive: Receive, send: Send) -> None:
        await receive()
        try:
            await self.model(self._default)  # nobody sends anything before it is there
        except PropolisError as exc:
            await send({"type": "lifespan.startup.failed", "message": str(exc)})
            return
        await send({"type": "lifespan.startup.complete"})
        await receive()
        self._ending = True
        await asyncio.gather(*(one.close() for one in self._here.values()))
        await send({"type": "lifespan.shutdown.complete"})

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        path: str = scope["path"]
        if path.startswith(_JOBS):
            msg = "a job stays in one process, and there may be several here: ask for a chat"
            await _refuse(send, ProblemError(404, msg, code="jobs_not_served"))
            return
        if path == "/v1/models":
            await _respond(send, 200, self._listed())
            return
        name, receive = await self._wanted(scope, receive)
        if name not in self._paths:
            known = ", ".join(map(repr, self._paths))
            msg = f"the model {name[:100]!r} is not served here; supported: {known}"
            await _refuse(send, ProblemError(404, msg, code="model_not_found", param="model"))
            return
        try:
            model = await self.model(name)
        except PropolisError as exc:
            await _refuse(send, ProblemError(503, str(exc), code="engine_failed", retry=30))
            return
        await model.app(scope, receive, send)

    async def _wanted(self, scope: Scope, receive: Receive) -> tuple[str, Receive]:
        """The model that a request is for, and what gives its body (again)."""
        name = dict(scope["headers"]).get(_HEADER, b"").decode("latin-1")
        if not name and scope["method"] == "POST":
            body, receive = await _read(receive)
            name = _named(body)
        elif not name:
            # Who looks after a process does not change what is loaded.
            name = scope["path"].removeprefix("/v1/models/")
            if name == scope["path"]:
                name = next((key for key, one in self._here.items() if not one.closing), "")
        if name not in self._paths:
            name = name.removesuffix(":latest")  # as Ollama's clients say it
        return name or self._default, receive

    def _listed(self) -> dict[str, Any]:
        own = {"object": "model", "owned_by": "propolis"}
        models = [{"id": name, "created": 0, **own} for name in self._paths]
        return {"object": "list", "data": models}


def _named(body: bytes) -> str:
    try:
        asked = json.loads(body)
    except ValueError:  # the application says what is wrong with it
        return ""
    name = asked.get("model") if isinstance(asked, dict) else None
    return name if isinstance(name, str) else ""


async def _read(receive: Receive) -> tuple[bytes, Receive]:
    """The whole body, and what gives it once more."""
    parts: list[bytes] = []
    message: Message = {"more_body": True}
    while message.get("more_body"):
        message = await receive()
        parts.append(message.get("body", b""))
    whole = b"".join(parts)
    said = [message if message["type"] != "http.request" else {**message, "body": whole}]

    async def again() -> Message:
        return said.pop() if said else await receive()

    return whole, again


async def _respond(
    send: Send, status: int, body: Mapping[str, Any], headers: Mapping[str, str] | None = None
) -> None:
    raw = json.dumps(body).encode()
    head = {"content-type": "application/json", "content-length": str(len(raw)), **(headers or {})}
    pairs = [(name.lower().encode(), value.encode()) for name, value in head.items()]
    await send({"type": "http.response.start", "status": status, "headers": pairs})
    await send({"type": "http.response.body", "body": raw})


async def _refuse(send: Send, problem: ProblemError) -> None:
    await _respond(send, problem.status, problem.body(), problem.headers)


__all__ = ["Model", "Replica"]
