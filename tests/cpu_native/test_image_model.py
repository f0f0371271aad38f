"""The small Stable Diffusion model in bf16, on the kernels."""

from __future__ import annotations

import numpy as np
import pytest
from safetensors.numpy import save_file

from propolis import dtypes
from propolis.released import Released
from propolis_cpu_native._native import matrix_instructions
from propolis_workers.sd.lora import LoRA
from propolis_workers.sd.params import GenerateParams
from propolis_workers.sd.pipeline import StableDiffusion


PARAMS = GenerateParams(prompt="a red circle to the left of a blue square", seed=1, steps=10)

pytestmark = [pytest.mark.model, pytest.mark.slow]


def pixels(model):
    """What it draws, as whole numbers."""
    return model.generate(PARAMS).pixels[0].astype(int)


def linear_weights(model):
    """Of all its linear layers."""
    found = [layer.weight for layer in model.components.modules.values()]
    return [weight for weight in found if len(weight.shape) == 2]


def test_an_image_in_bf16(runtime):
    """It is as near to the reference's in f32 as the reference's own in bf16, half as far again."""
    truth = pixels(StableDiffusion.load(runtime=runtime(plugins=["cpu_ref"])))
    rounded = StableDiffusion.load(runtime=runtime(plugins=["cpu_ref"]), dtype=dtypes.bf16)
    model = StableDiffusion.load(runtime=runtime(), dtype=dtypes.bf16)
    allowed = 1.5 * np.abs(pixels(rounded) - truth).mean()
    assert 0 < np.abs(pixels(model) - truth).mean() <= allowed
    # Nobody asked for the elements of what is packed; of GEGLU's layers halves are used.
    halves = sum(name.endswith("ff.net.0.proj") for name in model.components.modules)
    released = [isinstance(weight, Released) for weight in linear_weights(model)]
    assert sum(released) == (len(released) - halves if matrix_instructions() else 0)


def test_a_lora_on_packed_weights(runtime, tmp_path):
    """It changes the image; without it the image is the same again, bit for bit."""
    model = StableDiffusion.load(runtime=runtime(), dtype=dtypes.bf16)
    name = next(
        name
        for name, layer in model.components.modules.items()
        if name.startswith("unet.") and name.endswith("to_q")
    )
    outputs, depth = model.components.modules[name].weight.shape
    rng = np.random.default_rng(5)
    matrices = {
        f"{name}.lora_A.weight": rng.normal(0, 1, (4, depth)).astype(np.float32),
        f"{name}.lora_B.weight": rng.normal(0, 1, (outputs, 4)).astype(np.float32),
    }
    save_file(matrices, tmp_path / "some.safetensors")
    lora = LoRA.open(tmp_path / "some.safetensors")
    before = pixels(model)
    model.apply_lora(lora, 1.0)
    assert np.abs(pixels(model) - before).max() > 0
    model.remove_lora(lora)
    np.testing.assert_array_equal(pixels(model), before)
