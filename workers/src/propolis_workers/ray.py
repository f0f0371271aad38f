"""
An application for Ray Serve: replicas of the server, each with GPUs of its own.

``serve run propolis_workers.ray:build model=model.gguf gpus=1 most_replicas=8``

Ray starts, scales and replaces the replicas, and gives each its GPUs; each runs the application
of ``propolis serve``, whose engine sees the GPUs that Ray made visible.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from typing import Any

from pydantic import BaseModel
from pydantic import ConfigDict
from pydantic import Field
from pydantic import model_validator

from propolis.errors import UsageError
from propolis_workers.serve.replica import Replica


try:
    from ray import serve
except ModuleNotFoundError as exc:
    _WHY = f"{__name__} needs {exc.name}: pip install 'propolis[ray]'"
    raise UsageError(_WHY) from exc

if TYPE_CHECKING:
    from collections.abc import Mapping

    from propolis_workers.serve.replica import Model


class Arguments(BaseModel):
    """
    What ``serve run propolis_workers.ray:build NAME=VALUE`` takes, or ``args`` of a config file.

    Attributes:
        model: a GGUF file, a folder of safetensors or the name of a pulled model; the configured or
            packaged one if empty.
        models: several such instead, by the names that clients give; the first is loaded at once.
        loaded: how many of them a replica has at a time; others are loaded when they are asked
            for, instead of the one that was not for longest.
        device: ``cpu``, or ``rocm:0`` if there are GPUs: the first of those that Ray gave.
        gpus: of a replica.
        cpus: of a replica, as Ray counts them.
        replicas: the least.
        most_replicas: as many as Ray may start while requests wait; the least if not given.
        target: requests on their way for each replica, which Ray strives for; as many as are
            computed at once if not given.
        context: tokens of a prompt and its answer.
        sequences: answers that a replica computes at once.
        queue: requests that may wait in a replica beyond those, and as many in front of them all.
        cache_tokens: that the cache holds for all together.
        threads: of the CPU; 0 for all.
        drain: seconds that answers have when a replica ends.
    """

    model_config = ConfigDict(extra="forbid")

    model: str = ""
    models: dict[str, str] = {}
    loaded: int = Field(1, ge=1)
    device: str = ""
    gpus: float = Field(0, ge=0)
    cpus: float = Field(1, ge=0)
    replicas: int = Field(1, ge=1)
    most_replicas: int | None = Field(None, ge=1)
    target: float | None = Field(None, gt=0)
    context: int = Field(4096, ge=1)
    sequences: int = Field(32, ge=1, le=1024)
    queue: int = Field(256, ge=0)
    cache_tokens: int | None = Field(None, ge=1)
    threads: int | None = Field(None, ge=0)
    drain: float = Field(30, ge=0)

    @model_validator(mode="after")
    def _agree(self) -> Arguments:
        if self.model and self.models:
            msg = "model and models are both given; give one of them"
            raise ValueError(msg)
        if self.most_replicas is not None and self.most_replicas < self.replicas:
            msg = f"most_replicas={self.most_replicas} is less than replicas={self.replicas}"
            raise ValueError(msg)
        if "" in self.models:
            msg = "a model of models has no name"
            raise ValueError(msg)
        return self


def build(args: Arguments | Mapping[str, Any]) -> Any:
    """
    The application, as ``serve run`` and config files name it.

    Args:
        args: as :class:`Arguments` has them; Ray gives what is said on a command line as texts.

    Returns:
        What ``ray.serve.run`` takes.
    """
    args = Arguments.model_validate(args)
    options: dict[str, Any] = {"num_replicas": args.replicas}
    if args.most_replicas is not None and args.most_replicas > args.replicas:
        options["num_replicas"] = None
        options["autoscaling_config"] = {
            "min_replicas": args.replicas,
            "max_replicas": args.most_replicas,
            "target_ongoing_requests": args.target or args.sequences,
        }
    deployment = serve.deployment(
        serve.ingress()(_replica(args.loaded)),
        name="propolis",
        ray_actor_options={"num_cpus": args.cpus, "num_gpus": args.gpus},
        max_ongoing_requests=args.sequences + args.queue,
        max_queued_requests=max(1, args.queue),
        graceful_shutdown_timeout_s=args.drain + 15,
        **options,
    )
    return deployment.bind(args.model_dump())


def _replica(loaded: int) -> type[Replica]:
    """A replica that has so many models at a time, chosen by Ray's multiplexing."""

    class Multiplexed(Replica):
        @serve.multiplexed(max_num_models_per_replica=loaded)  # type: ignore[untyped-decorator]
        async def model(self, name: str) -> Model:
            return await self.load(name)

        def __serve_build_asgi_app__(self) -> Any:
            async def app(scope: Any, receive: Any, send: Any) -> None:  # no method: ASGI 3
                await self.asgi(scope, receive, send)

            return app

    return Multiplexed


__all__ = ["Arguments", "build"]
