"""The layouts in which models are published, and what is wrong with others."""

from __future__ import annotations

import json
import re
import shutil

import numpy as np
import pytest
from safetensors.numpy import load_file
from safetensors.numpy import save_file

from propolis import default_runtime
from propolis import dtypes
from propolis.errors import FileFormatError
from propolis.errors import ModelError
from propolis.errors import UnsupportedModelError
from propolis_workers.sd.loading import load_components


UNET = "unet/diffusion_pytorch_model.safetensors"
VAE = "vae/diffusion_pytorch_model.safetensors"
TEXT = "text_encoder/model.safetensors"


@pytest.fixture
def folder(folders, tmp_path):
    """A copy of the tiny SD 1.5, to be changed."""
    return shutil.copytree(folders("sd15"), tmp_path / "sd15")


def load(folder, dtype=dtypes.f32, progress=None):
    """The components, on the CPU."""
    return load_components(folder, default_runtime().cpu, dtype, progress)


def rewrite(path, change):
    """Replace the tensors of a file by what ``change`` makes of each name and array."""
    tensors = dict(change(*item) for item in load_file(path).items())
    save_file(tensors, path)


def edit(path, **changes):
    """Change a JSON file; None removes."""
    values = json.loads(path.read_text()) | changes
    kept = {key: value for key, value in values.items() if value is not None}
    path.write_text(json.dumps(kept))


def outputs(components, golden, on_cpu):
    """What all models give for the golden inputs."""
    features = components.text_encoders[0](on_cpu(golden["sd15.text_encoder.ids"]))
    keys = ("sample", "timestep", "context")
    noise = components.unet(*(on_cpu(golden[f"sd15.unet.{key}"]) for key in keys))
    seen = components.vae.encode(on_cpu(golden["sd15.vae.image"])).mean
    image = components.vae.decode(on_cpu(golden["sd15.vae.latents"]))
    return [x.numpy() for x in (features.last, features.pooled, noise, seen, image)]


@pytest.fixture
def same(models, golden, on_cpu):
    """Return a function that asserts that a folder's models are those of the tiny SD 1.5."""

    def check(folder, limit=0.0, **options):
        expected = outputs(models("sd15"), golden, on_cpu)
        loaded = load(folder, **options)
        for ours, theirs in zip(outputs(loaded, golden, on_cpu), expected, strict=True):
            assert np.abs(ours - theirs).max() <= limit * np.ptp(theirs)
        return loaded

    return check


def test_no_prefix(folder, same, models):
    """Text encoders load as transformers 5 writes them; layers keep their published names."""
    rewrite(folder / TEXT, lambda n, t: (n.removeprefix("text_model."), t))
    loaded = same(folder)
    assert models("sd15").modules.keys() == loaded.modules.keys()
    assert "text_encoder.text_model.encoder.layers.0.mlp.fc1" in loaded.modules


def test_position_ids(folder, same):
    """Old text encoders hold their positions; they are left alone."""
    name = "text_model.embeddings.position_ids"
    tensors = load_file(folder / TEXT) | {name: np.arange(77, dtype=np.int64)[None]}
    save_file(tensors, folder / TEXT)
    same(folder)


def test_old_vae_names(folder, same):
    """VAEs load with the names and shapes that attention had in old files."""
    old = {"to_q": "query", "to_k": "key", "to_v": "value", "to_out.0": "proj_attn"}

    def renamed(name, tensor):
        for new, before in old.items():
            name = name.replace(f".{new}.", f".{before}.")
        return name, tensor

    rewrite(folder / VAE, renamed)
    assert any(".query." in name for name in load_file(folder / VAE))
    same(folder)


def test_convolutions_and_linear_layers(folder, same):
    """A linear layer may be stored as a 1x1 convolution, and the other way round."""

    def other(name, tensor):
        if ".proj_in.weight" in name or ".conv_shortcut.weight" in name:
            tensor = tensor.reshape(tensor.shape[:2])
        elif ".to_q.weight" in name:
            tensor = tensor[:, :, None, None]
        return name, np.ascontiguousarray(tensor)

    rewrite(folder / UNET, other)
    rewrite(folder / VAE, other)
    same(folder)


@pytest.mark.parametrize(
    "index",
    [
        "diffusion_pytorch_model.safetensors.index.json",
        "diffusion_pytorch_model.safetensors.index.fp16.json",
        "diffusion_pytorch_model.fp16.safetensors.index.json",
    ],
)
def test_shards(folder, same, index):
    """Weights in several files load by their index."""
    tensors = list(load_file(folder / UNET).items())
    (folder / UNET).unlink()
    places = {}
    for number in (0, 1):
        part = dict(tensors[number::2])
        shard = f"diffusion_pytorch_model-{number + 1:05}-of-00002.safetensors"
        save_file(part, folder / "unet" / shard)
        places |= dict.fromkeys(part, shard)
    (folder / "unet" / index).write_text(json.dumps({"weight_map": places}))
    same(folder)


def test_fp16_variant(folder, same):
    """Half precision files are used where there are no others."""
    for name in (UNET, VAE, TEXT):
        rewrite(folder / name, lambda n, t: (n, t.astype(np.float16)))
        (folder / name).rename((folder / name).with_suffix(".fp16.safetensors"))
    same(folder, limit=5e-3)


def test_full_precision_first(folder, same):
    """Where both are there, the full precision is used."""
    for name in (UNET, VAE, TEXT):
        zeros = {n: np.zeros_like(t) for n, t in load_file(folder / name).items()}
        save_file(zeros, (folder / name).with_suffix(".fp16.safetensors"))
    same(folder)


def test_half_precision(folder, same):
    """In f16 the models are near, the VAE in f16 too."""
    loaded = same(folder, limit=2e-2, dtype=dtypes.f16)
    assert dtypes.f16 is loaded.modules["unet.conv_in"].weight.dtype
    assert dtypes.f16 is loaded.modules["vae.encoder.conv_in"].weight.dtype


@pytest.mark.parametrize(
    ("says", "dtype"), [({}, dtypes.f32), ({"force_upcast": False}, dtypes.f16)]
)
def test_a_vae_that_overflows_half_precision(folders, tmp_path, says, dtype):
    """SDXL's stays in f32, unless its config says that it need not."""
    folder = tmp_path / "model"
    shutil.copytree(folders("sdxl"), folder)
    edit(folder / "vae/config.json", **says)
    assert load(folder, dtype=dtypes.f16).modules["vae.encoder.conv_in"].weight.dtype is dtype


def test_f32_weights_are_the_files_bytes(folder):
    """Weights that need no cast are views of the mapped file: they take no memory."""
    loaded = load(folder)
    for name in ("unet.conv_in", "text_encoder.text_model.encoder.layers.0.mlp.fc1"):
        assert not loaded.modules[name].weight.array.flags.writeable


def test_progress(folder):
    """Progress rises to all bytes."""
    seen = []
    load(folder, progress=lambda done, total: seen.append((done, total)))
    assert sorted(seen) == seen
    assert seen[-1][0] == seen[-1][1] > 100_000


@pytest.mark.parametrize(
    ("file", "name", "shape"),
    [
        (UNET, "down_blocks.0.resnets.0.conv1.weight", (16, 15, 3, 3)),
        (UNET, "mid_block.attentions.0.transformer_blocks.0.attn2.to_k.weight", (32, 768)),
        (VAE, "decoder.mid_block.attentions.0.to_q.weight", (16, 17)),
        (TEXT, "text_model.final_layer_norm.bias", (25,)),
    ],
)
def test_wrong_shape(folder, file, name, shape):
    """A tensor of another shape is named, with its file and both shapes."""
    rewrite(folder / file, lambda n, t: (n, np.zeros(shape, np.float32) if n == name else t))
    component = file.partition("/")[0]
    found = re.escape(f"{component}: tensor {name} has shape {shape}, the model's settings say (")
    with pytest.raises(ModelError, match=found):
        load(folder)


@pytest.mark.parametrize("file", [UNET, VAE, TEXT])
def test_missing_tensor(folder, file):
    """A tensor that is not there is named."""
    tensors = load_file(folder / file)
    name = sorted(n for n in tensors if n.endswith("weight"))[3]
    del tensors[name]
    save_file(tensors, folder / file)
    with pytest.raises(ModelError, match=f"tensor {name} is missing"):
        load(folder)


@pytest.mark.parametrize(
    "name",
    [
        "unet",
        "vae",
        "tokenizer",
        "scheduler",
        "model_index.json",
        "unet/config.json",
        "text_encoder/config.json",
        "scheduler/scheduler_config.json",
        UNET,
        VAE,
        TEXT,
    ],
)
def test_missing_file(folder, name):
    """What is missing of a model is named."""
    path = folder / name
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    named = path.parent if path.suffix == ".safetensors" else path
    with pytest.raises((ModelError, FileFormatError), match=named.name):
        load(folder)


@pytest.mark.parametrize("file", ["diffusion_pytorch_model.bin", "model.ckpt"])
def test_pickle(folder, file):
    """A model that is there as a pickle alone is refused, whatever is in it."""
    (folder / UNET).rename(folder / "unet" / file)
    with pytest.raises(UnsupportedModelError, match=f"{file}: a Python pickle .* safetensors"):
        load(folder)


def test_single_file(folder):
    """A file in place of a folder is refused, with what to do."""
    with pytest.raises(UnsupportedModelError, match=r"a file; give a folder .* from_single_file"):
        load(folder / UNET)
    with pytest.raises(ModelError, match="there is no such folder"):
        load(folder / "nothing")


def test_no_text_encoder(folder):
    """A pipeline without a text encoder is refused."""
    edit(folder / "model_index.json", text_encoder=[None, None])
    with pytest.raises(UnsupportedModelError, match="0 text encoders and 1 tokenizers"):
        load(folder)


def test_other_pipeline(folder):
    """A model of another kind is refused by its name, not for what it has not."""
    changes = {"_class_name": "StableDiffusion3Pipeline", "unet": None, "transformer": ["x", "y"]}
    edit(folder / "model_index.json", **changes)
    with pytest.raises(UnsupportedModelError, match="a StableDiffusion3Pipeline, which is not sup"):
        load(folder)


def test_projection_missing(folders, tmp_path):
    """A text encoder that must project and cannot is incomplete, though it would run."""
    folder = shutil.copytree(folders("sdxl"), tmp_path / "sdxl")
    path = folder / "text_encoder_2/model.safetensors"
    tensors = load_file(path)
    del tensors["text_projection.weight"]
    save_file(tensors, path)
    with pytest.raises(ModelError, match=r"tensor text_projection\.weight is missing"):
        load(folder)


def test_projection_unused(folder, same):
    """A projection that is in the file of an encoder without one is left alone."""
    extra = {"text_projection.weight": np.ones((24, 24), np.float32)}
    save_file(load_file(folder / TEXT) | extra, folder / TEXT)
    same(folder)


def test_projection_unsaid(folders, tmp_path):
    """Where settings do not say whether an encoder projects, its weights do."""
    folder = shutil.copytree(folders("sdxl"), tmp_path / "sdxl")
    edit(folder / "text_encoder_2/config.json", architectures=None)
    first, second = load(folder).text_encoders
    assert first.projection is None
    assert second.projection is not None


def test_refiner(folders, tmp_path):
    """A pipeline with the second text encoder alone, as SDXL's refiner, loads."""
    folder = shutil.copytree(folders("sdxl"), tmp_path / "sdxl")
    absent = {"text_encoder": [None, None], "tokenizer": [None, None]}
    edit(folder / "model_index.json", **absent)
    loaded = load(folder)
    assert (folder / "tokenizer_2",) == loaded.tokenizer_folders
    assert 1 == len(loaded.text_encoders)
