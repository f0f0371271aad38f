"""Stable Diffusion in the process that computes: alike images are drawn together."""

from __future__ import annotations

import base64
import itertools
from dataclasses import dataclass
from dataclasses import field
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING
from typing import Any

from propolis.config import Config
from propolis.dtypes import parse_dtype
from propolis.errors import DeviceLostError
from propolis.errors import OutOfMemoryError
from propolis.errors import PropolisError
from propolis.errors import UsageError
from propolis.runtime import Runtime
from propolis_workers.sd.images import png
from propolis_workers.sd.images import read_image
from propolis_workers.sd.images import read_mask
from propolis_workers.sd.images import resize
from propolis_workers.sd.lora import LoRA
from propolis_workers.sd.models import find_model
from propolis_workers.sd.params import GenerateParams
from propolis_workers.sd.params import alike
from propolis_workers.sd.pipeline import StableDiffusion
from propolis_workers.sd.preview import Preview
from propolis_workers.serve import messages
from propolis_workers.serve.resources import Resources


if TYPE_CHECKING:
    from collections.abc import Callable
    from collections.abc import Mapping
    from collections.abc import Sequence

    from propolis import Tensor
    from propolis_workers.sd.result import Images

    Told = dict[str, Any]
    Tell = Callable[[list[Told]], None]
    Loras = tuple[tuple[str, float], ...]

# Texts whose embeddings are kept for who asks for the same again: some MB.
_TEXTS = 64
# LoRA files that are kept in memory.
_LORAS = 8


class _GoneError(Exception):
    """Nobody waits any more for what is being drawn."""


@dataclass(eq=False)
class _Asked:
    """A request: what to draw, with nothing left open."""

    key: int
    params: GenerateParams
    loras: Loras
    every: int  # steps between previews; 0 for none
    gone: bool = field(default=False)
    alone: bool = field(default=False)  # together they took too much memory

    def goes_with(self, other: _Asked) -> bool:
        apart = self.alone or other.alone or self.loras != other.loras
        return not apart and alike(self.params, other.params)


class Painter:
    """Answers requests for images; see :class:`propolis_workers.serve.child.Worker`."""

    def __init__(self) -> None:
        self._model: StableDiffusion
        self._resources: Resources
        self._waiting: list[_Asked] = []
        self._drawn: list[_Asked] = []
        self._most = 1
        self._preview: Preview | None = None
        self._files: dict[tuple[str, int], LoRA] = {}

    def load(
        self,
        config: Mapping[str, Any],
        options: Mapping[str, Any],
        progress: Callable[[int, int], None],
    ) -> Told:
        """
        Load the model.

        Raises:
            PropolisError: it cannot be; says why.
        """
        runtime = Runtime.start(Config(**config))
        dtype = parse_dtype(options["dtype"])
        path = find_model(runtime.config)
        model = StableDiffusion.load(path, runtime=runtime, dtype=dtype, progress=progress)
        model.texts.keep(_TEXTS)
        self._model, self._most = model, options["most"]
        self._resources = Resources(model.device)
        properties = model.device.properties
        return {"device": model.device.id, "name": properties.name, "dtype": dtype.name}

    def warm(self) -> None:
        """Nothing: the smallest image takes as long as anybody would wait."""

    @property
    def busy(self) -> bool:
        """Whether there is anything to draw."""
        return bool(self._waiting)

    def add(self, message: Mapping[str, Any]) -> None:
        """
        Take a request.

        Raises:
            PropolisError: it cannot be drawn; says why.
        """
        params, _, _ = self._model.planned(params_of(message["params"]))
        width, height = params.width or 0, params.height or 0
        for name in ("image", "mask"):  # no more of it than is drawn waits here
            pixels = getattr(params, name)
            if pixels is not None:
                small: Any = resize(pixels, width, height)
                params = replace(params, **{name: small})
        loras = tuple((str(path), float(strength)) for path, strength in message["loras"])
        for path, _ in loras:
            self._lora(path)
        self._waiting.append(_Asked(message["key"], params, loras, message["preview"]))

    def cancel(self, key: int) -> None:
        """Forget a request, also amid its steps."""
        self._waiting = [one for one in self._waiting if one.key != key]
        for one in self._drawn:
            one.gone = one.gone or one.key == key

    def step(self, tell: Tell, hear: Callable[[], None]) -> None:
        """Draw for the first that waits, and for others whose images are alike."""
        first = self._waiting[0]
        self._drawn, room = [], max(self._most, first.params.batch)
        for one in self._waiting:
            if one is first or (one.goes_with(first) and one.params.batch <= room):
                self._drawn.append(one)
                room -= one.params.batch
        self._waiting = [one for one in self._waiting if one not in self._drawn]
        try:
            self._draw(self._drawn, tell, hear)
        except OutOfMemoryError as exc:
            if len(self._drawn) == 1:
                self._fail(exc, tell)
                return
            group = [one for one in self._drawn if not one.gone]
            for one in group:
                one.alone = True
            self._waiting = group + self._waiting
        except DeviceLostError:
            raise  # only a new process can use it again
        except PropolisError as exc:
            self._fail(exc, tell)
        finally:
            self._drawn = []

    def state(self) -> Told:
        """What is drawn and waits, and how the device is."""
        return {
            "running": len(self._drawn),
            "waiting": len(self._waiting),
            **self._resources.told(at_once=not self._drawn),
        }

    def _fail(self, exc: PropolisError, tell: Tell) -> None:
        tell([messages.failed(one.key, exc) for one in self._drawn if not one.gone])

    def _draw(self, group: Sequence[_Asked], tell: Tell, hear: Callable[[], None]) -> None:
        self._wear(group[0].loras)
        starts = list(itertools.accumulate((one.params.batch for one in group), initial=0))

        def watch(done: int, steps: int, clean: Callable[[], Tensor]) -> None:
            hear()
            if all(one.gone for one in group):
                raise _GoneError
            latents, told = None, []
            for one, start in zip(group, starts, strict=False):
                if one.gone:
                    continue
                said: Told = {"key": one.key, "step": done, "steps": steps}
                if one.every and (done % one.every == 0 or done == steps):
                    latents = clean() if latents is None else latents
                    said["preview"] = self._seen(latents, start)
                told.append(said)
            tell(told)

        try:
            drawn = self._model.generate_together([one.params for one in group], watch=watch)
        except _GoneError:
            return
        hear()
        for one, images in zip(group, drawn, strict=True):
            if not one.gone:
                self._tell_images(one.key, images, tell)

    def _tell_images(self, key: int, images: Images, tell: Tell) -> None:
        """Each image in a line of its own: they are large."""
        about = {"seed": images.params.seed, "notes": images.notes}
        seconds = {"seconds": images.seconds}
        for n, pixels in enumerate(images):
            metadata = images.metadata(n)
            # Paths of this machine are nobody's business; the packaged model has none.
            if metadata["model"] is not None:
                metadata["model"] = self._model.name
            metadata["loras"] = [
                {**lora, "file": Path(lora["file"]).name} for lora in metadata["loras"]
            ]
            image = base64.b64encode(png(pixels, metadata)).decode()
            tell([{"key": key, "image": image, **about, **seconds}])
        tell([{"key": key, "finish": {**about, **seconds, "cut": images.cut}}])

    def _seen(self, latents: Tensor, n: int) -> str:
        if self._preview is None:
            self._preview = Preview(self._model.components.vae, self._model.device)
        return base64.b64encode(png(self._preview(latents, n))).decode()

    def _wear(self, wanted: Loras) -> None:
        """Have those LoRAs on the model, and no others."""
        active = self._model.adapters.active
        files = [(self._lora(path), strength) for path, strength in wanted]
        # By what they are: a file may have been replaced.
        if [(id(lora), strength) for lora, strength in active] == [(id(f), s) for f, s in files]:
            return
        for lora, _ in list(active):
            self._model.remove_lora(lora)
        for lora, strength in files:
            self._model.apply_lora(lora, strength)

    def _lora(self, path: str) -> LoRA:
        try:
            key = path, Path(path).stat().st_mtime_ns
        except OSError:
            msg = f"the LoRA {Path(path).name} is gone; ask for another"
            raise UsageError(msg) from None
        if key not in self._files:
            while len(self._files) >= _LORAS:
                del self._files[next(iter(self._files))]
            try:
                self._files[key] = LoRA.open(path)
            except PropolisError as exc:
                # Paths of this machine are nobody's business, and nothing is wrong with the server.
                msg = f"the LoRA {Path(path).name} cannot be used: "
                msg += str(exc).replace(path, Path(path).name)
                raise UsageError(msg) from exc
        return self._files[key]


def params_of(told: Mapping[str, Any]) -> GenerateParams:
    """
    What is to be drawn; images are in base64.

    Raises:
        PropolisError: an image is none, or a parameter cannot be.
    """
    given = dict(told)
    for name, read in (("image", read_image), ("mask", read_mask)):
        data = given.pop(name, None)
        if data is not None:
            given[name] = read(f"the {name}", base64.b64decode(data))
    return GenerateParams(**given)


__all__ = ["Painter", "params_of"]
