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
from dataclasses import dataclass
from dataclasses import field
from http import HTTPStatus
from typing import TYPE_CHECKING
from typing import Annotated
from typing import Any
from typing import Final

from fastapi import APIRouter
from fastapi.responses import StreamingResponse
from pydantic import Discriminator
from pydantic import Tag

from propolis.errors import OutOfMemoryError
from propolis.errors import PropolisError
from propolis_workers.serve import image_jobs
from propolis_workers.serve import text_jobs
from propolis_workers.serve.bodies import JsonRoute
from propolis_workers.serve.deadlines import Timeout  # noqa: TC001  (FastAPI reads it)
from propolis_workers.serve.engine import DeadlineError
from propolis_workers.serve.image_jobs import ImageGeneration
from propolis_workers.serve.image_jobs import ImageInpaint
from propolis_workers.serve.image_jobs import ImageTransform
from propolis_workers.serve.openai_replies import Error
from propolis_workers.serve.problems import ProblemError
from propolis_workers.serve.problems import problem_of
from propolis_workers.serve.problems import wrong_field
from propolis_workers.serve.text_jobs import Infer


if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from collections.abc import Callable
    from collections.abc import Coroutine

    from propolis_workers.serve.image_service import ImageService
    from propolis_workers.serve.service import Service

# Seconds for which the events of a job are kept after its end, and how many jobs that have ended.
_KEPT: Final = 300.0
_MOST_KEPT: Final = 256
# Bytes of what is kept: images are large.
_MOST_BYTES: Final = 256 << 20


OPERATIONS: Final = ("infer", "image_generation", "image_transform", "image_inpaint")


def _operation(asked: Any) -> str:
    if isinstance(asked, dict):
        return str(asked.get("operation") or "infer")
    return str(getattr(asked, "operation", ""))  # what is no object, is no operation


Job = Annotated[
    Annotated[Infer, Tag("infer")]
    | Annotated[ImageGeneration, Tag("image_generation")]
    | Annotated[ImageTransform, Tag("image_transform")]
    | Annotated[ImageInpaint, Tag("image_inpaint")],
    Discriminator(
        _operation,
        custom_error_type="operation",
        custom_error_message="operation is not known",  # what is told is in mistakes.py
    ),
]
"""The body of ``POST /v1/jobs``."""


@dataclass(eq=False)
class Running:
    """
    A job, its events so far, and who reads them.

    Attributes:
        name: of the job.
        named: whether its events have names of their own, as those of images have.
    """

    name: str
    named: bool = False
    events: list[bytes] = field(default_factory=list)
    ended: float | None = None
    readers: int = 0
    more: asyncio.Event = field(default_factory=asyncio.Event)
    task: asyncio.Task[None] | None = None

    def say(self, **event: Any) -> None:
        """Add an event, and wake who waits for it."""
        name = f"event: {event['type']}\n" if self.named else ""
        self.events.append(f"{name}data: {json.dumps(event)}\n\n".encode())
        self._wake()

    def narrate(self, action: str, target: str, human: str) -> None:
        """Tell people of a step."""
        what = {"actor": "propolis", "action": action, "target": target, "human": human}
        self.say(type="narration", **what, job_id=self.name)

    def end(self) -> None:
        """There will be no more."""
        self.ended = time.monotonic()
        self._wake()

    def _wake(self) -> None:
        self.more.set()
        self.more = asyncio.Event()


class Jobs:
    """The jobs of a server."""

    def __init__(self) -> None:
        self._jobs: OrderedDict[str, Running] = OrderedDict()

    def expect_free(self, name: str | None) -> None:
        """
        Check that a job may be called so.

        Raises:
            ProblemError: another one is.
        """
        if name in self._jobs:
            problem = ProblemError(409, f"there is a job {name!r} already", param="job_id")
            problem.errors = [wrong_field("job_id", "unique", str(problem), name)]
            raise problem

    def begin(
        self,
        name: str | None,
        run: Callable[[Running], Coroutine[Any, Any, None]],
        *,
        named: bool = False,
    ) -> str:
        """
        Begin a job.

        Args:
            name: what it is called; one of its own when None.
            run: tells its events.
            named: whether they have names.

        Returns:
            Its name.
        """
        self.expect_free(name)
        self._forget()
        job = Running(name or uuid.uuid4().hex, named)
        self._jobs[job.name] = job
        job.task = asyncio.create_task(_told(job, run))
        job.task.add_done_callback(lambda _: self._ended(job))
        return job.name

    def _ended(self, job: Running) -> None:
        if job.ended is None:  # it was cancelled before it began
            job.say(type="error", code="CANCELLED", message="the job was cancelled")
            job.end()
        asyncio.get_running_loop().call_later(_KEPT + 1, self._forget)

    def cancel(self, name: str) -> bool:
        """
        End a job where it is.

        Returns:
            Whether it had not ended before.

        Raises:
            ProblemError: there is none of that name.
        """
        job = self._found(name)
        if job.task is None or job.ended is not None:
            return False
        job.task.cancel()
        return True

    def events(self, name: str) -> AsyncIterator[bytes]:
        """
        The events of a job, from the first, as server-sent ones.

        Raises:
            ProblemError: there is none of that name.
        """
        return self._read(self._found(name))

    async def _read(self, job: Running) -> AsyncIterator[bytes]:
        job.readers += 1
        seen = 0
        try:
            while True:
                more = job.more
                for event in job.events[seen:]:
                    seen += 1
                    yield event
                if job.ended is not None and seen == len(job.events):
                    break
                await more.wait()
            yield b"data: [DONE]\n\n"
        finally:
            job.readers -= 1
            if job.readers == 0 and job.ended is None and job.task is not None:
                job.task.cancel()

    def _found(self, name: str) -> Running:
        job = self._jobs.get(name)
        if job is None:
            raise ProblemError(404, f"there is no job {name[:64]!r}", code="JOB_NOT_FOUND")
        return job

    def _forget(self) -> None:
        """Drop what ended long ago, and the oldest of what ended where it is much."""
        now, kept = time.monotonic(), 0
        over = [job for job in self._jobs.values() if job.ended is not None and not job.readers]
        for number, job in enumerate(reversed(over)):
            kept += sum(map(len, job.events))
            late = now - (job.ended or now) > _KEPT
            if late or number >= _MOST_KEPT or kept > _MOST_BYTES:
                del self._jobs[job.name]


async def _told(job: Running, run: Callable[[Running], Coroutine[Any, Any, None]]) -> None:
    """Run a job; what goes wrong is its last event."""
    try:
        await run(job)
    except asyncio.CancelledError:
        job.say(type="error", code="CANCELLED", message="the job was cancelled")
    except PropolisError as exc:
        problem = problem_of(exc)
        mistaken = problem.status == HTTPStatus.BAD_REQUEST
        code = "INVALID_REQUEST" if mistaken else "INFERENCE_FAILED"
        if isinstance(exc, OutOfMemoryError):
            code = "VRAM_OOM"
        if isinstance(exc, DeadlineError):
            code = "TIMEOUT"
        job.say(type="error", code=code, message=str(problem))
    except Exception as exc:
        message = f"the server failed: {type(exc).__name__}"
        job.say(type="error", code="INFERENCE_FAILED", message=message)
        raise
    finally:
        job.end()


def routes(service: Service | None, images: ImageService | None) -> APIRouter:
    """The routes, answered by those services."""
    router = APIRouter(responses={"default": {"model": Error}}, route_class=JsonRoute)
    jobs = Jobs()

    @router.post("/v1/jobs")
    @router.post("/v1/inference")
    @router.post("/v1/infer")
    async def start(asked: Job, within: Timeout = None) -> dict[str, str]:
        jobs.expect_free(asked.job_id)
        if isinstance(asked, Infer):
            writes = service or _missing("writes")
            until = writes.deadlines.until(asked.timeout, within)
            request = await text_jobs.prepare(writes, asked, until)
            jobs.expect_free(asked.job_id)
            answer = writes.answer(request, until)  # now: no more may wait than may
            name = jobs.begin(asked.job_id, lambda job: text_jobs.write(writes, answer, job))
        else:
            draws = images or _missing("draws")
            draws.expect_model(asked.model)
            until = draws.deadlines.until(asked.timeout, within)
            drawing = await draws.prepare(asked.drawing(), until)
            jobs.expect_free(asked.job_id)
            drawn = draws.answer(drawing, until)
            name = jobs.begin(asked.job_id, lambda job: image_jobs.draw(drawn, job), named=True)
        return {"job_id": name, "sse_url": f"/v1/jobs/{name}/stream"}

    @router.get("/v1/jobs/{name}/stream")
    @router.get("/v1/inference/{name}/stream")
    async def stream(name: str) -> StreamingResponse:
        return StreamingResponse(jobs.events(name), media_type="text/event-stream")

    @router.delete("/v1/jobs/{name}")
    async def cancel(name: str) -> dict[str, str]:
        status = "cancelled" if jobs.cancel(name) else "ended"
        return {"job_id": name, "status": status}

    return router


def _missing(what: str) -> Any:
    msg = f"this server has no model that {what}"
    raise ProblemError(400, msg, code="operation_not_served", param="operation")


__all__ = ["OPERATIONS", "Job", "Jobs", "Running", "routes"]
