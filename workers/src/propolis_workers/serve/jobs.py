"""
Jobs: the protocol of the ancestor's workers, which a hive starts, asks and watches.

A request becomes a job at once, and its events are kept: who comes to the stream late, or
again, reads them from the first. When its last reader leaves before the end, it is cancelled.
"""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from collections import OrderedDict
from contextlib import aclosing
from dataclasses import dataclass
from dataclasses import field
from typing import TYPE_CHECKING
from typing import Annotated
from typing import Any
from typing import Final
from typing import Literal

from fastapi import APIRouter
from fastapi.responses import StreamingResponse
from pydantic import BaseModel
from pydantic import ConfigDict
from pydantic import Field

from propolis.errors import OutOfMemoryError
from propolis.errors import PropolisError
from propolis_workers.llm.answer import expect_prompt
from propolis_workers.llm.batch.engine import Request
from propolis_workers.llm.sampling import SamplingParams
from propolis_workers.serve.problems import ProblemError
from propolis_workers.serve.problems import problem_of


if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from propolis_workers.serve.service import Service

# Seconds for which the events of a job are kept after its end, and how many jobs that have ended.
_KEPT: Final = 300.0
_MOST_KEPT: Final = 256
_LIMIT = ("MAX_TOKENS", "CONTEXT_FULL")


class Job(BaseModel):
    """The body of ``POST /v1/jobs``."""

    model_config = ConfigDict(extra="forbid")

    operation: Literal["infer"] = "infer"
    prompt: Annotated[str, Field(min_length=1, max_length=32768)]
    model: str = ""
    max_tokens: Annotated[int, Field(ge=1, le=2048)] = 512
    temperature: Annotated[float, Field(ge=0, le=2)] = 0.7
    top_p: Annotated[float, Field(gt=0, le=1)] = 0.9
    top_k: Annotated[int, Field(ge=0)] = 50
    min_p: Annotated[float, Field(ge=0, le=1)] = 0.0
    repetition_penalty: Annotated[float, Field(gt=0, le=2)] = 1.0
    stop: Annotated[
        list[Annotated[str, Field(min_length=1, max_length=100)]], Field(max_length=4)
    ] = []
    seed: Annotated[int, Field(ge=0, lt=1 << 64)] | None = None
    stream: bool = True
    # Who asked whom, and for what: this server has one model on one device.
    hive_id: str | None = None
    worker_id: str | None = None
    device: str | int | None = None
    job_id: Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[\w.-]+$")] | None = None


@dataclass(eq=False)
class _Running:
    """A job, its events so far, and who reads them."""

    name: str
    events: list[dict[str, Any]] = field(default_factory=list)
    ended: float | None = None
    readers: int = 0
    more: asyncio.Event = field(default_factory=asyncio.Event)
    task: asyncio.Task[None] | None = None

    def say(self, **event: Any) -> None:
        """Add an event, and wake who waits for it."""
        self.events.append(event)
        self._wake()

    def end(self) -> None:
        """There will be no more."""
        self.ended = time.monotonic()
        self._wake()

    def _wake(self) -> None:
        self.more.set()
        self.more = asyncio.Event()


class Jobs:
    """The jobs of a service."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._jobs: OrderedDict[str, _Running] = OrderedDict()

    async def start(self, asked: Job) -> str:
        """
        Begin a job.

        Returns:
            Its name.

        Raises:
            PropolisError: it cannot be begun; says why.
        """
        service = self._service
        service.expect_model(asked.model)
        service.engine.expect_room(1)
        name = asked.job_id or uuid.uuid4().hex
        if name in self._jobs:
            raise ProblemError(409, f"there is a job {name!r} already", param="job_id")
        ids = await asyncio.to_thread(service.prompts.text, asked.prompt)
        expect_prompt(ids, len(ids), service.context, service.config, service.prompts.tokenizer)
        request = Request(
            prompt=ids,
            params=SamplingParams(
                temperature=asked.temperature,
                top_p=asked.top_p,
                top_k=asked.top_k,
                min_p=asked.min_p,
                repetition_penalty=asked.repetition_penalty,
                repeat_last_n=128,
                seed=asked.seed,
            ),
            max_tokens=min(asked.max_tokens, service.context - len(ids)),
            stops=tuple(asked.stop),
        )
        self._forget()
        job = self._jobs[name] = _Running(name)
        job.task = asyncio.create_task(self._run(job, request))
        return name

    def cancel(self, name: str) -> None:
        """
        End a job where it is.

        Raises:
            ProblemError: there is none of that name.
        """
        job = self._found(name)
        if job.task is not None:
            job.task.cancel()

    async def events(self, name: str) -> AsyncIterator[bytes]:
        """
        The events of a job, from the first, as server-sent ones.

        Raises:
            ProblemError: there is none of that name.
        """
        return self._read(self._found(name))

    async def _read(self, job: _Running) -> AsyncIterator[bytes]:
        job.readers += 1
        seen = 0
        try:
            while True:
                more = job.more
                for event in job.events[seen:]:
                    seen += 1
                    yield b"data: " + json.dumps(event).encode() + b"\n\n"
                if job.ended is not None and seen == len(job.events):
                    break
                await more.wait()
            yield b"data: [DONE]\n\n"
        finally:
            job.readers -= 1
            if job.readers == 0 and job.ended is None and job.task is not None:
                job.task.cancel()

    async def _run(self, job: _Running, request: Request) -> None:
        started, first, count = time.time(), 0.0, 0
        job.say(type="started", job_id=job.name, model=self._service.name, started_at=started)

        def ended(reason: str, stop: str | None = None) -> None:
            spent = time.perf_counter() - first if first else 0.0
            rate = (count - 1) / spent if spent and count > 1 else 0.0
            job.say(type="metrics", tokens_per_sec=round(rate, 2), vram_bytes=0)
            last: dict[str, Any] = {"tokens_out": count, "decode_time_ms": round(spent * 1e3)}
            if stop is not None:
                last["stop_sequence_matched"] = stop
            job.say(type="end", stop_reason=reason, **last)

        try:
            async with aclosing(self._service.answer(request)) as answer:
                async for one in answer:
                    first = first or time.perf_counter()
                    if one["text"]:
                        job.say(type="token", t=one["text"], i=count)
                    count += 1
                    if "finish" in one:
                        why = one["finish"]["stop_reason"]
                        reason = "MAX_TOKENS" if why in _LIMIT else why
                        ended(reason, one["finish"]["stop_string"])
        except asyncio.CancelledError:
            ended("CANCELLED")
        except PropolisError as exc:
            code = "VRAM_OOM" if isinstance(exc, OutOfMemoryError) else "INFERENCE_FAILED"
            job.say(type="error", code=code, message=str(problem_of(exc)))
        finally:
            job.end()

    def _found(self, name: str) -> _Running:
        job = self._jobs.get(name)
        if job is None:
            raise ProblemError(404, f"there is no job {name[:64]!r}", code="JOB_NOT_FOUND")
        return job

    def _forget(self) -> None:
        """Drop what ended long ago, and the oldest of what ended where it is much."""
        now = time.monotonic()
        over = [job for job in self._jobs.values() if job.ended is not None and not job.readers]
        for number, job in enumerate(reversed(over)):
            if number >= _MOST_KEPT or now - (job.ended or now) > _KEPT:
                del self._jobs[job.name]


def routes(service: Service) -> APIRouter:
    """The routes, answered by that service."""
    router, jobs = APIRouter(), Jobs(service)

    @router.post("/v1/jobs")
    @router.post("/v1/inference")
    async def start(asked: Job) -> dict[str, str]:
        name = await jobs.start(asked)
        return {"job_id": name, "sse_url": f"/v1/jobs/{name}/stream"}

    @router.get("/v1/jobs/{name}/stream")
    @router.get("/v1/inference/{name}/stream")
    async def stream(name: str) -> StreamingResponse:
        return StreamingResponse(await jobs.events(name), media_type="text/event-stream")

    @router.delete("/v1/jobs/{name}")
    async def cancel(name: str) -> dict[str, str]:
        jobs.cancel(name)
        return {"job_id": name, "status": "cancelled"}

    return router


__all__ = ["Job", "Jobs", "routes"]
