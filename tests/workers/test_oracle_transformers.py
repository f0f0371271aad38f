"""A tiny random Llama of Hugging Face transformers, whose logits are the truth."""

from __future__ import annotations

import importlib.util
import os

import numpy as np
import pytest

from propolis_workers.llm import LLM
from propolis_workers.llm.rope import rope_frequencies


pytestmark = [
    pytest.mark.oracle,
    # Theirs, not ours: what they import warns of what it imports.
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]

VOCAB = 266
IDS = [int(i) for i in np.random.default_rng(1).integers(0, VOCAB, 48)]
TRAINED = {"original_max_position_embeddings": 32}
ROPE = {
    "default": {"rope_type": "default", "rope_theta": 5000.0},
    "linear": {"rope_type": "linear", "rope_theta": 10_000.0, "factor": 4.0},
    # Trained for max_position_embeddings, which test_rope makes less than the sequence.
    "dynamic": {"rope_type": "dynamic", "rope_theta": 100.0, "factor": 2.0},
    "yarn": {"rope_type": "yarn", "rope_theta": 100.0, "factor": 8.0, **TRAINED},
    "yarn, more": {
        "rope_type": "yarn",
        "rope_theta": 100.0,
        "factor": 4.0,
        "beta_fast": 4.0,
        "beta_slow": 0.5,
        "truncate": False,
        "mscale": 1.5,
        "mscale_all_dim": 0.5,
        **TRAINED,
    },
    "llama3": {
        "rope_type": "llama3",
        "rope_theta": 100.0,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        **TRAINED,
    },
    "longrope": {
        "rope_type": "longrope",
        "rope_theta": 100.0,
        "short_factor": [1.0, 1.1, 1.2, 1.3],
        "long_factor": [1.0, 2.0, 4.0, 8.0],
        **TRAINED,
    },
}


@pytest.fixture(scope="module")
def oracle():
    """The torch and transformers modules; without them the tests are skipped, or fail."""
    for name in ("torch", "transformers"):
        if importlib.util.find_spec(name) is None:
            reason = f"{name} is not installed: `make oracles` installs it"
            if os.environ.get("PROPOLIS_REQUIRE_ORACLES") == "1":
                pytest.fail(reason)
            pytest.skip(reason)
    import torch
    import transformers

    torch.set_num_threads(2)
    return torch, transformers


@pytest.fixture
def saved(oracle, tiny, tmp_path):
    """Return a function that saves a random model; gives it and its folder."""
    torch, transformers = oracle

    def save(*, dtype="float32", shard="1GB", rope="default", **changes):
        config = transformers.LlamaConfig(
            **{
                "vocab_size": VOCAB,
                "hidden_size": 64,
                "intermediate_size": 96,
                "num_hidden_layers": 3,
                "num_attention_heads": 8,
                "num_key_value_heads": 2,
                "max_position_embeddings": 64,
                "rope_parameters": ROPE[rope],
                "initializer_range": 0.2,
            }
            | changes
        )
        torch.manual_seed(0)
        model = transformers.LlamaForCausalLM(config).to(getattr(torch, dtype)).eval()
        folder = tiny.folder(tmp_path / "m")  # for the tokenizer
        (folder / "model.safetensors").unlink()
        model.save_pretrained(folder, max_shard_size=shard)
        return model, folder

    return save


def check(oracle, model, folder):
    """Our logits from the saved folder are theirs, computed in f32 from the same weights."""
    torch, transformers = oracle
    if model.dtype != torch.float32:
        # Loaded anew: the cast to 16 bits rounded the rope frequencies too, a file does not.
        model = transformers.LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.no_grad():
        truth = model(torch.tensor([IDS])).logits[0].numpy()
    llm = LLM.load(folder)
    spread = np.ptp(truth)
    # As long as what they saw: dynamic and longrope depend on it.
    logits = llm.engine(len(IDS)).logits_of(IDS)
    assert np.abs(logits - truth).max() <= 1e-4 * spread
    assert ((logits - truth) ** 2).mean() <= 1e-9 * (truth**2).mean()
    engine = llm.engine(len(IDS))
    engine.prefill(IDS[:-2])
    decoded = [engine.decode(token) for token in IDS[-2:]]
    assert np.abs(np.array(decoded) - truth[-2:]).max() <= 1e-4 * spread
    return llm


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("tied", [False, True])
def test_dtypes(oracle, saved, dtype, tied):
    """Weights of each float dtype, tied or not, give transformers' logits."""
    model, folder = saved(dtype=dtype, tie_word_embeddings=tied)
    llm = check(oracle, model, folder)
    assert tied == llm.config.tied
    stored = llm.source.tensors["model.embed_tokens.weight"].dtype.name
    assert {"float32": "f32", "bfloat16": "bf16", "float16": "f16"}[dtype] == stored
    assert tied == ("lm_head.weight" not in llm.source.tensors)


def test_sharded(oracle, saved):
    """So do weights in several files."""
    model, folder = saved(shard="100KB")
    assert len(list(folder.glob("model-*-of-*.safetensors"))) > 2
    check(oracle, model, folder)


@pytest.mark.parametrize("rope", ROPE)
def test_rope(oracle, saved, rope):
    """So does each rope scaling; its frequencies are theirs."""
    length = 40 if rope == "dynamic" else 64
    model, folder = saved(rope=rope, max_position_embeddings=length)
    llm = check(oracle, model, folder)
    theirs = model.model.rotary_emb.inv_freq.numpy()  # of the sequence that they saw
    config = llm.config
    ours, amplitude = rope_frequencies(
        config.ropes[0].dim, config.ropes[0].base, config.ropes[0].scaling, len(IDS)
    )
    np.testing.assert_allclose(ours, theirs, rtol=2e-6)
    assert amplitude == pytest.approx(model.model.rotary_emb.attention_scaling)


@pytest.mark.parametrize("rope", ["dynamic", "longrope"])
def test_short_sequences(oracle, saved, rope):
    """One that may not exceed the trained length is turned as theirs that does not."""
    torch = oracle[0]
    model, folder = saved(rope=rope, max_position_embeddings=32 if rope == "dynamic" else 64)
    with torch.no_grad():
        truth = model(torch.tensor([IDS[:32]])).logits[0].numpy()
    logits = LLM.load(folder).engine(32).logits_of(IDS[:32])
    assert ((logits - truth) ** 2).mean() <= 1e-9 * (truth**2).mean()
    longer = LLM.load(folder).engine(33).logits_of(IDS[:32])
    assert ((longer - truth) ** 2).mean() > 1e-6 * (truth**2).mean()


@pytest.mark.parametrize(
    "shape",
    [
        {"num_key_value_heads": 8},
        {"num_key_value_heads": 1},
        {"head_dim": 16},
        {"rms_norm_eps": 0.1},
        {"num_hidden_layers": 1},
    ],
)
def test_shapes(oracle, saved, shape):
    """So does each way of sharing heads, a head wider than its share, and another epsilon."""
    check(oracle, *saved(**shape))


def test_old_config(oracle, saved):
    """A config.json as transformers 4 wrote it describes the same model."""
    import json

    model, folder = saved(rope="llama3")
    path = folder / "config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    scaling = config.pop("rope_parameters")
    config["rope_theta"] = scaling.pop("rope_theta")
    path.write_text(json.dumps(config | {"rope_scaling": scaling}), encoding="utf-8")
    check(oracle, model, folder)


def test_greedy(oracle, saved):
    """Greedy tokens are those of transformers' own generation."""
    torch = oracle[0]
    model, folder = saved()
    with torch.no_grad():
        theirs = model.generate(
            torch.tensor([IDS[:8]]), max_new_tokens=16, do_sample=False, eos_token_id=None
        )
    engine = LLM.load(folder).engine()
    logits = engine.prefill(IDS[:8])
    ours = []
    for _ in range(16):
        ours.append(int(logits.argmax()))
        logits = engine.decode(ours[-1])
    assert theirs[0, 8:].tolist() == ours
