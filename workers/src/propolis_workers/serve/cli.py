"""``propolis serve``: answer over HTTP."""

from __future__ import annotations

import ipaddress
import os
import re
import signal
import socket
import threading
import uuid
from contextlib import ExitStack
from contextlib import closing
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from typing import Any

import click

from propolis.cli import settings
from propolis.errors import UsageError
from propolis.files import expanded
from propolis_conformance.cli import Finite
from propolis_workers.serve import TOKENS
from propolis_workers.terminal import filled
from propolis_workers.terminal import model_option


if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType

    from fastapi import FastAPI

    from propolis.config import Config
    from propolis_workers.serve.engine import Engine
    from propolis_workers.serve.heartbeat import Heartbeat
    from propolis_workers.serve.image_service import ImageService
    from propolis_workers.serve.service import Service

# Connections and other files that may be open at once.
_FILES = 65536
_HOST = re.compile(r"[\w.-]+|[0-9a-fA-F:.]+")  # a name, or an IPv6 address

_IMAGES_AT_ONCE = 4

# What only a model that draws needs.
_DRAWING = ("images", "loras", "images_at_once", "dtype", "use_f16")
# And what only one that writes does.
_WRITING = (
    *("model", "model_ref", "context", "sequences", "cache_tokens", "kv_type", "llm_dtype"),
    *("step_tokens", "speculate", "chat_template"),
)


@click.command()
@model_option
@click.option(
    "--images",
    "--model-path",
    callback=filled,
    metavar="PATH",
    help="Draw with this model: a folder in the layout of diffusers.",
)
@click.option(
    "--serve",
    "what",
    type=click.Choice(["llm", "sd", "both"]),
    help="What to serve; both where both models are named, else what is named, else llm.",
)
@click.option("--dtype", type=click.Choice(["f32", "f16", "bf16"]), help="Of what draws; f32.")
@click.option("--use-f16", is_flag=True, help="The same as --dtype f16.")
@click.option("--loras", metavar="FOLDER", help="LoRA files that may be asked for.")
@click.option(
    "--images-at-once",
    type=click.IntRange(1, 64),
    help=f"Images of one size drawn together; {_IMAGES_AT_ONCE}.",
)
@click.option(
    "--model-ref",
    metavar="TEXT",
    help="What clients and a hive call the model that writes; the file's name if not given.",
)
@click.option("--device", metavar="ID", help="Where to run: cpu, rocm:0.")
@click.option(
    "--rocm-device", type=click.IntRange(0), metavar="N", help="The same as --device rocm:N."
)
@click.option(
    "--fallback",
    type=click.Choice(["allow", "warn", "error"]),
    help="What to do about ops that fall to the CPU.",
)
@click.option("--threads", type=int, metavar="N", help="CPU threads; 0 for all cores.")
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen at.")
@click.option("--port", type=click.IntRange(0, 65535), default=8080, show_default=True)
@click.option(
    "--token",
    envvar=TOKENS,
    metavar="TEXT",
    help="What requests must bear: Authorization: Bearer TEXT.  Rather in PROPOLIS_TOKEN, where "
    "nobody who lists processes sees it.",
)
@click.option(
    "--allowed-host",
    "allowed",
    multiple=True,
    metavar="NAME",
    help="What requests may call this server in their Host header, as a proxy's name; may be "
    "given again.  At 127.0.0.1 that is localhost if not given, elsewhere anything.",
)
@click.option(
    "--allow-origin",
    "origins",
    multiple=True,
    metavar="ORIGIN",
    help="Pages that may ask in a browser (CORS), as https://example.org; may be given again.",
)
@click.option("--open", "unprotected", is_flag=True, help="Listen beyond this machine unprotected.")
@click.option(
    "--context",
    type=click.IntRange(1),
    default=4096,
    show_default=True,
    help="Tokens of a prompt and its answer.",
)
@click.option(
    "--sequences",
    type=click.IntRange(1, 1024),
    default=32,
    show_default=True,
    help="Answers computed at once; others wait.",
)
@click.option(
    "--cache-tokens",
    type=click.IntRange(64),
    help="Tokens that the cache holds for all together; four contexts if not given.  Of fewer "
    "than the usual context, so many are the context.",
)
@click.option(
    "--kv-type",
    type=click.Choice(["auto", "f32", "f16", "bf16", "q8_0"]),
    default="auto",
    show_default=True,
    help="What keys and values are kept in; auto: f16 where there are kernels for it.",
)
@click.option(
    "--llm-dtype",
    type=click.Choice(["auto", "f32", "f16", "bf16"]),
    default="auto",
    show_default=True,
    help="Of a language model's activations; auto: as its file's matrices.",
)
@click.option(
    "--step-tokens",
    type=click.IntRange(1),
    show_default="512, and more where they take no longer than 100 ms",
    help="Tokens of a step, those of prompts included: so long do other answers wait at most.",
)
@click.option(
    "--speculate",
    type=click.IntRange(0, 64),
    default=0,
    show_default=True,
    help="Tokens guessed at most from what was there before, and checked in one step.",
)
@click.option(
    "--queue",
    type=click.IntRange(0),
    default=256,
    show_default=True,
    help="Requests that may wait; more are refused (429).",
)
@click.option(
    "--deadline",
    type=Finite(min=0, min_open=True),
    metavar="SECONDS",
    help="The most that an answer may take; requests may ask for less.",
)
@click.option(
    "--stall",
    type=Finite(min=1),
    default=600,
    show_default=True,
    metavar="SECONDS",
    help="Without a step so long, while requests wait, an engine counts as hung.",
)
@click.option(
    "--chat-template",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="A chat template in place of the model's own, such as one that takes tools.",
)
@click.option("--log-prompts", is_flag=True, help="Log what is asked, too (with --log-level info).")
@click.option(
    "--drain",
    type=Finite(0),
    default=30,
    show_default=True,
    metavar="SECONDS",
    help="What answers on their way have after SIGTERM or Ctrl-C; a second one ends all at once.",
)
@click.option(
    "--hive-url",
    "--callback-url",
    metavar="URL",
    help="Tell the hive there every 30 s how this one is.",
)
@click.option(
    "--worker-id", metavar="TEXT", help="What the hive knows this one by; made up if not given."
)
@click.pass_context
def serve(
    ctx: click.Context,
    /,
    host: str,
    port: int,
    token: str | None,
    allowed: tuple[str, ...],
    origins: tuple[str, ...],
    unprotected: bool,
    drain: float,
    **options: Any,
) -> None:
    """
    Answer over HTTP: OpenAI's API and others, a page for people, health and metrics.

    Each model runs in a process of its own; where that ends, requests get an error and it is
    started again.
    """
    if token is not None and not token.strip():
        msg = "the token is blank: give one in PROPOLIS_TOKEN, or leave --token out"
        raise UsageError(msg)
    token = token and token.strip()
    if token and not token.isprintable():
        msg = "the token has a line break or the like within, which no client can send: give "
        msg += "one line"
        raise UsageError(msg)
    if not host.strip():
        raise UsageError("--host is blank: give a name or an address, or leave it out")
    if token is None and not unprotected and not _own(host):
        msg = (
            f"--host {host} is reached by other machines, and there is no token: set "
            f"PROPOLIS_TOKEN, or give --open where something else protects it"
        )
        raise UsageError(msg)
    for name in allowed:
        if not _HOST.fullmatch(name):
            msg = f"--allowed-host {name!r} is no host: give a name or an address, such as "
            msg += "llm.example.org, without scheme, port and path"
            raise UsageError(msg)
    if (name := options["worker_id"]) is not None and not name.strip():
        msg = "--worker-id is blank: give a name, or leave it out"
        raise UsageError(msg)
    hosts = (host, *allowed) if allowed or _own(host) else None
    _allow_connections()
    server = _server()
    with ExitStack() as stack:
        stack.enter_context(_ended_by_sigterm())
        # Before anything is loaded: whoever starts two has it said at once.
        sockets = [stack.enter_context(closing(one)) for one in server.listen(host, port)]
        port = sockets[0].getsockname()[1]
        who = {"token": token, "hosts": hosts, "origins": tuple(map(_origin, origins))}
        app, engines = _application(ctx, who, port, options)
        shown = f"[{host}]" if ":" in host else host
        note = f"listening at http://{shown}:{port}; the model is being loaded"
        code = server.run(app, engines, sockets, drain, lambda: click.echo(note, err=True))
    ctx.exit(code)


@contextmanager
def _ended_by_sigterm() -> Iterator[None]:
    """
    End with 0 at SIGTERM, until the server heeds it itself.

    By default it would end with 143; and not at all as the first process of a container.  A
    handler in Python would wait for a driver that hangs, so a thread is told instead.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came, told = socket.socketpair()

    def wait() -> None:
        while number := came.recv(1):
            if number[0] == signal.SIGTERM:
                os._exit(0)
        came.close()

    told.setblocking(False)
    told_before = signal.set_wakeup_fd(told.fileno(), warn_on_full_buffer=False)
    before = signal.signal(signal.SIGTERM, lambda *_: None)
    threading.Thread(target=wait, daemon=True).start()
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
        signal.set_wakeup_fd(told_before)
        told.close()  # which ends the thread


def _server() -> ModuleType:
    try:
        from propolis_workers.serve import app  # noqa: F401, PLC0415  (not for --help)
        from propolis_workers.serve import server  # noqa: PLC0415
    except ModuleNotFoundError as exc:
        msg = f"a server needs {exc.name}: pip install 'propolis[serve]'"
        raise UsageError(msg) from exc
    return server


def _application(
    ctx: click.Context,
    who: dict[str, Any],
    port: int,
    options: dict[str, Any],
) -> tuple[FastAPI, list[Engine]]:
    from propolis_workers.serve.app import application  # noqa: PLC0415  (not for --help)

    own = {name: options[name] for name in ("model", "fallback", "threads")}
    config = settings(ctx, sd_model=options["images"], **own, device=_device(options))
    what = options["what"] or _named(config)
    _expect_used(ctx, what)
    service = _writer(ctx, config, options) if what in ("llm", "both") else None
    images = _painter(config, options) if what in ("sd", "both") else None
    served = [one for one in (service, images) if one is not None]
    beats = _heartbeats(config, served, port, options)
    logged = options["log_prompts"]
    app = application(service, images, **who, heartbeats=beats, log_prompts=logged)
    return app, [one.engine for one in served]


def _expect_used(ctx: click.Context, what: str) -> None:
    """Refuse options of a model that is not served."""
    usual = click.core.ParameterSource.DEFAULT
    given = [name for name in _DRAWING if ctx.get_parameter_source(name) is not usual]
    if what == "llm" and given:
        name = given[0].replace("_", "-")
        msg = f"--{name} is for what draws, and nothing does: give --serve both or sd"
        if given[0] in ("dtype", "use_f16"):
            msg += "; --llm-dtype is for a language model"
        raise UsageError(msg)
    given = [name for name in _WRITING if ctx.get_parameter_source(name) is not usual]
    if what == "sd" and given:
        name = given[0].replace("_", "-")
        msg = f"--{name} is for what writes, and nothing does: give --serve both or llm"
        raise UsageError(msg)


def _origin(text: str) -> str:
    """What a browser says of a page: scheme, host and port; any where it is an asterisk."""
    if text != "*" and not re.fullmatch(r"[a-z][a-z0-9+.-]*://[^/\s]+", text.lower()):
        msg = f"--allow-origin {text[:100]!r} is no origin; supported: as https://example.org, or *"
        raise UsageError(msg)
    return text.lower()


def _heartbeats(
    config: Config, served: list[Service | ImageService], port: int, options: dict[str, Any]
) -> list[Heartbeat]:
    """One for each model: to a hive, a worker has one."""
    if not options["hive_url"]:
        return []
    from propolis_workers.serve.heartbeat import Heartbeat  # noqa: PLC0415
    from propolis_workers.serve.heartbeat import Worker  # noqa: PLC0415

    name = options["worker_id"] or str(uuid.uuid4())
    names = (name, f"{name}-images")
    return [
        Heartbeat(options["hive_url"], Worker(called, one.name, port, config.device), one.engine)
        for called, one in zip(names, served, strict=False)
    ]


def _device(options: dict[str, Any]) -> str | None:
    """The device that was asked for, by either option."""
    device: str | None = options["device"]
    number = options["rocm_device"]
    if number is None:
        return device
    if device not in (None, f"rocm:{number}"):
        msg = f"--device {device} and --rocm-device {number} are two devices; give one of them"
        raise UsageError(msg)
    return f"rocm:{number}"


def _named(config: Config) -> str:
    """What models are named, where nobody says what to serve."""
    if config.sd_model:
        return "both" if config.model else "sd"
    return "llm"


def _writer(ctx: click.Context, config: Config, options: dict[str, Any]) -> Service:
    from propolis_workers.files import read_text  # noqa: PLC0415
    from propolis_workers.llm.default_model import find_model  # noqa: PLC0415
    from propolis_workers.serve.engine import Engine  # noqa: PLC0415
    from propolis_workers.serve.service import Service  # noqa: PLC0415

    path = find_model(config)
    told = {"context": options["context"], "most": options["sequences"]}
    told |= {"speculate": options["speculate"], "budget": options["step_tokens"]}
    engine = Engine(
        {**config.model_dump(mode="json"), "model": os.fspath(path)},
        {
            **told,
            "tokens": options["cache_tokens"],
            "kv_type": options["kv_type"],
            "dtype": options["llm_dtype"],
        },
        most_waiting=options["queue"],
        stalls=options["stall"],
    )
    given = options["chat_template"]
    template = None if given is None else read_text(given)
    if options["model_ref"] is not None and not options["model_ref"].strip():
        msg = "--model-ref is blank: give a name, or leave it out"
        raise UsageError(msg)
    own = {"template": template, "name": options["model_ref"]}
    service = Service(path, engine, deadline=options["deadline"], **own)
    if config.model:
        service.names.add(config.model)  # as whoever started it calls it
    context, tokens = options["context"], options["cache_tokens"]
    context = min(context, service.config.context_length)
    chosen = ctx.get_parameter_source("context") is not click.core.ParameterSource.DEFAULT
    if chosen and options["context"] > context:
        more = f"--context {options['context']} is more than the model's, {context}, which is taken"
        click.echo(more, err=True)
    if tokens is not None and tokens < context:
        service.bound = "--cache-tokens"
    if tokens is not None and chosen and tokens < context:
        msg = f"--cache-tokens {tokens} holds no sequence of --context {context}: give as many, or "
        raise UsageError(msg + "a smaller --context")
    return service


def _painter(config: Config, options: dict[str, Any]) -> ImageService:
    from propolis_workers.sd.cli import require_packages  # noqa: PLC0415
    from propolis_workers.sd.models import find_model  # noqa: PLC0415
    from propolis_workers.serve.engine import Engine  # noqa: PLC0415

    require_packages()
    from propolis_workers.serve.image_service import ImageService  # noqa: PLC0415

    loras = None
    if options["loras"] is not None:
        loras = expanded(options["loras"])
        if not loras.is_dir():
            msg = f"--loras {options['loras']} is no folder; give one with LoRA files in it"
            raise UsageError(msg)
    path, dtype = find_model(config), _dtype(options)
    engine = Engine(
        {**config.model_dump(mode="json"), "sd_model": os.fspath(path)},
        {"most": options["images_at_once"] or _IMAGES_AT_ONCE, "dtype": dtype},
        kind="sd",
        most_waiting=options["queue"],
        stalls=options["stall"],
    )
    return ImageService(path, engine, dtype=dtype, loras=loras, deadline=options["deadline"])


def _dtype(options: dict[str, Any]) -> str:
    """What draws computes in, as either option says."""
    dtype: str | None = options["dtype"]
    if not options["use_f16"]:
        return dtype or "f32"
    if dtype not in (None, "f16"):
        msg = f"--dtype {dtype} and --use-f16 are two dtypes; give one of them"
        raise UsageError(msg)
    return "f16"


def _allow_connections() -> None:
    """Let as many be open as the system allows; 1024, which is usual, are soon too few."""
    try:
        import resource  # noqa: PLC0415  (not everywhere)
    except ModuleNotFoundError:
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _FILES if hard == resource.RLIM_INFINITY else min(hard, _FILES)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def _own(host: str) -> bool:
    """Whether only this machine reaches an address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower().removesuffix(".") == "localhost"


__all__ = ["serve"]
