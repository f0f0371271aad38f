"""A model that draws and is served: what its routes ask, and its engine."""

from __future__ import annotations

import base64
import binascii
import re
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING
from typing import Any
from typing import Final
from typing import TypeVar

from propolis.dtypes import parse_dtype
from propolis.errors import UsageError
from propolis_workers.sd.pipeline import StableDiffusion
from propolis_workers.serve.deadlines import Deadlines
from propolis_workers.serve.deadlines import threaded
from propolis_workers.serve.drawing import LARGEST
from propolis_workers.serve.painter import params_of
from propolis_workers.serve.problems import ProblemError
from propolis_workers.serve.problems import not_served
from propolis_workers.serve.problems import wrong_field


if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from collections.abc import Callable
    from collections.abc import Mapping
    from pathlib import Path

    from propolis_workers.serve.drawing import Drawing
    from propolis_workers.serve.engine import Engine

    Told = dict[str, Any]
    Watch = Callable[[AsyncGenerator[Told]], AsyncGenerator[Told]]

T = TypeVar("T")

_LORA_SUFFIX: Final = ".safetensors"


class ImageService:
    """
    A Stable Diffusion model behind HTTP.

    Attributes:
        name: of the model, as clients call it.
        engine: what computes.
        deadlines: of its answers.
        size: of an image in pixels where nobody says another.
        smallest: pixels along a side of an image, at least.
        largest: at most; of much more than it was made for a model draws the same thing twice.
        factor: of which both sides are multiples.
        created: when it was made, in seconds since 1970.
        elsewhere: routes of the server's other model, by its name.
    """

    def __init__(
        self,
        path: Path,
        engine: Engine,
        *,
        dtype: str = "f32",
        loras: Path | None = None,
        deadline: float | None = None,
    ) -> None:
        """
        Read the model's settings, and none of its weights.

        Args:
            path: a folder in diffusers' layout.
            engine: what computes.
            dtype: of its weights there.
            loras: the folder of the LoRA files that may be asked for; None for none.
            deadline: the most seconds that an answer takes, whatever a request asks.

        Raises:
            ModelError: the model cannot be used; the message says why and what to do.
        """
        # It only counts memory, and refuses what the model would refuse.
        self._twin = StableDiffusion.rehearsed(path, parse_dtype(dtype)).model
        parts = self._twin.components
        self.factor = parts.vae.config.scale
        self._sides = parts.size
        self.size = max(self._sides)
        self.smallest = min(256, *self._sides)
        self.largest = min(LARGEST, 4 * self.size)
        self.name = self._twin.name
        self.engine = engine
        self.deadlines = Deadlines(deadline)
        self.created = int(time.time())
        self.elsewhere: dict[str, str] = {}
        self._loras = loras
        self._pool = ThreadPoolExecutor(2, "images")
        self._watch: Watch | None = None

    def watch(self, watch: Watch) -> None:
        """Let somebody see each answer on its way."""
        self._watch = watch

    def expect_model(self, name: str) -> None:
        """
        Check what model somebody wants.

        Raises:
            ProblemError: it is another one; says where that is, if this server has it.
        """
        if name not in ("", self.name):
            raise not_served(name, self.name, self.elsewhere)

    async def prepare(self, drawing: Drawing, until: float | None = None) -> dict[str, Any]:
        """
        Check what somebody wants, as far as that is possible without the weights.

        Returns:
            What the engine is asked, with its seed.

        Raises:
            PropolisError: it cannot be drawn; says what was given and what can.
        """
        with self.engine.room(1):
            loras = [(str(self.lora(name)), strength) for name, strength in drawing.loras]
            names = (drawing.fields.get(side, side) for side in ("width", "height"))
            sides = " and ".join(dict.fromkeys(names))
            try:
                params = await self.beside(until, self._sealed, drawing.params, sides)
            except UsageError as exc:
                raise _of_field(exc, drawing) from exc
            except ProblemError as exc:
                raise _named(exc, drawing.fields) from None
        return {"params": params, "loras": loras, "preview": drawing.preview}

    async def beside(self, until: float | None, work: Callable[..., T], *arguments: Any) -> T:
        """As `threaded`, in threads that are for images alone: who writes waits for none."""
        return await threaded(until, work, *arguments, pool=self._pool)

    def answer(self, asked: Told, until: float | None = None) -> AsyncGenerator[Told]:
        """Steps, previews and at last the images, as the painter tells them."""
        answer = self.engine.answer(asked, until)
        return answer if self._watch is None else self._watch(answer)

    def lora(self, name: str) -> Path:
        """
        The file of a LoRA.

        Raises:
            ProblemError: there is none of that name in the folder.
        """
        if self._loras is None:
            msg = "no LoRAs are served: start the server with --loras FOLDER"
            raise ProblemError(400, msg, code="lora_not_found", param="loras")
        # Looked up among what is there, so that a name reaches nothing else.
        for there in self.loras():
            if name in (there, there.removesuffix(_LORA_SUFFIX)):
                return self._loras / there
        known = ", ".join(self.loras()[:20]) or "none"
        msg = f"there is no LoRA {name[:100]!r}; there are: {known}"
        raise ProblemError(404, msg, code="lora_not_found", param="loras")

    def loras(self) -> list[str]:
        """The names of the LoRA files that may be asked for."""
        if self._loras is None:
            return []
        folder = self._loras.resolve()
        found = (path for path in folder.glob("**/*" + _LORA_SUFFIX) if path.is_file())
        # A link to elsewhere is not of this folder.
        own = (path for path in found if path.resolve().is_relative_to(folder))
        return sorted(path.relative_to(folder).as_posix() for path in own)

    def _sealed(self, given: dict[str, Any], sides: str) -> dict[str, Any]:
        for side in ("width", "height"):
            pixels = given.get(side)
            if pixels is not None and not self.smallest <= pixels <= self.largest:
                msg = f"{side} is {pixels}; supported: {self.smallest} to {self.largest} pixels"
                msg += f", a multiple of {self.factor}"
                raise ProblemError(400, msg, param=side)
        for name in ("image", "mask"):
            if given.get(name) is not None:
                given = {**given, name: _base64(name, given[name])}
        params, _, _ = self._twin.planned(params_of(given), sides=sides)
        own = params.width or self._sides[0], params.height or self._sides[1]
        if not self.smallest <= min(own) <= max(own) <= self.largest:
            range_ = f"{self.smallest} to {self.largest} pixels a side"
            msg = f"the image is {own[0]}x{own[1]}; supported: {range_}: make it of such a size"
            raise ProblemError(400, msg, param="image")
        return {**given, "seed": params.seed}


def _of_field(exc: UsageError, drawing: Drawing) -> ProblemError:
    """The same, of the field that its message begins with, in the words of whoever asked."""
    given, message = drawing.params, str(exc)
    words = re.fullmatch(r"(?:the |an? )?(\w*).*", message, re.DOTALL)
    field = words[1] if words else ""
    problem = ProblemError(400, message, param=field if field in given else None)
    if problem.param:
        problem.errors = [wrong_field(field, "value", message, given[field])]
    return _named(problem, drawing.fields)


def _named(problem: ProblemError, names: Mapping[str, str]) -> ProblemError:
    """The same, of the field as whoever asked calls it."""
    name = names.get(problem.param or "")
    if name is not None:
        problem.param = name
        problem.errors = [{**error, "field": name} for error in problem.errors]
    return problem


def _base64(name: str, data: str) -> str:
    """Plain base64, of that, of lines of it, or of a data URL."""
    plain = re.sub(r"\s+", "", re.sub(r"^data:[\w/+.;-]*;base64,", "", data))
    try:
        base64.b64decode(plain, validate=True)
    except (binascii.Error, ValueError):
        msg = f"{name} is not base64; supported: the bytes of a PNG, JPEG or WebP file in base64"
        raise ProblemError(400, msg, param=name) from None
    return plain


__all__ = ["ImageService"]
