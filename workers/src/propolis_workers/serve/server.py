"""What a server listens at, and how it ends: by a signal, after the answers on their way."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import socket
import sys
from contextlib import contextmanager
from contextlib import suppress
from typing import TYPE_CHECKING
from typing import Any
from typing import Final
from typing import cast

import click
import uvicorn

from propolis import errors
from propolis.errors import PropolisError
from propolis.errors import UsageError
from propolis_workers.serve.gate import MOST_HEADERS
from propolis_workers.serve.protocol import PatientProtocol


if TYPE_CHECKING:
    from collections.abc import Callable
    from collections.abc import Iterator
    from collections.abc import Mapping
    from collections.abc import Sequence

    from fastapi import FastAPI

    from propolis_workers.serve.engine import Engine

# Connections that may come before the application runs, and while it is busy.
_BACKLOG: Final = 2048
# Seconds that clients have to read what was said before their connections are cut.
_FLUSH: Final = 3
# Seconds that a connection may be idle: longer than proxies keep theirs, a minute, which would
# else send a request as it is closed.
_IDLE: Final = 75
_INTERRUPTED: Final = 128
# An address family, or an address of it, that this machine does not have.
_ABSENT: Final = (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL)


def listen(host: str, port: int) -> list[socket.socket]:
    """
    Listen at every address of a host, all at one port; nobody else can from now on.

    Args:
        host: a name or an address.
        port: 0 for any that is free.

    Raises:
        UsageError: the port is taken, or the address is none of this machine's.
    """
    kind = socket.SOCK_STREAM
    try:
        found = socket.getaddrinfo(host, port, type=kind, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as exc:
        msg = f"--host {host!r} is no address: {exc}"
        raise UsageError(msg) from exc
    sockets: list[socket.socket] = []
    absent: OSError | None = None
    for family, address in dict.fromkeys((one[0], one[4]) for one in found):
        try:
            sockets.append(_listening(family, (address[0], port, *address[2:])))
        except OSError as exc:
            if exc.errno in _ABSENT:
                absent = exc
                continue
            for one in sockets:
                one.close()
            raise UsageError(_refused(host, port, exc)) from exc
        port = sockets[0].getsockname()[1]
    if not sockets:
        raise UsageError(_refused(host, port, absent)) from absent
    return sockets


def _listening(family: int, address: tuple[object, ...]) -> socket.socket:
    # asyncio sends small writes at once (TCP_NODELAY) on connections that say that they are TCP.
    sock = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        # What a server before this one left in the kernel does not keep the port.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        sock.bind(address)
        sock.listen(_BACKLOG)  # before that two may bind one port
    except OSError:
        sock.close()
        raise
    return sock


def _refused(host: str, port: int, exc: OSError | None) -> str:
    if exc is None:
        return f"--host {host!r} has no address"
    if exc.errno == errno.EADDRINUSE:
        return f"port {port} of {host} is taken: another program listens there; give another --port"
    if exc.errno == errno.EACCES:
        return (
            f"port {port} of {host} is not allowed to this user: {exc.strerror}; take one from 1024"
        )
    return f"nothing can listen at {host}, port {port}: {exc.strerror}"


class _Server(uvicorn.Server):
    """One that leaves signals to :func:`run`."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Capture none."""
        yield


def run(
    app: FastAPI,
    engines: Sequence[Engine],
    sockets: list[socket.socket],
    drain: float,
    heeds: Callable[[], object] = lambda: None,
) -> int:
    """
    Serve until a signal comes.

    The first SIGTERM or SIGINT lets the answers on their way end; a second one ends all at once.
    So does SIGHUP, of a terminal that closes, unless whoever started the server ignores it (nohup).

    Args:
        app: what answers.
        engines: that it starts and ends.
        sockets: that listen, of :func:`listen`; they are closed.
        drain: seconds that answers have after the first signal.
        heeds: called when signals are heeded, before anything is loaded.

    Returns:
        The exit code: 0 after SIGTERM and SIGHUP, 130 after SIGINT.

    Raises:
        PropolisError: the application could not be started, or a model not be loaded: as its
            engine says, such as that there is no such device.
    """
    server = _Server(
        uvicorn.Config(
            app,
            http=PatientProtocol,
            log_level="warning",
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=_FLUSH,
            timeout_keep_alive=_IDLE,
            h11_max_incomplete_event_size=2 * MOST_HEADERS,
        )
    )
    return asyncio.run(_run(server, engines, sockets, drain, heeds))


async def _told_when_ready(engine: Engine) -> PropolisError | None:
    """Say on the terminal each time that a model is there; why, if it cannot be loaded at all."""
    status = await engine.loaded()
    while status.state == "ready":
        with suppress(OSError):  # nobody may be there to read it
            click.echo(readiness(status.ready), err=True)
        status = await engine.loaded(status.restarts + 1)
    if not engine.refusal:
        return None
    kind = getattr(errors, engine.refusal, PropolisError)
    return cast("PropolisError", kind(status.error))


def readiness(ready: Mapping[str, Any]) -> str:
    """
    What a terminal is told of an engine that is ready: where it runs, in what, and for how much.

    >>> readiness({"seconds": 0.3, "device": "cpu", "name": "a CPU", "dtype": "f32"})
    'ready after 0.3 s, on cpu (a CPU) in f32'
    """
    told = f"ready after {ready['seconds']} s, on {ready['device']} ({ready['name']})"
    if "dtype" in ready:
        told += f" in {ready['dtype']}"
    if "kv_type" in ready:  # those that write
        told += f", keys in {ready['kv_type']}"
    if "context" in ready:  # which may be less than was asked for: the model's, or the cache's
        told += f"; prompt and answer have room for {ready['context']} tokens"
    return told


async def _run(
    server: uvicorn.Server,
    engines: Sequence[Engine],
    sockets: list[socket.socket],
    drain: float,
    heeds: Callable[[], object],
) -> int:
    loop = asyncio.get_running_loop()
    ending: list[asyncio.Task[None]] = []
    code = 0

    async def end() -> None:
        await asyncio.gather(*(engine.drain(drain) for engine in engines))
        server.should_exit = True

    def asked(number: signal.Signals) -> None:
        nonlocal code
        if ending:
            for engine in engines:
                engine.kill()
            with suppress(OSError):  # nobody may be there to read it
                sys.stderr.flush()
            os._exit(_INTERRUPTED + number)
        code = _INTERRUPTED + number if number == signal.SIGINT else 0
        ending.append(loop.create_task(end()))
        if waiting := sum(engine.waiting for engine in engines):
            answers = "1 answer" if waiting == 1 else f"{waiting} answers"
            more = "Ctrl-C again" if number == signal.SIGINT else "a second signal"
            note = f"waits for {answers}, {drain:.15g} s at most; {more} ends at once"
            with suppress(OSError):
                click.echo(note, err=True)

    heard = [signal.SIGTERM, signal.SIGINT]
    if signal.getsignal(signal.SIGHUP) is signal.SIG_DFL:
        heard.append(signal.SIGHUP)
    for number in heard:
        loop.add_signal_handler(number, asked, number)
    heeds()
    refusals: list[PropolisError] = []

    async def tell(engine: Engine) -> None:
        if refusal := await _told_when_ready(engine):
            refusals.append(refusal)
            await end()

    telling = [loop.create_task(tell(engine)) for engine in engines]
    await server.serve(sockets)
    for task in telling:
        task.cancel()
    if refusals:
        raise refusals[0]
    if not server.started:
        msg = "the server could not be started; the lines above say why"
        raise PropolisError(msg)
    return code


__all__ = ["listen", "run"]
