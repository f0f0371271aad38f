"""What the class of a pipeline, and the index of its parts, make of a model: as in diffusers."""

from __future__ import annotations

import json
import shutil

import pytest
from safetensors.numpy import load_file
from safetensors.numpy import save_file

from propolis import default_runtime
from propolis.errors import ConfigError
from propolis.errors import UnsupportedModelError
from propolis_workers.sd.config import UNetConfig
from propolis_workers.sd.config import VAEConfig
from propolis_workers.sd.loading import load_components
from propolis_workers.sd.schedulers import make_scheduler


INDEX = "model_index.json"
CONFIG = "scheduler/scheduler_config.json"


@pytest.fixture
def copied(folders, tmp_path):
    """Copies of tiny models, to be changed."""
    return lambda family: shutil.copytree(folders(family), tmp_path / family)


def edit(path, **changes):
    """Change a JSON file; what becomes ``...`` is removed."""
    values = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({key: v for key, v in values.items() if v is not ...}))


def load(folder):
    """The components, on the CPU."""
    return load_components(folder, default_runtime().cpu)


@pytest.mark.parametrize("written", [..., 0, 2])
def test_stable_diffusion_begins_at_one(copied, written):
    """
    Its pipelines set ``steps_offset`` to 1, and turn ``clip_sample`` off; SDXL's do neither.

    That for inpainting leaves ``clip_sample`` alone.
    """
    expected = {"sd15": (1, False), "inpaint": (1, True), "sdxl": (written, True)}
    for family, (offset, clips) in expected.items():
        folder = copied(family)
        edit(folder / CONFIG, steps_offset=written, clip_sample=True)
        config = load(folder).scheduler_config
        assert (config.get("steps_offset", ...), config["clip_sample"]) == (offset, clips)


def test_the_index_names_the_scheduler(copied):
    """The class in the scheduler's own file is that which wrote it, and may be missing."""
    for written in ("DPMSolverMultistepScheduler", ...):
        folder = copied("sd15")
        edit(folder / INDEX, scheduler=["diffusers", "EulerDiscreteScheduler"])
        edit(folder / CONFIG, _class_name=written)
        assert make_scheduler(None, load(folder).scheduler_config).name == "euler"
        shutil.rmtree(folder)


@pytest.mark.parametrize(
    ("family", "written", "zeros"),
    [
        ("sdxl", ..., True),
        ("sdxl", True, True),
        ("sdxl", False, False),
        ("sdxl", None, False),
        ("sd15", True, False),
    ],
)
def test_zeros_for_an_empty_prompt(copied, family, written, zeros):
    """SDXL's pipeline takes them unless the index says no; others know no such thing."""
    folder = copied(family)
    edit(folder / INDEX, force_zeros_for_empty_prompt=written)
    assert load(folder).model_index.zeros_for_empty_prompt is zeros


def test_text_encoders_that_mask_padding(copied):
    """Refused where the pipeline would heed it, which SDXL's does not."""
    for family in ("sd15", "inpaint", "lcm"):
        folder = copied(family)
        edit(folder / "text_encoder/config.json", use_attention_mask=True)
        with pytest.raises(UnsupportedModelError, match="use_attention_mask is 'True'"):
            load(folder)
    folder = copied("sdxl")
    edit(folder / "text_encoder/config.json", use_attention_mask=True)
    load(folder)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"_class_name": "AnimateDiffPipeline"}, "a AnimateDiffPipeline, which is not supported"),
        (
            {"_class_name": "StableDiffusionControlNetPipeline"},
            "supported: StableDiffusionPipeline, ",
        ),
        ({"_class_name": "StableDiffusionXLPipeline"}, "its UNet is Stable Diffusion 1's or 2's"),
        ({"vae": ["diffusers", "AutoencoderTiny"]}, "vae is a AutoencoderTiny; supported: Auto"),
        ({"unet": ["diffusers", "UNet2DModel"]}, "unet is a UNet2DModel; supported: UNet2DCond"),
        ({"text_encoder": ["transformers", "T5EncoderModel"]}, "text_encoder is a T5EncoderModel"),
    ],
)
def test_other_pipelines_and_parts(copied, changes, says):
    """What draws otherwise, or has parts that would be left out, is refused by its name."""
    folder = copied("sd15")
    edit(folder / INDEX, **changes)
    with pytest.raises(UnsupportedModelError, match=says):
        load(folder)


def test_an_index_without_a_class(copied):
    """What it must be is told by its parts."""
    for family, offset in (("sd15", 1), ("sdxl", 0)):
        folder = copied(family)
        edit(folder / INDEX, _class_name=...)
        edit(folder / CONFIG, steps_offset=0)
        assert load(folder).scheduler_config["steps_offset"] == offset


@pytest.mark.parametrize("stale", ["model", "diffusion_pytorch_model", "fp16"])
def test_weights_that_diffusers_would_not_read(copied, stale):
    """
    Shards come before a whole file that was there before, and transformers' name is not its.

    Variants, in shards too, are for folders without full precision.
    """
    folder = copied("sd15") / "unet"
    whole = folder / "diffusion_pytorch_model.safetensors"
    tensors = load_file(whole)
    zeros = {name: one * 0 for name, one in tensors.items()}
    if stale == "fp16":
        shard = "diffusion_pytorch_model.fp16-00001-of-00001.safetensors"
        save_file(zeros, folder / shard)
        index = {"metadata": {}, "weight_map": dict.fromkeys(tensors, shard)}
        (folder / f"{whole.name}.index.fp16.json").write_text(json.dumps(index))
    elif stale != "model":
        whole.unlink()
        shard = "diffusion_pytorch_model-00001-of-00001.safetensors"
        save_file(tensors, folder / shard)
        index = {"metadata": {}, "weight_map": dict.fromkeys(tensors, shard)}
        (folder / f"{whole.name}.index.json").write_text(json.dumps(index))
    if stale != "fp16":
        save_file(zeros, folder / f"{stale}.safetensors")
    weight = load(folder.parent).modules["unet.conv_in"].weight.numpy()
    assert (weight == tensors["conv_in.weight"]).all()


def test_the_middle_attends_to_itself(copied):
    """``only_cross_attention`` is of the ways down and up; a list may leave the last level out."""
    folder = copied("sd15")
    levels = len(json.loads((folder / "unet/config.json").read_text())["block_out_channels"])
    edit(folder / "unet/config.json", only_cross_attention=[False] * (levels - 1) + [True])
    assert "unet.mid_block.attentions.0.transformer_blocks.0.attn1.to_k" in load(folder).modules


def test_null_flags_are_false():
    """As in Python, to which JSON's null comes as None; what is missing has its default."""
    config = {"_class_name": "DDIMScheduler", "set_alpha_to_one": None}
    assert make_scheduler(None, config).settings.set_alpha_to_one is False
    assert make_scheduler("ddim", {}).settings.set_alpha_to_one is True
    assert UNetConfig.from_json({"flip_sin_to_cos": None}).flip_sin_to_cos is False
    assert UNetConfig.from_json({}).flip_sin_to_cos is True


@pytest.mark.parametrize("kind", ["learned", "learned_range"])
def test_learned_variances(kind):
    """No scheduler takes them; how noise is made by another means nothing to this one."""
    for name in ("dpmpp_2m", "ddpm"):
        with pytest.raises(ConfigError, match=f"variance_type is '{kind}'"):
            make_scheduler(name, {"variance_type": kind})
        make_scheduler(name, {"variance_type": "fixed_large"})
    make_scheduler("dpmpp_2m", {"variance_type": "fixed_large_log"})
    with pytest.raises(ConfigError, match="variance_type is 'fixed_large_log'"):
        make_scheduler("ddpm", {"variance_type": "fixed_large_log"})


@pytest.mark.parametrize("changes", [{"out_channels": 4}, {"in_channels": 1, "out_channels": 1}])
def test_images_have_three_colours(changes):
    """A VAE of others is refused before anything is drawn."""
    with pytest.raises(UnsupportedModelError, match=r"(in|out)_channels is '\d'"):
        VAEConfig.from_json(changes)


def test_images_that_are_no_squares(copied):
    """A UNet's height and width are those of the image that is drawn if nobody asks for others."""
    folder = copied("sd15")
    edit(folder / "unet/config.json", sample_size=[8, 16])
    components = load(folder)
    scale = components.vae.config.scale
    assert components.size == (16 * scale, 8 * scale)
