"""Jobs that draw: what the ancestor's Stable Diffusion worker took, and what it told."""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING
from typing import Annotated
from typing import Any
from typing import ClassVar
from typing import Final
from typing import Literal

from pydantic import ConfigDict
from pydantic import Field

from propolis_workers.serve.bodies import Body
from propolis_workers.serve.deadlines import Seconds  # noqa: TC001  (pydantic reads it)
from propolis_workers.serve.drawing import Drawing


if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from propolis_workers.serve.jobs import Running

_EVERY: Final = 5
"""Steps between previews."""

_NAMES: Final = {"guidance": "guidance_scale", "negative": "negative_prompt"}

_File = Annotated[str, Field(min_length=1)]


class Lora(Body):
    """A LoRA by its name in the server's folder."""

    model_config = ConfigDict(extra="forbid")

    path: Annotated[str, Field(min_length=1, max_length=512)]
    strength: Annotated[float, Field(ge=-10, le=10)] = 1.0


class _Asked(Body):
    model_config = ConfigDict(extra="forbid")

    prompt: Annotated[str, Field(max_length=32768)]
    negative_prompt: Annotated[str, Field(max_length=32768)] | None = None
    model: str = ""
    steps: Annotated[int, Field(ge=1, le=150)] = 20
    guidance_scale: Annotated[float, Field(ge=0, le=20)] = 7.5
    seed: Annotated[int, Field(ge=-1, lt=1 << 64)] | None = None
    timeout: Seconds | None = None
    width: int | None = None
    height: int | None = None
    scheduler: str | None = None
    loras: list[Lora] = Field([], fail_fast=True, max_length=16)
    preview_every: Annotated[int, Field(ge=0, le=150)] = _EVERY
    # Who asked whom: this server has one model on one device.
    hive_id: str | None = None
    worker_id: str | None = None
    job_id: (
        Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]*$")]
        | None
    ) = None

    files: ClassVar[dict[str, str]] = {}  # what the job calls them

    def drawing(self) -> Drawing:
        """What is asked of the model."""
        params: dict[str, Any] = {
            "prompt": self.prompt,
            "negative": self.negative_prompt or None,
            "width": self.width,
            "height": self.height,
            "steps": self.steps,
            "guidance": self.guidance_scale,
            "seed": self.seed,
            "scheduler": self.scheduler,
            **self._more(),
        }
        loras = tuple((lora.path, lora.strength) for lora in self.loras)
        return Drawing(params, loras, self.preview_every, {**_NAMES, **self.files})

    def _more(self) -> dict[str, Any]:
        return {}


class ImageGeneration(_Asked):
    """An image of a text."""

    operation: Literal["image_generation"]


class ImageTransform(_Asked):
    """An image of a text and another image."""

    files: ClassVar[dict[str, str]] = {"image": "input_image"}

    operation: Literal["image_transform"]
    input_image: _File
    strength: Annotated[float, Field(gt=0, le=1)] = 0.8

    def _more(self) -> dict[str, Any]:
        return {"image": self.input_image, "strength": self.strength}


class ImageInpaint(_Asked):
    """An image that is drawn anew where the mask is white."""

    files: ClassVar[dict[str, str]] = {"image": "init_image", "mask": "mask_image"}

    operation: Literal["image_inpaint"]
    init_image: _File
    mask_image: _File
    strength: Annotated[float, Field(gt=0, le=1)] | None = None

    def _more(self) -> dict[str, Any]:
        return {"image": self.init_image, "mask": self.mask_image, "strength": self.strength}


async def draw(asked: AsyncGenerator[dict[str, Any]], job: Running) -> None:
    """Tell a job's events: progress and previews, and the image at the end."""
    async with aclosing(asked) as answer:
        async for told in answer:
            if "image" in told:
                job.say(
                    type="complete",
                    image=told["image"],
                    format="png",
                    seed=told["seed"],
                    notes=told["notes"],
                    inference_time_ms=round(sum(told["seconds"].values()) * 1e3),
                )
            if "step" not in told:
                continue
            step, steps = told["step"], told["steps"]
            percent = round(100 * step / steps)
            job.say(type="progress", step=step, total=steps, percent=percent)
            if "preview" in told:
                image = told["preview"]
                job.say(type="preview", step=step, total=steps, image=image, format="png")


__all__ = ["ImageGeneration", "ImageInpaint", "ImageTransform", "draw"]
