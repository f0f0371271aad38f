"""
Drawing: text to image, image to image, inpainting.

from propolis_workers.sd import GenerateParams, StableDiffusion
    >>> sd = StableDiffusion.load()
    >>> images = sd.generate(GenerateParams(prompt="a red circle", seed=1))
    >>> images.save("out.png")
    [PosixPath('out.png')]
"""

from __future__ import annotations

import time
from collections.abc import Callable
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING
from typing import Any
from typing import get_args

import numpy as np

from propolis import Tensor
from propolis import default_runtime
from propolis import dtypes
from propolis import ops
from propolis.dtypes import parse_dtype
from propolis.errors import OutOfMemoryError
from propolis.errors import UnsupportedModelError
from propolis.errors import UsageError
from propolis_workers import events
from propolis_workers.arguments import expect_path
from propolis_workers.arguments import shown
from propolis_workers.rehearsal import RehearsalDevice
from propolis_workers.sd.denoising import Known
from propolis_workers.sd.denoising import denoise
from propolis_workers.sd.guiding import guide_of
from propolis_workers.sd.images import resize
from propolis_workers.sd.latents import decode
from propolis_workers.sd.latents import encode
from propolis_workers.sd.latents import to_mask
from propolis_workers.sd.latents import to_tensor
from propolis_workers.sd.loading import load_components
from propolis_workers.sd.lora import Adapters
from propolis_workers.sd.models import PACKAGED
from propolis_workers.sd.models import find_model
from propolis_workers.sd.models import is_packaged
from propolis_workers.sd.noise import Noise
from propolis_workers.sd.params import GenerateParams
from propolis_workers.sd.params import alike
from propolis_workers.sd.params import expect_params
from propolis_workers.sd.params import resolved
from propolis_workers.sd.rehearsal import Rehearsal
from propolis_workers.sd.result import Images
from propolis_workers.sd.schedulers import make_scheduler
from propolis_workers.sd.text import TextEncoder
from propolis_workers.sd.tokenizer import CLIPTokenizer
from propolis_workers.sd.vae import Tiled


if TYPE_CHECKING:
    from propolis import Device
    from propolis import DType
    from propolis import Runtime
    from propolis_workers.sd.denoising import AfterStep
    from propolis_workers.sd.images import Pixels
    from propolis_workers.sd.loading import Components
    from propolis_workers.sd.lora import LoRA
    from propolis_workers.sd.schedulers import Plan
Progress = Callable[[int, int, Callable[[], "Pixels"]], None]
"""
Called with steps done, steps in all, and what draws a preview of the first image: the one
predicted at this step, decoded, which takes as long as decoding the result.
"""


Watch = Callable[[int, int, Callable[[], Tensor]], None]
"""
Called with steps done, steps in all, and what gives the clean latents predicted at this step,
(b, c, h, w), f32, of all images.
"""


class StableDiffusion:
    """
    A model ready to draw.

    Attributes:
        path: its folder.
        components: its networks.
        device: where they are.
        dtype: what its weights are in.
        adapters: the LoRAs on it.
        texts: what encodes prompts.
        load_seconds: how long loading took.
    """

    def __init__(
        self,
        path: Path,
        components: Components,
        device: Device,
        dtype: DType,
        load_seconds: float = 0.0,
        rehearsal: Rehearsal | None = None,
    ) -> None:
        """
        Put a pipeline together.

        With a rehearsal, what does not fit into memory is refused before it is taken.

        Raises:
            ModelError: a tokenizer is missing or damaged.
            UnsupportedModelError: the UNet takes something that no task here gives it.
        """
        self.path = path
        self.components = components
        self.device = device
        self.dtype = dtype
        self.load_seconds = load_seconds
        self._rehearsal = rehearsal
        if rehearsal is not None:
            components.vae.expect_room = rehearsal.expect_decodable
        self.adapters = Adapters(components.modules)
        unet, vae = components.unet.config, components.vae.config
        channels = vae.latent_channels
        self._paints_into = unet.in_channels == 2 * channels + 1
        if unet.in_channels not in (channels, 2 * channels + 1):
            msg = (
                f"{self.name}: the UNet takes {unet.in_channels} channels; supported: {channels} "
                f"(latents), {2 * channels + 1} (and mask and masked image: inpainting)"
            )
            raise UnsupportedModelError(msg)
        self.texts = TextEncoder(
            components.text_encoders,
            [CLIPTokenizer.from_folder(folder) for folder in components.tokenizer_folders],
            device,
            pooled=bool(unet.addition_embed_dim),
        )

    @classmethod
    def load(
        cls,
        path: str | Path | None = None,
        *,
        runtime: Runtime | None = None,
        device: Device | str | None = None,
        dtype: str | DType = dtypes.f32,
        progress: Callable[[int, int], None] | None = None,
        rehearsal: Rehearsal | None = None,
    ) -> StableDiffusion:
        """
        Read a model and put its weights on a device.

        Args:
            path: a folder in diffusers' layout; the default model when None.
            runtime: whose plugins serve it; the process's own when None.
            device: where it runs, open or by its id (``"cpu"``, ``"rocm:0"``); the configured one
                when None.
            dtype: of weights and activations: f32, f16 or bf16; steps are in f32 always.
            progress: called with (bytes loaded, bytes in all) after each tensor.
            rehearsal: the model's, where there is one already.

        Raises:
            ModelError: the model cannot be used; the message says why and what to do.
            DeviceNotFoundError: there is no such device; lists those there are.
            OutOfMemoryError: its weights take more memory than is free.
            ArgumentTypeError: the path is none.
            DTypeError: there is no such dtype.
            UsageError: models are in no such dtype.
        """
        start = time.perf_counter()
        runtime = runtime or default_runtime()
        device, dtype = runtime.device(device), parse_dtype(dtype)
        if dtype not in (dtypes.f32, dtypes.f16, dtypes.bf16):
            msg = f"a model in {dtype}; supported: f32, f16, bf16"
            raise UsageError(msg)
        path = find_model(runtime.config) if path is None else expect_path("path", path)
        rehearsal = rehearsal or cls.rehearsed(path, dtype)
        rehearsal.expect_loadable(device)
        components = load_components(path, device, dtype, progress=progress)
        seconds = time.perf_counter() - start
        events.MODEL_LOADED.emit(model=path.name, device=device.id, seconds=round(seconds, 3))
        return cls(path, components, device, dtype, seconds, rehearsal)

    @classmethod
    def rehearsed(cls, path: str | Path, dtype: DType = dtypes.f32) -> Rehearsal:
        """
        What loading a model and drawing would take; reads its settings and no weights.

        Raises:
            ModelError: the model cannot be used; the message says why and what to do.
        """
        device, path = RehearsalDevice(), Path(path)
        twin = cls(path, load_components(path, device, dtype), device, dtype)
        return Rehearsal(twin, device.memory)

    @property
    def name(self) -> str:
        """What people call it: its folder's name, or the package's."""
        return PACKAGED if is_packaged(self.path) else self.path.resolve().name

    def apply_lora(self, lora: LoRA, strength: float = 1.0) -> None:
        """
        Change the weights as a LoRA says, on top of what is applied: twice is twice as much.

        Raises:
            ArgumentTypeError: it is no LoRA, as :meth:`LoRA.open` gives one, or no number.
            UsageError: it is for another model; nothing has changed.
        """
        self.adapters.apply(lora, strength)
        self.texts.forget()

    def remove_lora(self, lora: LoRA) -> None:
        """
        Take a LoRA off, once; without any, the weights are the same bits as before.

        Raises:
            ArgumentTypeError: it is no LoRA.
            UsageError: it is not on the model.
        """
        self.adapters.remove(lora)
        self.texts.forget()

    def generate(
        self,
        params: GenerateParams,
        *,
        progress: Progress | None = None,
        tiled: Tiled = "auto",
        noise: Noise | None = None,
    ) -> Images:
        """
        Draw.

        Args:
            params: what.
            progress: called after each step.
            tiled: whether the VAE decodes in tiles: when memory is short, ``never`` or
                ``always``.
            noise: in place of what the seeds give.

        Raises:
            ArgumentTypeError: ``params`` are no GenerateParams.
            UsageError: a parameter cannot be; says what was given and what can.
            ModelError: numbers are no longer finite; names the step.
            OutOfMemoryError: the device has too little memory.
        """

        def watch(done: int, steps: int, clean: Callable[[], Tensor]) -> None:
            if progress is not None:
                progress(done, steps, lambda: decode(self.components.vae, clean(), 0, tiled))

        return self.generate_together([params], watch=watch, tiled=tiled, noise=noise)[0]

    def generate_together(
        self,
        asked: Sequence[GenerateParams],
        *,
        watch: Watch | None = None,
        tiled: Tiled = "auto",
        noise: Noise | None = None,
    ) -> list[Images]:
        """
        Draw what several ask for, in one batch: they are :func:`alike`.

        Args:
            asked: what; each image is drawn from its own prompts and seed, as alone.
            watch: called after each step.
            tiled: as for :meth:`generate`.
            noise: in place of what the seeds give.

        Returns:
            What each gets.

        Raises:
            PropolisError: as for :meth:`generate`.
        """
        expect_params(asked)
        if tiled not in get_args(Tiled):
            msg = f"tiled is {shown(tiled)}; supported: {', '.join(get_args(Tiled))}"
            raise UsageError(msg)
        plans = [self.planned(one) for one in asked]
        each, (_, plan, replaced) = [one for one, _, _ in plans], plans[0]
        if any(not alike(each[0], one) for one in each[1:]):
            msg = "these differ in size, steps or scheduler: draw them one after the other"
            raise UsageError(msg)
        counts = [one.batch for one in each]
        params = replace(each[0], batch=sum(counts))
        if self._rehearsal is not None:
            self._rehearsal.expect_drawable(self.device, params)
        clock = _Clock()
        vae = self.components.vae

        def after_step(done: int, clean: Callable[[], Tensor]) -> None:
            if watch is not None:
                watch(done, len(plan), clean)

        try:
            latents, cuts = self._steps(each, plan, noise, after_step, clock)
        except (OutOfMemoryError, MemoryError) as error:
            msg = (
                f"{self.device.id} has too little memory to draw {self.size_of(params)}: {error}; "
            )
            msg += "make smaller images, or fewer at once; --dtype f16 takes half of the memory"
            raise OutOfMemoryError(msg) from error
        clock.lap("steps")
        # One after the other: what all at once would take is often more than there is.
        pixels = [decode(vae, latents, n, tiled) for n in range(params.batch)]
        clock.lap("decode")
        notes = []
        if replaced:
            notes.append(f"the scheduler {params.scheduler} stands in for the model's {replaced}")
        if vae.tile:
            side = vae.tile * vae.config.scale
            notes.append(f"decoded in tiles of {side} pixels, which blend into each other")
        found, array = [], latents.numpy()
        for one, cut, end in zip(each, cuts, accumulate(counts), strict=True):
            own = slice(end - one.batch, end)
            told = [*notes, *(f"of the {name} this was left out: {cut[name]:.80}" for name in cut)]
            found.append(
                Images(pixels[own], array[own], one, self._source(), cut, told, clock.seconds)
            )
        return found

    def take_steps(self, params: GenerateParams, after_step: AfterStep) -> None:
        """Draw what a rehearsal needs: text and steps.  Parameters have nothing left open."""
        self._steps([params], self.planned(params)[1], None, after_step, _Clock())

    def _steps(
        self,
        each: Sequence[GenerateParams],
        plan: Plan,
        noise: Noise | None,
        after_step: AfterStep,
        clock: _Clock,
    ) -> tuple[Tensor, list[dict[str, str]]]:
        """Latents, and what of each one's texts was cut."""
        unet = self.components.unet
        zeros = self.components.model_index.zeros_for_empty_prompt
        guide, cuts = guide_of(each, self.texts, unet.config, zeros=zeros, device=self.device)
        clock.lap("text")
        seeds = [(one.seed or 0) + n for one in each for n in range(one.batch)]
        params = replace(each[0], batch=len(seeds))
        noise = noise or Noise(seeds, self._shape(params), self.device)
        latents, known, beside = self._start(params, plan, noise)
        clock.lap("image")
        latents = denoise(
            unet, plan, latents, guide, noise, known=known, beside=beside, after_step=after_step
        )
        return latents, cuts

    def size_of(self, params: GenerateParams) -> str:
        """How much is drawn, for messages; sizes are resolved."""
        return f"{params.batch} of {params.width}x{params.height} pixels"

    def planned(
        self, params: GenerateParams, **names: str
    ) -> tuple[GenerateParams, Plan, str | None]:
        """
        The parameters with nothing left open, the steps, and the scheduler that is missing.

        Args:
            params: as given.
            names: ``sides`` of :func:`resolved`.

        Raises:
            UsageError: a parameter cannot be; says what was given and what can.
        """
        if params.negative and self.components.unet.config.time_cond_proj_dim:
            msg = f"a negative prompt has no effect with {self.name}, which is told the guidance: "
            msg += "leave it out"
            raise UsageError(msg)
        if self._paints_into and params.task != "inpaint":
            msg = f"{self.name} paints into images: give an image and a mask"
            raise UsageError(msg)
        config = self.components.scheduler_config
        scheduler = make_scheduler(params.scheduler, config, params.overrides)
        factor, size = self.components.vae.config.scale, self.components.size
        params = resolved(params, factor=factor, size=size, scheduler=scheduler.name, **names)
        strength = 1.0 if params.strength is None else params.strength
        return params, scheduler.plan(params.steps, strength), scheduler.replaced

    def _shape(self, params: GenerateParams) -> tuple[int, ...]:
        vae = self.components.vae.config
        sizes = ((size or 0) // vae.scale for size in (params.height, params.width))
        return (params.batch, vae.latent_channels, *sizes)

    def _start(
        self, params: GenerateParams, plan: Plan, noise: Noise
    ) -> tuple[Tensor, Known | None, Tensor | None]:
        """The first latents; what of an image is kept, and how the UNet is told of it."""
        initial = noise.initial()
        unit = ops.affine(initial, plan.init_noise_sigma, 0.0)
        if params.image is None:
            return unit, None, None
        vae, width, height = self.components.vae, params.width or 0, params.height or 0
        image = to_tensor(resize(params.image, width, height), self.device)
        latents = unit
        original: Tensor | None = None
        whole = params.mask is not None and params.strength == 1.0
        if not (whole and self._paints_into):
            original = encode(vae, image, noise.of_image())
            latents = unit if whole else plan.add_noise(original, initial, 0)
        if params.mask is None:
            return latents, None, None
        pixels = resize(params.mask, width, height)
        mask = to_mask(pixels, vae.config.scale, params.batch, self.device)
        if not self._paints_into:
            assert original is not None  # noqa: S101  (for mypy)
            return latents, Known(mask, original, initial), None
        kept = (pixels < 128).astype(np.float32)[np.newaxis, np.newaxis]
        masked = ops.mul(image, Tensor.from_numpy(kept, self.device))
        parts = [ops.cast(mask, dtypes.f32), encode(vae, masked, noise.of_masked_image())]
        return latents, None, ops.cat(parts, 1)

    def _source(self) -> dict[str, Any]:
        return {
            "model": None if is_packaged(self.path) else str(self.path),
            "device": self.device.id,
            "dtype": self.dtype.name,
            "loras": [
                {"file": lora.path, "sha256": lora.sha256, "strength": strength}
                for lora, strength in self.adapters.active
            ],
        }


class _Clock:
    """Seconds between laps, by name."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._last = time.perf_counter()

    def lap(self, name: str) -> None:
        now = time.perf_counter()
        self.seconds[name] = now - self._last
        self._last = now
