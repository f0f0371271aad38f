"""Models of diffusers and transformers, saved by them: their outputs are the truth."""

from __future__ import annotations

import json

import numpy as np
import pytest

from propolis import default_runtime
from propolis import dtypes
from propolis_workers.sd import clip
from propolis_workers.sd.clip import CLIPText
from propolis_workers.sd.config import CLIPTextConfig
from propolis_workers.sd.config import UNetConfig
from propolis_workers.sd.config import VAEConfig
from propolis_workers.sd.layers import Weights
from propolis_workers.sd.unet import AddedConditions
from propolis_workers.sd.unet import UNet2DCondition
from propolis_workers.sd.vae import AutoencoderKL
from propolis_workers.weights import SafetensorsFolder
from propolis_workers.weights import TensorInfo


pytestmark = [
    pytest.mark.oracle,
    # Theirs, not ours: what they import warns of what it imports.
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]

LIMIT = 1e-5  # of the range of the truth


@pytest.fixture(scope="module")
def oracle(oracles):
    """The torch, diffusers and transformers modules, without gradients."""
    import diffusers
    import torch
    import transformers

    torch.set_num_threads(2)
    torch.manual_seed(0)
    with torch.no_grad():
        yield torch, diffusers, transformers


def close(actual, expected, limit=LIMIT):
    """Each element is off by no more than a small share of the range of all."""
    expected = expected.float().numpy()
    assert expected.shape == actual.shape
    assert np.isfinite(expected).all()
    assert np.abs(actual.numpy() - expected).max() <= limit * np.ptp(expected)


def opened(folder, aliases=()):
    """The settings and weights of a saved model."""
    source = SafetensorsFolder.open(folder)
    return source.config, Weights(source, default_runtime().cpu, aliases=aliases)


@pytest.fixture
def unets(oracle, families, tmp_path):
    """Return a function that makes their UNet with some changes, and ours of what it saves."""

    def make(family="sd15", **changes):
        config = families.FAMILIES[family]["unet"] | changes
        theirs = oracle[1].UNet2DConditionModel.from_config(config).eval()
        theirs.save_pretrained(tmp_path / "unet", max_shard_size=changes.get("shard", "10GB"))
        settings, weights = opened(tmp_path / "unet")
        return theirs, UNet2DCondition(UNetConfig.from_json(settings), weights)

    return make


def check_unet(oracle, on_cpu, theirs, ours, size=(8, 8), tokens=11):
    """Ours gives what theirs does, for latents of some size."""
    torch = oracle[0]
    context = theirs.config.cross_attention_dim
    x = torch.randn(2, theirs.config.in_channels, *size)
    step, text = torch.tensor([999.0, 1.0]), torch.randn(2, tokens, context)
    expected = theirs(x, step, text).sample
    close(ours(*(on_cpu(t.numpy()) for t in (x, step, text))), expected)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"attention_head_dim": [2, 4, 8]},
        {"layers_per_block": 2},
        {"layers_per_block": [1, 2, 2]},
        {"transformer_layers_per_block": [2, 1, 3]},
        {
            "layers_per_block": 2,
            "transformer_layers_per_block": [[1, 2], [2, 1], 1],
            "reverse_transformer_layers_per_block": [1, [3, 1, 2], 2],
        },
        {"mid_block_type": None},
        {"mid_block_type": "UNetMidBlock2D"},
        {"only_cross_attention": [False, True, False]},
        {"flip_sin_to_cos": False, "freq_shift": 1},
        {"conv_in_kernel": 1, "conv_out_kernel": 5},
        {"norm_eps": 1e-3, "norm_num_groups": 4},
        {"out_channels": 8, "in_channels": 5},
        {"sample_size": [8, 16]},
    ],
    ids=str,
)
def test_unet_settings(oracle, unets, on_cpu, changes):
    """Each setting of a UNet means what it means to diffusers."""
    check_unet(oracle, on_cpu, *unets(**changes))


@pytest.mark.parametrize("size", [(9, 7), (5, 12), (4, 4), (3, 3)])
def test_unet_sizes(oracle, unets, on_cpu, size):
    """Latents of sizes that do not halve evenly come back in their size."""
    check_unet(oracle, on_cpu, *unets("sd21"), size=size)


def test_unet_shards(oracle, unets, on_cpu):
    """So does a UNet that diffusers saved in several files."""
    check_unet(oracle, on_cpu, *unets("sd21", shard="200KB"))


def test_transformer_of_faint_input(oracle, unets, on_cpu):
    """Where a feature map hardly varies, the small number in its norm is diffusers' too."""
    torch = oracle[0]
    theirs, ours = unets()
    x, text = torch.randn(1, 32, 2, 2) * 1e-3, torch.randn(1, 5, 24)
    expected = theirs.mid_block.attentions[0](x, encoder_hidden_states=text).sample
    transformer = ours.middle[0].transformer
    close(transformer(on_cpu(x.numpy()), on_cpu(text.numpy())), expected)


def test_unet_added(oracle, unets, on_cpu):
    """SDXL's pooled text and sizes, and LCM's guidance, enter as in diffusers."""
    torch = oracle[0]
    theirs, ours = unets("sdxl", time_cond_proj_dim=6)
    x, text, step = torch.randn(2, 4, 8, 8), torch.randn(2, 77, 40), torch.tensor([500.0, 3.0])
    added = {"text_embeds": torch.randn(2, 20), "time_ids": torch.rand(2, 6) * 1024}
    guidance = torch.randn(2, 6)
    expected = theirs(x, step, text, added_cond_kwargs=added, timestep_cond=guidance).sample
    given = {key: on_cpu(t.numpy()) for key, t in (added | {"guidance": guidance}).items()}
    arguments = (on_cpu(t.numpy()) for t in (x, step, text))
    close(ours(*arguments, AddedConditions(**given)), expected)


@pytest.mark.parametrize("act", ["quick_gelu", "gelu", "gelu_new"])
@pytest.mark.parametrize("end", [2, 513])
@pytest.mark.parametrize("projected", [False, True])
def test_text_encoder(oracle, families, on_cpu, tmp_path, act, end, projected):
    """Activations, both rules for the end of a text and a projection are those of CLIP."""
    torch, _, transformers = oracle
    settings = families.FAMILIES["sdxl"]["text_encoder_2"]
    config = transformers.CLIPTextConfig(**settings | {"hidden_act": act, "eos_token_id": end})
    kind = transformers.CLIPTextModelWithProjection if projected else transformers.CLIPTextModel
    theirs = kind(config).eval()
    for weight in theirs.parameters():  # as made, they hardly differ between tokens
        weight.copy_(torch.randn_like(weight) * 0.3)
    theirs.save_pretrained(tmp_path / "text")
    values, weights = opened(tmp_path / "text", clip.ALIASES)
    ours = CLIPText(CLIPTextConfig.from_json(values), weights)
    ids = torch.randint(3, 512, (3, 20))
    ids[0, 4:], ids[1, 19], ids[2, 7] = 513, 513, 513
    features = ours(on_cpu(ids.numpy()))
    expected = theirs(ids, output_hidden_states=True)
    close(features.last, expected.last_hidden_state)
    close(features.penultimate, expected.hidden_states[-2])
    close(features.pooled, expected.text_embeds if projected else expected.pooler_output)


@pytest.fixture
def vaes(oracle, families, tmp_path):
    """Return a function that makes their VAE with some changes, and ours of what it saves."""

    def make(**changes):
        config = families.FAMILIES["sd15"]["vae"] | changes
        theirs = oracle[1].AutoencoderKL.from_config(config).eval()
        theirs.save_pretrained(tmp_path / "vae")
        settings, weights = opened(tmp_path / "vae")
        return theirs, AutoencoderKL(VAEConfig.from_json(settings), weights)

    return make


@pytest.mark.parametrize(
    "changes",
    [
        {"layers_per_block": 2, "norm_num_groups": 8},
        {"use_quant_conv": False, "use_post_quant_conv": False, "latent_channels": 16},
        {"mid_block_add_attention": False},
        {"block_out_channels": [16], "down_block_types": ["DownEncoderBlock2D"]}
        | {"up_block_types": ["UpDecoderBlock2D"]},
    ],
    ids=str,
)
def test_vae_settings(oracle, vaes, on_cpu, changes):
    """Each setting of a VAE means what it means to diffusers."""
    torch = oracle[0]
    theirs, ours = vaes(**changes)
    image = torch.randn(2, theirs.config.in_channels, 24, 40)
    seen, expected = ours.encode(on_cpu(image.numpy())), theirs.encode(image).latent_dist
    close(seen.mean, expected.mean)
    close(seen.logvar, expected.logvar)
    noise = torch.randn_like(expected.mean)
    close(seen.sample(on_cpu(noise.numpy())), expected.mean + expected.std * noise)
    z = torch.randn(2, theirs.config.latent_channels, 6, 5)
    close(ours.decode(on_cpu(z.numpy())), theirs.decode(z).sample)


@pytest.mark.parametrize("size", [(16, 16), (9, 8), (8, 30), (14, 7), (21, 13)])
def test_tiled(oracle, vaes, on_cpu, size):
    """Tiles of every kind of rest blend as in diffusers."""
    theirs, ours = vaes()
    theirs.enable_tiling()
    z = oracle[0].randn(2, 4, *size)
    close(ours.decode(on_cpu(z.numpy()), tiled="always"), theirs.decode(z).sample)


class _Names:
    """A source with the names and shapes of a model and no weights; notes what is read."""

    def __init__(self, tensors):
        self.tensors = {
            name: TensorInfo(name, dtypes.f32, shape, 0, 4 * int(np.prod(shape)))
            for name, shape in tensors.items()
        }
        self.read = set()
        largest = max(info.nbytes for info in self.tensors.values())
        self._zeros = np.zeros(largest, np.uint8)  # no memory until it is touched

    def data(self, name):
        self.read.add(name)
        return self._zeros[: self.tensors[name].nbytes]


_SD15_UNET = {"cross_attention_dim": 768, "sample_size": 64, "attention_head_dim": 8}
_SD21_UNET = {
    "cross_attention_dim": 1024,
    "sample_size": 96,
    "attention_head_dim": [5, 10, 20, 20],
    "use_linear_projection": True,
}
_SDXL_UNET = {
    "addition_embed_type": "text_time",
    "addition_time_embed_dim": 256,
    "attention_head_dim": [5, 10, 20],
    "block_out_channels": [320, 640, 1280],
    "cross_attention_dim": 2048,
    "down_block_types": ["DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"],
    "projection_class_embeddings_input_dim": 2816,
    "sample_size": 128,
    "transformer_layers_per_block": [1, 2, 10],
    "up_block_types": ["CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"],
    "use_linear_projection": True,
}
_SD_VAE = {
    "block_out_channels": [128, 256, 512, 512],
    "down_block_types": ["DownEncoderBlock2D"] * 4,
    "up_block_types": ["UpDecoderBlock2D"] * 4,
    "layers_per_block": 2,
    "sample_size": 512,
}


def _text(width, layers, heads, act, projected=0):
    return {
        "hidden_size": width,
        "intermediate_size": 4 * width,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "hidden_act": act,
        "projection_dim": projected or 512,
    }


@pytest.mark.parametrize(
    ("kind", "settings", "numbers"),
    [
        # The counts are those of the published models.
        ("UNet2DConditionModel", _SD15_UNET, 859_520_964),
        ("UNet2DConditionModel", _SD15_UNET | {"in_channels": 9}, 859_535_364),
        ("UNet2DConditionModel", _SD21_UNET, 865_910_724),
        ("UNet2DConditionModel", _SDXL_UNET, 2_567_463_684),
        ("AutoencoderKL", _SD_VAE, 83_653_863),
        ("CLIPTextModel", _text(768, 12, 12, "quick_gelu"), 123_060_480),
        ("CLIPTextModel", _text(1024, 23, 16, "gelu"), 340_387_840),
        ("CLIPTextModelWithProjection", _text(1280, 32, 20, "gelu", 1280), 694_659_840),
    ],
    ids=["sd15", "inpaint", "sd21", "sdxl", "vae", "text_sd15", "text_sd21", "text_sdxl2"],
)
def test_full_size(oracle, kind, settings, numbers):
    """Of a published model's tensors ours reads all, by name and shape, and no others."""
    torch, diffusers, transformers = oracle
    with torch.device("meta"):
        if hasattr(diffusers, kind):
            theirs = getattr(diffusers, kind).from_config(settings)
        else:
            theirs = getattr(transformers, kind)(transformers.CLIPTextConfig(**settings))
    tensors = {name: tuple(t.shape) for name, t in theirs.named_parameters()}
    assert numbers == sum(int(np.prod(shape)) for shape in tensors.values())
    source = _Names(tensors)
    aliases = clip.ALIASES if kind.startswith("CLIP") else ()
    weights = Weights(source, default_runtime().cpu, aliases=aliases)
    settings = json.loads(json.dumps(settings))
    ours = {
        "UNet2DConditionModel": (UNetConfig, UNet2DCondition),
        "AutoencoderKL": (VAEConfig, AutoencoderKL),
    }
    config, model = ours.get(kind, (CLIPTextConfig, CLIPText))
    model(config.from_json(settings), weights)
    assert set(tensors) == source.read
