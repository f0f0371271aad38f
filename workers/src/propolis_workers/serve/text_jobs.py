"""Jobs that write: what the ancestor's language model worker took, and what it told."""

from __future__ import annotations

import asyncio
import time
from contextlib import aclosing
from typing import TYPE_CHECKING
from typing import Annotated
from typing import Any
from typing import Final
from typing import Literal

from pydantic import ConfigDict
from pydantic import Field

from propolis.errors import UsageError
from propolis_workers.llm.batch.engine import Request
from propolis_workers.llm.sampling import SamplingParams
from propolis_workers.serve.bodies import Body
from propolis_workers.serve.bodies import TopP
from propolis_workers.serve.deadlines import Seconds  # noqa: TC001  (read at run time)
from propolis_workers.serve.problems import ProblemError
from propolis_workers.serve.problems import too_long


if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from propolis_workers.serve.jobs import Running
    from propolis_workers.serve.service import Service

_Stop = Annotated[str, Field(min_length=1, max_length=100)]
_LIMIT = ("MAX_TOKENS", "CONTEXT_FULL")

# What a job has that says nothing of it, or null.
_SAMPLED: Final = {
    "temperature": 0.7,
    "top_p": 0.9,
    "top_k": 50,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
}


class Infer(Body):
    """An answer to a text."""

    model_config = ConfigDict(extra="forbid")

    operation: Literal["infer"] = "infer"
    prompt: Annotated[str, Field(min_length=1, max_length=32768)]
    model: str = ""
    max_tokens: Annotated[int, Field(ge=1, le=2048)] = 512
    temperature: Annotated[float, Field(ge=0, le=2)] | None = 0.7
    top_p: TopP | None = 0.9
    top_k: Annotated[int, Field(ge=0)] | None = 50
    min_p: Annotated[float, Field(ge=0, le=1)] | None = 0.0
    repetition_penalty: Annotated[float, Field(ge=0, le=2)] | None = 1.0
    stop: Annotated[list[_Stop], Field(max_length=4, fail_fast=True)] | None = None
    seed: Annotated[int, Field(ge=0, lt=1 << 64)] | None = None
    timeout: Seconds | None = None
    stream: bool = True
    # Who asked whom, and for what: this server has one model on one device.
    hive_id: str | None = None
    worker_id: str | None = None
    device: str | int | None = None
    job_id: (
        Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]*$")]
        | None
    ) = None

    def sampling(self) -> SamplingParams:
        """How its tokens are drawn."""
        given = {name: getattr(self, name) for name in _SAMPLED}
        given = {name: value for name, value in given.items() if value is not None}
        params = {**_SAMPLED, **given}
        params["repetition_penalty"] = params["repetition_penalty"] or 1.0  # 0 is off
        return SamplingParams(**params, repeat_last_n=128, seed=self.seed)


async def prepare(service: Service, asked: Infer, until: float | None = None) -> Request:
    """
    What the engine is asked.

    Raises:
        PropolisError: it cannot be answered; says why.
    """
    service.expect_model(asked.model)
    ids = await service.prepared(1, until, service.prompts.text, asked.prompt)
    try:
        service.expect_prompt(ids)
    except UsageError as exc:
        raise ProblemError(400, str(exc), param="prompt", code=too_long(exc)) from exc
    return Request(
        prompt=ids,
        params=asked.sampling(),
        max_tokens=min(asked.max_tokens, service.context - len(ids)),
        stops=tuple(asked.stop or ()),
    )


async def write(service: Service, asked: AsyncGenerator[dict[str, Any]], job: Running) -> None:
    """Tell a job's events: tokens, and at the end how fast they were and why it ended."""
    started, first, count = time.time(), 0.0, 0
    ahead = max(0, service.engine.waiting - 1)
    job.narrate("queued", service.name, f"took the job; {ahead} others are on their way")
    job.say(type="started", job_id=job.name, model=service.name, started_at=started)

    def ended(reason: str, stop: str | None = None) -> None:
        spent = time.perf_counter() - first if first else 0.0
        rate = (count - 1) / spent if spent and count > 1 else 0.0
        job.narrate("finished", service.name, f"ended with {count} tokens: {reason}")
        job.say(type="metrics", tokens_per_sec=round(rate, 2), vram_bytes=_taken(service))
        last: dict[str, Any] = {"tokens_out": count, "decode_time_ms": round(spent * 1e3)}
        if stop is not None:
            last["stop_sequence_matched"] = stop
        job.say(type="end", stop_reason=reason, **last)

    try:
        async with aclosing(asked) as answer:
            async for one in answer:
                if not first:
                    first = time.perf_counter()
                    spent = f"{time.time() - started:.2f} s"
                    job.narrate("started", service.name, f"drew the first token after {spent}")
                if one["text"]:
                    job.say(type="token", t=one["text"], i=count)
                count += 1
                if "finish" in one:
                    why = one["finish"]["stop_reason"]
                    reason = "MAX_TOKENS" if why in _LIMIT else why
                    ended(reason, one["finish"]["stop_string"])
    except asyncio.CancelledError:
        ended("CANCELLED")
    except Exception as exc:
        job.narrate("failed", service.name, f"ended after {count} tokens: {exc}")
        raise


def _taken(service: Service) -> int:
    """Bytes of the GPU's memory that are taken, as far as that is known."""
    if service.engine.status.ready.get("device") == "cpu":
        return 0  # what all programs of the machine take would tell nothing
    memory = service.engine.status.now.get("memory") or {}
    total, free = memory.get("total") or 0, memory.get("free")
    return total - free if total and free is not None else 0


__all__ = ["Infer", "prepare", "write"]
