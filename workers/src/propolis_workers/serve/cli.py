"""``propolis serve``: answer over HTTP."""

from __future__ import annotations

import ipaddress
import os
from typing import TYPE_CHECKING
from typing import Any

import click

from propolis.cli import settings
from propolis.errors import UsageError


if TYPE_CHECKING:
    from fastapi import FastAPI


@click.command()
@click.option("-m", "--model", metavar="PATH", help="A GGUF file or safetensors folder.")
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
    "--queue",
    type=click.IntRange(0),
    default=256,
    show_default=True,
    help="Requests that may wait; more are refused (429).",
)
@click.pass_context
def serve(
    ctx: click.Context,
    /,
    host: str,
    port: int,
    token: str | None,
    unprotected: bool,
    **options: Any,
) -> None:
    """
    Answer over HTTP: OpenAI's API, health and metrics.

    The model runs in a process of its own; where that ends, requests get an error and it is
    started again.
    """
    if not token and not unprotected and not _own(host):
        msg = (
            f"--host {host} is reached by other machines, and there is no token: set "
            f"PROPOLIS_TOKEN, or give --open where something else protects it"
        )
        raise UsageError(msg)
    app = _application(ctx, (token or "").strip() or None, options)
    click.echo(f"listening at http://{host}:{port}; the model is being loaded", err=True)
    import uvicorn  # noqa: PLC0415  (not for --help)

    uvicorn.run(
        app,
        host=host,
        port=port,
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=30,
        h11_max_incomplete_event_size=64 << 10,
    )


def _application(ctx: click.Context, token: str | None, options: dict[str, Any]) -> FastAPI:
    try:
        from propolis_workers.serve.app import application  # noqa: PLC0415  (not for --help)
    except ModuleNotFoundError as exc:
        msg = f"a server needs {exc.name}: pip install 'propolis[serve]'"
        raise UsageError(msg) from exc
    from propolis_workers.llm.models import find_model  # noqa: PLC0415
    from propolis_workers.serve.engine import Engine  # noqa: PLC0415
    from propolis_workers.serve.service import Service  # noqa: PLC0415

    own = {name: options.pop(name) for name in ("model", "device", "fallback", "threads")}
    config = settings(ctx, **own)
    path = find_model(config)
    engine = Engine(
        {**config.model_dump(mode="json"), "model": os.fspath(path)},
        {
            "context": options["context"],
            "most": options["sequences"],
            "tokens": options["cache_tokens"],
        },
        most_waiting=options["queue"],
    )
    return application(Service(path, engine), token=token)


def _own(host: str) -> bool:
    """Whether only this machine reaches an address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


__all__ = ["serve"]
