"""LoRA files on a tiny model, against numpy in float64."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
from safetensors.numpy import save_file

from propolis import default_runtime
from propolis import dtypes
from propolis.errors import FileFormatError
from propolis.errors import UnsupportedModelError
from propolis.errors import UsageError
from propolis_workers.sd import LoRA
from propolis_workers.sd.loading import load_components
from propolis_workers.sd.lora import Adapters
from propolis_workers.sd.lora_names import spellings


Q = "down_blocks.0.attentions.0.transformer_blocks.0.attn1.to_q"
OUT = "down_blocks.0.attentions.0.transformer_blocks.0.attn1.to_out.0"
CONV = "down_blocks.0.resnets.0.conv1"
PROJ = "down_blocks.0.attentions.0.proj_in"
TEXT = "text_model.encoder.layers.0.self_attn.q_proj"
LAYERS = (f"unet.{Q}", f"unet.{OUT}", f"unet.{CONV}", f"unet.{PROJ}", f"text_encoder.{TEXT}")
RANK = 4


@pytest.fixture
def components(folders):
    """The tiny model of SD 1.5, to be changed."""
    return load_components(folders("sd15"), default_runtime().cpu)


@pytest.fixture
def matrices(components):
    """Down and up matrices of some layers, by the model's name."""
    random = np.random.default_rng(3)
    found = {}
    for name in LAYERS:
        shape = components.modules[name].weight.shape
        down = random.normal(0, 0.3, (RANK, *shape[1:])).astype("f4")
        up = random.normal(0, 0.3, (shape[0], RANK, *(1,) * (len(shape) - 2))).astype("f4")
        found[name] = down, up
    return found


def kohya(name):
    """The name in kohya's layout."""
    part, _, rest = name.partition(".")
    prefix = {"unet": "lora_unet_", "text_encoder": "lora_te_"}[part]
    return prefix + rest.replace(".", "_")


def old_diffusers(name):
    """The name in the layout that diffusers had first."""
    if ".attn1." in name:
        return name.removesuffix(".0").replace(".to_", ".processor.to_") + "_lora"
    return name.replace("q_proj", "to_q") + ("_lora" if "q_proj" in name else ".lora")


def text_before_peft(name):
    """The name in the layout that diffusers had for text encoders next."""
    return name + (".lora_linear_layer" if name.startswith("text") else ".lora")


LAYOUTS = {
    "kohya": (kohya, ".lora_down.weight", ".lora_up.weight"),
    "diffusers": (lambda name: name, ".lora_A.weight", ".lora_B.weight"),
    "diffusers-named": (lambda name: name, ".lora_A.default.weight", ".lora_B.default.weight"),
    "diffusers-old": (old_diffusers, ".down.weight", ".up.weight"),
    "diffusers-middle": (text_before_peft, ".down.weight", ".up.weight"),
}


def written(path, matrices, layout="kohya", alpha=None, **metadata):
    """A LoRA file."""
    spelled, down, up = LAYOUTS[layout]
    tensors = {}
    for name, (a, b) in matrices.items():
        tensors |= {spelled(name) + down: a, spelled(name) + up: b}
        if alpha is not None:
            tensors[spelled(name) + ".alpha"] = np.array(alpha, np.float32)
    save_file(tensors, path, metadata=metadata or None)
    return path


def weights(components):
    """All weights of the linear and convolution layers."""
    return {name: layer.weight.numpy().copy() for name, layer in components.modules.items()}


def expected(weight, down, up, scale):
    """``W + up @ down * scale`` in float64."""
    change = up.reshape(len(up), -1).astype(float) @ down.reshape(len(down), -1).astype(float)
    return weight + change.reshape(weight.shape) * scale


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("alpha", [None, 1.5])
def test_layouts(components, matrices, tmp_path, layout, alpha):
    """In each layout, with alpha or without, the weights are those of float64; no others change."""
    own = weights(components)
    lora = LoRA.open(written(tmp_path / "l.safetensors", matrices, layout, alpha))
    Adapters(components.modules).apply(lora, 0.7)
    changed = weights(components)
    for name, weight in own.items():
        if name not in matrices:
            np.testing.assert_array_equal(changed[name], weight)
            continue
        truth = expected(weight, *matrices[name], (alpha or RANK) / RANK * 0.7)
        assert np.abs(changed[name] - truth).max() <= 1e-6
        assert np.abs(changed[name] - weight).max() > 0.01


def test_removed(components, matrices, tmp_path):
    """Without its LoRAs the model has the same bits, in whatever order they go."""
    own = weights(components)
    layers = dict(components.modules)
    one = LoRA.open(written(tmp_path / "one.safetensors", matrices))
    first = dict(list(matrices.items())[:2])
    two = LoRA.open(written(tmp_path / "two.safetensors", first, alpha=2.0))
    adapters = Adapters(components.modules)
    adapters.apply(one, 0.7)
    only_one = weights(components)
    adapters.apply(two, -0.3)
    both = weights(components)
    for name, (down, up) in first.items():
        truth = expected(expected(own[name], down, up, 0.7), down, up, -0.15)
        assert np.abs(both[name] - truth).max() <= 1e-6
    adapters.remove(two)
    for name, weight in weights(components).items():
        np.testing.assert_array_equal(weight, only_one[name])
    adapters.apply(two, 1.0)
    adapters.remove(one)
    adapters.remove(two)
    for name, weight in weights(components).items():
        assert weight.tobytes() == own[name].tobytes()
    assert layers == components.modules
    assert not adapters.active
    with pytest.raises(UsageError, match=r"one.safetensors is not on the model; active: none"):
        adapters.remove(one)


def test_half(folders, matrices, tmp_path):
    """Weights in f16 are rounded once, from the sum of all in f32."""
    components = load_components(folders("sd15"), default_runtime().cpu, dtypes.f16)
    own = weights(components)
    adapters = Adapters(components.modules)
    for n in (1, 2, 3):
        path = written(tmp_path / f"{n}.safetensors", matrices)
        adapters.apply(LoRA.open(path), 0.1 * n)
    for name in matrices:
        truth = own[name].astype(float)
        truth = expected(truth, *matrices[name], 0.6)
        assert components.modules[name].weight.dtype is dtypes.f16
        half_ulp = np.spacing(np.abs(truth).astype(np.float16)).astype(float) / 2
        assert (np.abs(components.modules[name].weight.numpy() - truth) <= half_ulp + 1e-6).all()


def test_convolution_as_linear(components, matrices, tmp_path):
    """A 1x1 convolution's matrices fit the linear layer that it is here."""
    name = f"unet.{PROJ}"
    down, up = matrices[name]
    stored = {name: (down[..., None, None], up[..., None, None])}
    own = components.modules[name].weight.numpy().copy()
    Adapters(components.modules).apply(LoRA.open(written(tmp_path / "c.safetensors", stored)))
    truth = expected(own, down, up, 1.0)
    assert np.abs(components.modules[name].weight.numpy() - truth).max() <= 1e-6


def test_stated_alpha(components, matrices, tmp_path):
    """Alpha may stand in the header, for a part of the model or for one layer."""
    stated = {"unet.lora_alpha": 8, "unet.alpha_pattern": {Q: 2}}
    path = written(
        *(tmp_path / "l.safetensors", matrices, "diffusers"),
        lora_adapter_metadata=json.dumps(stated),
    )
    scales = {update.layer: update.scale for update in LoRA.open(path).updates}
    assert {
        f"unet.{Q}": 0.5,
        f"unet.{OUT}": 2.0,
        f"unet.{CONV}": 2.0,
        f"unet.{PROJ}": 2.0,
        f"text_encoder.{TEXT}": 1.0,
    } == scales


@pytest.mark.parametrize(
    ("stated", "scale"),
    [
        ({"lora_alpha": 0}, 0.0),
        ({"lora_alpha": None}, 1.0),
        ({"alpha_pattern": {"to_q": 16}}, 4.0),
        ({"alpha_pattern": {"o_q": 16}}, 2.0),
        ({"alpha_pattern": {"attn1.to_q": 16, "to_q": 4}}, 4.0),
        ({"use_rslora": True}, 4.0),
        ({"use_rslora": True, "alpha_pattern": {"to_q": 16}}, 8.0),
    ],
)
def test_stated_as_peft_has_it(tmp_path, stated, scale):
    """A pattern is a layer's name or its end, the first counts; of rsLoRA the root divides."""
    matrices = {f"unet.{Q}": (np.ones((4, 8), np.float32), np.ones((8, 4), np.float32))}
    whole = {"unet.lora_alpha": 8, **{f"unet.{name}": value for name, value in stated.items()}}
    path = written(
        *(tmp_path / "l.safetensors", matrices, "diffusers"),
        lora_adapter_metadata=json.dumps(whole),
    )
    assert [scale] == [update.scale for update in LoRA.open(path).updates]


def test_stated_by_expressions(matrices, tmp_path):
    """Regular expressions of somebody else's file are not run; the file is refused."""
    stated = {"unet.alpha_pattern": {".*to_[qk]": 2}}
    path = written(
        *(tmp_path / "l.safetensors", matrices, "diffusers"),
        lora_adapter_metadata=json.dumps(stated),
    )
    with pytest.raises(
        UnsupportedModelError, match=r"alpha_pattern has '\.\*to_\[qk\]'; supported"
    ):
        LoRA.open(path)


@pytest.mark.parametrize("stated", ["[]", "{", '{"unet.lora_alpha": "x"}'])
def test_stated_alpha_damaged(matrices, tmp_path, stated):
    """A header that cannot be understood is not passed over."""
    path = written(
        *(tmp_path / "l.safetensors", matrices, "diffusers"), lora_adapter_metadata=stated
    )
    with pytest.raises(FileFormatError, match="lora_adapter_metadata cannot be used"):
        LoRA.open(path)


def test_text_encoders(folders, tmp_path):
    """SDXL's two text encoders have names of their own in kohya's layout."""
    components = load_components(folders("sdxl"), default_runtime().cpu)
    tensors = {}
    for kohya_name, name in (("lora_te1", "text_encoder"), ("lora_te2", "text_encoder_2")):
        shape = components.modules[f"{name}.{TEXT}"].weight.shape
        layer = f"{kohya_name}_{TEXT.replace('.', '_')}"
        tensors[f"{layer}.lora_down.weight"] = np.ones((1, shape[1]), "f4")
        tensors[f"{layer}.lora_up.weight"] = np.ones((shape[0], 1), "f4")
    own = weights(components)
    save_file(tensors, tmp_path / "l.safetensors")
    Adapters(components.modules).apply(LoRA.open(tmp_path / "l.safetensors"))
    changed = {n for n, w in weights(components).items() if not np.array_equal(w, own[n])}
    assert {f"text_encoder.{TEXT}", f"text_encoder_2.{TEXT}"} == changed


def test_names_of_original_sdxl():
    """The names of SDXL's original code, in its published layout, lead to diffusers' layers."""
    block = "transformer_blocks.0.attn1.to_q"
    # As conversion tables of the published model have them: 3, 3 and 3 residual blocks.
    truth = {
        "lora_unet_input_blocks_0_0": "conv_in",
        "lora_unet_input_blocks_1_0_in_layers_2": "down_blocks.0.resnets.0.conv1",
        "lora_unet_input_blocks_3_0_op": "down_blocks.0.downsamplers.0.conv",
        "lora_unet_input_blocks_4_0_skip_connection": "down_blocks.1.resnets.0.conv_shortcut",
        "lora_unet_input_blocks_4_1_transformer_blocks_0_attn1_to_q": (
            f"down_blocks.1.attentions.0.{block}"
        ),
        "lora_unet_input_blocks_8_1_proj_in": "down_blocks.2.attentions.1.proj_in",
        "lora_unet_middle_block_0_emb_layers_1": "mid_block.resnets.0.time_emb_proj",
        "lora_unet_middle_block_1_proj_out": "mid_block.attentions.0.proj_out",
        "lora_unet_middle_block_2_out_layers_3": "mid_block.resnets.1.conv2",
        "lora_unet_output_blocks_0_1_transformer_blocks_0_attn1_to_q": (
            f"up_blocks.0.attentions.0.{block}"
        ),
        "lora_unet_output_blocks_2_2_conv": "up_blocks.0.upsamplers.0.conv",
        "lora_unet_output_blocks_5_1_transformer_blocks_0_attn1_to_q": (
            f"up_blocks.1.attentions.2.{block}"
        ),
        "lora_unet_output_blocks_8_0_in_layers_2": "up_blocks.2.resnets.2.conv1",
        "lora_unet_time_embed_0": "time_embedding.linear_1",
        "lora_unet_label_emb_0_2": "add_embedding.linear_2",
        "lora_unet_out_2": "conv_out",
    }
    names = [f"down_blocks.{i}.resnets.{j}.conv1" for i in range(3) for j in range(2)]
    names += [f"up_blocks.{i}.resnets.{j}.conv1" for i in range(3) for j in range(3)]
    found = spellings(f"unet.{name}" for name in {*names, *truth.values()})
    assert {key: f"unet.{name}" for key, name in truth.items()} == {k: found[k] for k in truth}


@pytest.mark.oracle
@pytest.mark.filterwarnings("ignore")  # theirs, of each other
def test_names_of_original_sdxl_live(folders, oracles):
    """They are what diffusers makes of them, for all attention and changes of resolution."""
    from diffusers.loaders import lora_conversion_utils as theirs

    modules = load_components(folders("sdxl"), default_runtime().cpu).modules
    found = {
        original: name
        for original, name in spellings(modules).items()
        if re.search(
            r"_(input|output)_blocks_\d+_\d+_(trans|proj|conv|op)|middle_block_1", original
        )
    }
    assert len(found) > 60

    class Config:
        layers_per_block = 1

    keys = {f"{original}.lora_down.weight": original for original in found}
    mapped = theirs._maybe_map_sgm_blocks_to_diffusers(dict(keys), Config)
    # What they rename next, to the same effect everywhere.
    rest = {"input_blocks": "down_blocks", "middle_block": "mid_block", "_0_op.": "_0_conv."}
    rest["output_blocks"] = "up_blocks"
    for key, original in mapped.items():
        for old, new in rest.items():
            key = key.replace(old, new)  # noqa: PLW2901
        assert f"{kohya(found[original])}.lora_down.weight" == key


def test_another_model(components, matrices, folders, tmp_path):
    """A LoRA of another model is refused, with the first layer and both shapes; nothing changes."""
    own = weights(components)
    name = f"unet.{CONV}"
    down, up = matrices[name]
    wide = {**matrices, name: (np.zeros((RANK, 99, 3, 3), "f4"), up)}
    adapters = Adapters(components.modules)
    shape = components.modules[name].weight.shape
    with pytest.raises(UsageError) as caught:
        adapters.apply(LoRA.open(written(tmp_path / "wide.safetensors", wide)))
    assert (
        f"LoRA wide.safetensors is for another model: layer '{kohya(name)}' has matrices "
        f"(4, 99, 3, 3) and {up.shape}, the weight of this model's {name} is {shape}"
    ) == str(caught.value)
    strange = {"unet.down_blocks.7.resnets.0.conv1": (down, up)}
    with pytest.raises(UsageError, match=r"'lora_unet_down_blocks_7_resnets_0_conv1'.*no such"):
        adapters.apply(LoRA.open(written(tmp_path / "strange.safetensors", strange)))
    with pytest.raises(UsageError, match="strength is nan"):
        adapters.apply(LoRA.open(written(tmp_path / "l.safetensors", matrices)), float("nan"))
    assert not adapters.active
    for key, weight in weights(components).items():
        assert weight.tobytes() == own[key].tobytes()


@pytest.mark.parametrize(
    ("tensors", "error", "message"),
    [
        ({"a.hada_w1_a": (2, 2)}, UnsupportedModelError, "is a LoHa"),
        ({"a.lora_mid.weight": (2, 2)}, UnsupportedModelError, "a LoCon with a middle matrix"),
        ({"a.dora_scale": (2, 2)}, UnsupportedModelError, "is a DoRA"),
        (
            {"conv_in.weight": (2, 2)},
            UnsupportedModelError,
            r"no LoRA that .*\(unknown key 'conv_in.weight'\)",
        ),
        ({"a.alpha": ()}, UnsupportedModelError, "holds no LoRA"),
        ({"a.lora_down.weight": (2, 2)}, FileFormatError, "layer 'a' has no up matrix"),
        (
            {"a.lora_down.weight": (2,), "a.lora_up.weight": (2, 2)},
            UnsupportedModelError,
            r"matrices of shapes \(2,\) and \(2, 2\)",
        ),
        (
            {"a.lora_down.weight": (0, 2), "a.lora_up.weight": (2, 0)},
            UnsupportedModelError,
            r"matrices of shapes \(0, 2\)",
        ),
        (
            {"a.lora_down.weight": (2, 2), "a.lora_up.weight": (2, 2), "a.alpha": (2,)},
            FileFormatError,
            "must be one number",
        ),
    ],
)
def test_bad_files(tmp_path, tensors, error, message):
    """What is no LoRA is refused, by name where it is a relative of it."""
    path = tmp_path / "l.safetensors"
    save_file({key: np.ones(shape, "f4") for key, shape in tensors.items()}, path)
    with pytest.raises(error, match=message) as caught:
        LoRA.open(path)
    assert str(caught.value).startswith("l.safetensors")


def test_integers(tmp_path):
    """Matrices of integers are refused."""
    tensors = {f"a.lora_{x}.weight": np.ones((2, 2), np.int32) for x in ("down", "up")}
    save_file(tensors, tmp_path / "l.safetensors")
    with pytest.raises(UnsupportedModelError, match="is i32; a LoRA is in floats"):
        LoRA.open(tmp_path / "l.safetensors")


def test_pickles(tmp_path):
    """A pickle is refused."""
    path = tmp_path / "l.pt"
    path.write_bytes(b"PK\3\4 no matter")
    with pytest.raises(UnsupportedModelError, match="a Python pickle"):
        LoRA.open(path)
