"""``propolis serve``: answer over HTTP."""

from __future__ import annotations

import ipaddress
import os
from pathlib import Path
from typing import TYPE_CHECKING
from typing import Any

import click

from propolis.cli import settings
from propolis.errors import UsageError


if TYPE_CHECKING:
    from fastapi import FastAPI

    from propolis.config import Config
    from propolis_workers.serve.image_service import ImageService
    from propolis_workers.serve.service import Service

# Connections and other files that may be open at once.
_FILES = 65536


@click.command()
@click.option("-m", "--model", metavar="PATH", help="A GGUF file or safetensors folder.")
@click.option(
    "--images", metavar="PATH", help="Draw with this model: a folder in the layout of diffusers."
)
@click.option(
    "--serve",
    "what",
    type=click.Choice(["llm", "sd", "both"]),
    help="What to serve; both where both models are named, else what is named, else llm.",
)
@click.option("--dtype", type=click.Choice(["f32", "f16", "bf16"]), help="Of what draws; f32.")
@click.option("--loras", metavar="FOLDER", help="LoRA files that may be asked for.")
@click.option(
    "--images-at-once",
    type=click.IntRange(1, 64),
    default=4,
    show_default=True,
    help="Images of one size drawn together.",
)
@click.option("--device", metavar="ID", help="Where to run: cpu, rocm:0.")
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
    envvar="PROPOLIS_TOKEN",
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
    type=click.IntRange(1),
    help="Tokens that the cache holds for all together; four contexts if not given.",
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
    type=click.FloatRange(min=0, min_open=True),
    metavar="SECONDS",
    help="The most that an answer may take; requests may ask for less.",
)
@click.option(
    "--chat-template",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="A chat template in place of the model's own, such as one that takes tools.",
)
@click.pass_context
def serve(
    ctx: click.Context,
    /,
    host: str,
    port: int,
    token: str | None,
    allowed: tuple[str, ...],
    unprotected: bool,
    **options: Any,
) -> None:
    """
    Answer over HTTP: OpenAI's API and others, a page for people, health and metrics.

    Each model runs in a process of its own; where that ends, requests get an error and it is
    started again.
    """
    if not token and not unprotected and not _own(host):
        msg = (
            f"--host {host} is reached by other machines, and there is no token: set "
            f"PROPOLIS_TOKEN, or give --open where something else protects it"
        )
        raise UsageError(msg)
    hosts = (host, *allowed) if allowed or _own(host) else None
    _allow_connections()
    app = _application(ctx, (token or "").strip() or None, hosts, options)
    click.echo(f"listening at http://{host}:{port}; the model is being loaded", err=True)
    import uvicorn  # noqa: PLC0415  (not for --help)

    from propolis_workers.serve.protocol import PatientProtocol  # noqa: PLC0415

    uvicorn.run(
        app,
        host=host,
        port=port,
        http=PatientProtocol,
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=30,
        h11_max_incomplete_event_size=64 << 10,
    )


def _application(
    ctx: click.Context, token: str | None, hosts: tuple[str, ...] | None, options: dict[str, Any]
) -> FastAPI:
    try:
        from propolis_workers.serve.app import application  # noqa: PLC0415  (not for --help)
    except ModuleNotFoundError as exc:
        msg = f"a server needs {exc.name}: pip install 'propolis[serve]'"
        raise UsageError(msg) from exc
    own = {name: options.pop(name) for name in ("model", "device", "fallback", "threads")}
    config = settings(ctx, sd_model=options.pop("images"), **own)
    what = options["what"] or _named(config)
    service = _writer(config, options) if what in ("llm", "both") else None
    images = _painter(config, options) if what in ("sd", "both") else None
    return application(service, images, token=token, hosts=hosts)


def _named(config: Config) -> str:
    """What models are named, where nobody says what to serve."""
    if config.sd_model:
        return "both" if config.model else "sd"
    return "llm"


def _writer(config: Config, options: dict[str, Any]) -> Service:
    from propolis_workers.files import read_text  # noqa: PLC0415
    from propolis_workers.llm.models import find_model  # noqa: PLC0415
    from propolis_workers.serve.engine import Engine  # noqa: PLC0415
    from propolis_workers.serve.service import Service  # noqa: PLC0415

    path = find_model(config)
    told = {"context": options["context"], "most": options["sequences"]}
    told["speculate"] = options["speculate"]
    engine = Engine(
        {**config.model_dump(mode="json"), "model": os.fspath(path)},
        {**told, "tokens": options["cache_tokens"]},
        most_waiting=options["queue"],
    )
    chosen = options["chat_template"]
    template = None if chosen is None else read_text(chosen)
    return Service(path, engine, deadline=options["deadline"], template=template)


def _painter(config: Config, options: dict[str, Any]) -> ImageService:
    from propolis_workers.sd.cli import require_packages  # noqa: PLC0415
    from propolis_workers.sd.models import find_model  # noqa: PLC0415
    from propolis_workers.serve.engine import Engine  # noqa: PLC0415

    require_packages()
    from propolis_workers.serve.image_service import ImageService  # noqa: PLC0415

    loras = None
    if options["loras"] is not None:
        loras = Path(options["loras"]).expanduser()
        if not loras.is_dir():
            msg = f"--loras {options['loras']} is no folder; give one with LoRA files in it"
            raise UsageError(msg)
    path, dtype = find_model(config), options["dtype"] or "f32"
    engine = Engine(
        {**config.model_dump(mode="json"), "sd_model": os.fspath(path)},
        {"most": options["images_at_once"], "dtype": dtype},
        kind="sd",
        most_waiting=options["queue"],
    )
    return ImageService(path, engine, dtype=dtype, loras=loras, deadline=options["deadline"])


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
        return host == "localhost"


__all__ = ["serve"]
