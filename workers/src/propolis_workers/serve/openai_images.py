"""OpenAI's API for images: generations and edits."""

from __future__ import annotations

import base64
import json
import re
import time
from contextlib import aclosing
from typing import TYPE_CHECKING
from typing import Annotated
from typing import Any
from typing import Final
from typing import Literal

from fastapi import APIRouter
from fastapi import Depends
from fastapi import Form
from fastapi import Request as HttpRequest
from fastapi import Response
from fastapi import UploadFile
from fastapi.responses import JSONResponse
from fastapi.responses import StreamingResponse
from pydantic import ConfigDict
from pydantic import Field
from pydantic import ValidationInfo
from pydantic import field_validator
from pydantic_core import PydanticCustomError

from propolis.errors import PropolisError
from propolis_workers.sd.images import png
from propolis_workers.sd.images import transparent
from propolis_workers.sd.schedulers import SCHEDULERS
from propolis_workers.serve.bodies import Body
from propolis_workers.serve.bodies import JsonRoute
from propolis_workers.serve.deadlines import Seconds  # noqa: TC001  (pydantic reads it)
from propolis_workers.serve.deadlines import Timeout  # noqa: TC001  (FastAPI reads it)
from propolis_workers.serve.drawing import Drawing
from propolis_workers.serve.going import unless_gone
from propolis_workers.serve.openai_replies import Error
from propolis_workers.serve.problems import ProblemError
from propolis_workers.serve.problems import problem_of


if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from collections.abc import AsyncIterator

    from propolis_workers.serve.image_service import ImageService

_SIZE: Final = re.compile(r"([1-9]\d{0,4})x([1-9]\d{0,4})")
_STEPS: Final = 20
# What OpenAI's clients call what we have another name for.
_NAMES: Final = {
    "width": "size",
    "height": "size",
    "guidance": "guidance_scale",
    "negative": "negative_prompt",
}

Told = dict[str, Any]
_Strength = Annotated[float, Field(ge=-10, le=10)]
_Prompt = Annotated[str, Field(min_length=1, max_length=32768)]
_Count = Annotated[int, Field(ge=1, le=10)]
_Partial = Annotated[int, Field(ge=0, le=3)]
_Steps = Annotated[int, Field(ge=1, le=150)]
_Guidance = Annotated[float, Field(ge=0, le=20)]
_Seed = Annotated[int, Field(ge=-1, lt=1 << 63)]


class _Common(Body):
    model_config = ConfigDict(extra="forbid")

    prompt: _Prompt
    model: str = ""
    n: _Count | None = None
    size: str | None = None
    response_format: str | None = None
    stream: bool | None = None
    partial_images: _Partial | None = None
    output_format: Literal["png"] | None = None
    user: str | None = None
    # Not OpenAI's, but what models of this kind are told.
    negative_prompt: Annotated[str, Field(max_length=32768)] | None = None
    steps: _Steps | None = None
    guidance_scale: _Guidance | None = None
    seed: _Seed | None = None
    timeout: Seconds | None = None
    scheduler: str | None = None

    def params(self) -> Told:
        """What is asked of the model."""
        if self.response_format not in (None, "b64_json"):
            msg = f"response_format is {self.response_format!r}; supported: b64_json"
            raise ProblemError(400, msg, param="response_format")
        if self.scheduler is not None and self.scheduler not in SCHEDULERS:
            known = ", ".join(SCHEDULERS)
            msg = f"there is no scheduler {self.scheduler[:40]!r}; supported: {known}"
            raise ProblemError(400, msg, param="scheduler")
        width, height = self._size()
        given = {
            "prompt": self.prompt,
            "negative": self.negative_prompt or None,
            "width": width,
            "height": height,
            "steps": self.steps or _STEPS,
            "guidance": self.guidance_scale,
            "seed": self.seed,
            "batch": self.n or 1,
            "scheduler": self.scheduler,
        }
        return {name: value for name, value in given.items() if value is not None}

    def _size(self) -> tuple[int | None, int | None]:
        if self.size in (None, "auto"):
            return None, None
        found = _SIZE.fullmatch(self.size or "")
        if not found:
            msg = f"size is {(self.size or '')[:40]!r}; supported: auto, or as 512x512"
            raise ProblemError(400, msg, param="size")
        return int(found[1]), int(found[2])


class ImageRequest(_Common):
    """The body of ``POST /v1/images/generations``: JSON, whose values have types."""

    model_config = ConfigDict(strict=True)

    loras: dict[str, _Strength] = Field({}, max_length=16)


class EditRequest(_Common):
    """The fields of ``POST /v1/images/edits`` beside its files."""

    strength: Annotated[float, Field(gt=0, le=1)] | None = None
    # Lists, so that of two none is left out; OpenAI's client calls a list of them image[].
    image: list[UploadFile] = Field([], max_length=1)
    several: list[UploadFile] = Field([], alias="image[]", max_length=1)
    mask: list[UploadFile] = Field([], max_length=1)

    @field_validator("image", "several", "mask", mode="before")
    @classmethod
    def _files(cls, given: Any, info: ValidationInfo) -> Any:
        """Fields of a form that nobody filled in are empty texts; others are no files."""
        files = [one for one in given if one != ""] if isinstance(given, list) else given
        if isinstance(files, list) and any(isinstance(one, str) for one in files):
            name = cls.model_fields[info.field_name or ""].alias or info.field_name
            msg = "{name} is a text; supported: a file, as multipart/form-data has them"
            raise PydanticCustomError("no_file", msg, {"name": name})
        return files


def routes(service: ImageService) -> APIRouter:
    """The routes, answered by that service."""
    router = APIRouter(responses={"default": {"model": Error}}, route_class=JsonRoute)

    @router.post("/v1/images/generations")
    async def generations(
        asked: ImageRequest, http: HttpRequest, within: Timeout = None
    ) -> Response:
        until = service.deadlines.until(asked.timeout, within)
        service.expect_model(asked.model)
        return await _respond(
            service, http, asked, asked.params(), tuple(asked.loras.items()), "generation", until
        )

    @router.post("/v1/images/edits", dependencies=[Depends(_expect_form)])
    async def edits(
        asked: Annotated[EditRequest, Form()], http: HttpRequest, within: Timeout = None
    ) -> Response:
        until = service.deadlines.until(asked.timeout, within)
        service.expect_model(asked.model)
        params = asked.params()
        files = [*asked.image, *asked.several]
        if len(files) != 1:
            msg = f"these are {len(files)} images; supported: one, in the field image"
            raise ProblemError(400, msg, param="image")
        params["image"] = base64.b64encode(await files[0].read()).decode()
        if asked.strength is not None:
            params["strength"] = asked.strength
        if asked.mask:
            mask = await service.beside(until, _mask, await asked.mask[0].read())
            params["mask"] = base64.b64encode(mask).decode()
        return await _respond(service, http, asked, params, (), "edit", until)

    return router


async def _expect_form(http: HttpRequest) -> None:
    """Refuse JSON, where it would be a form without any field, and texts given more than once."""
    kind = http.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind not in ("multipart/form-data", "application/x-www-form-urlencoded"):
        msg = f"the body is of the type {kind or 'nothing'}; send a form, as multipart/form-data"
        raise ProblemError(400, msg)
    form = await http.form()
    for name in form:
        texts = [one for one in form.getlist(name) if isinstance(one, str)]
        if len(texts) > 1 and any(texts):
            msg = f"{name[:40]} is there {len(texts)} times; supported: once"
            raise ProblemError(400, msg, param=name[:40])


def _mask(data: bytes) -> bytes:
    """OpenAI's masks are transparent where the image is drawn anew; ours are white there."""
    found = transparent("the mask", data)
    return data if found is None else png(found)


async def _respond(
    service: ImageService,
    http: HttpRequest,
    asked: ImageRequest | EditRequest,
    params: Told,
    loras: tuple[tuple[str, float], ...],
    what: str,
    until: float | None,
) -> Response:
    steps, partial = params["steps"], asked.partial_images or 0
    every = max(1, steps // (partial + 1)) if asked.stream and partial else 0
    prepared = await service.prepare(Drawing(params, loras, every, _NAMES), until)
    if asked.stream:
        events = _stream(service.answer(prepared, until), partial, what)
        return StreamingResponse(events, media_type="text/event-stream")
    last: Told = {}
    images: list[str] = []

    async def collect() -> None:
        async with aclosing(service.answer(prepared, until)) as answer:
            async for told in answer:
                last.update(told)
                images.extend([told["image"]] if "image" in told else [])

    if not await unless_gone(http, collect()):
        return Response(status_code=499)  # nobody reads it
    data = [{"b64_json": image} for image in images]
    return JSONResponse({"created": int(time.time()), "data": data, **_about(last)})


async def _stream(said: AsyncGenerator[Told], partial: int, what: str) -> AsyncIterator[bytes]:
    def event(kind: str, image: str, **more: Any) -> bytes:
        told = {"type": kind, "b64_json": image, "created_at": int(time.time()), **more}
        told |= {"output_format": "png"}
        return f"event: {kind}\ndata: {json.dumps(told)}\n\n".encode()

    sent, kind = 0, f"image_{what}"
    try:
        async with aclosing(said) as answer:
            async for told in answer:
                if "image" in told:
                    yield event(f"{kind}.completed", told["image"], **_about(told))
                elif "preview" in told and sent < partial:
                    yield event(f"{kind}.partial_image", told["preview"], partial_image_index=sent)
                    sent += 1
    except PropolisError as exc:
        yield b"data: " + json.dumps(problem_of(exc).body()).encode() + b"\n\n"


def _about(told: Told) -> Told:
    """What is told beside the images: seeds make them repeatable."""
    return {"seed": told["seed"], "notes": told["notes"]}


__all__ = ["EditRequest", "ImageRequest", "routes"]
