"""The tables of rotary embeddings against the formulas, by hand where they are simple."""

from __future__ import annotations

import importlib
import math
import os

import numpy as np
import pytest

from propolis.errors import ConfigError
from propolis.rope import rope_frequencies
from propolis.rope import rope_tables


LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 2048}


def load_transformers():
    """Transformers, or a skip that says why; see ``test_oracle_torch``."""
    try:
        return importlib.import_module("transformers")
    except ImportError as exc:
        if os.environ.get("PROPOLIS_REQUIRE_ORACLES") == "1":
            raise
        return pytest.skip(f"no transformers ({exc}); `make oracles` installs it")


def test_default():
    """Without scaling, pair i of position p turns by p * base ** (-2 i / dim)."""
    cos, sin = rope_tables(6, np.array([0, 1, 5000]), 100.0)
    assert ((3, 3), np.float32) == (cos.shape, cos.dtype)
    for row, p in enumerate((0, 1, 5000)):
        for i in range(3):
            angle = p * 100.0 ** (-2 * i / 6)
            assert np.float32(math.cos(angle)) == pytest.approx(cos[row, i], abs=1e-7)
            assert np.float32(math.sin(angle)) == pytest.approx(sin[row, i], abs=1e-7)
    same = rope_tables(6, np.array([0, 1, 5000]), 100.0, {"rope_type": "default"})
    np.testing.assert_array_equal((cos, sin), same)


def test_linear():
    """A factor of 4 makes position 8 what position 2 was."""
    scaled = rope_tables(8, np.array([8]), scaling={"rope_type": "linear", "factor": 4.0})
    np.testing.assert_array_equal(rope_tables(8, np.array([2])), scaled)


def test_dynamic():
    """Up to the trained length nothing changes; beyond, the slowest pair is stretched."""
    rules = {"rope_type": "dynamic", "factor": 2.0, "original_max_position_embeddings": 100}
    plain, _ = rope_frequencies(8)
    for length in (50, 100):
        same, _ = rope_frequencies(8, scaling={**rules, "seq_len": length})
        np.testing.assert_allclose(plain, same, rtol=1e-14)
    longer, _ = rope_frequencies(8, scaling={**rules, "seq_len": 200})
    # The base grows so that the last pair is slower by 2 * 200 / 100 - 1.
    np.testing.assert_allclose(plain[[0, -1]] / [1, 3], longer[[0, -1]], rtol=1e-14)


def test_yarn():
    """The fastest pair keeps its speed, the slowest is divided; amplitudes follow the paper."""
    plain, _ = rope_frequencies(64)
    scaled, amplitude = rope_frequencies(64, scaling=YARN)
    assert plain[0] == scaled[0]
    assert plain[-1] / 4 == pytest.approx(scaled[-1])
    assert (np.diff(scaled) < 0).all()
    assert 0.1 * math.log(4) + 1 == amplitude
    cos, _ = rope_tables(64, np.array([0]), scaling=YARN)
    np.testing.assert_array_equal(np.full((1, 32), amplitude, np.float32), cos)
    for extra, expected in (
        ({"attention_factor": 0.5}, 0.5),
        ({"factor": 1.0}, 1.0),
        ({"mscale": 2.0, "mscale_all_dim": 1.0}, (0.2 * math.log(4) + 1) / amplitude),
    ):
        assert expected == pytest.approx(rope_frequencies(64, scaling={**YARN, **extra})[1])


def test_llama3():
    """Short waves are kept, long ones divided by the factor, and those between in between."""
    plain, _ = rope_frequencies(128, 500000.0)
    scaled, amplitude = rope_frequencies(128, 500000.0, LLAMA3)
    ratio = plain / scaled
    waves = 2 * math.pi / plain
    assert amplitude == 1
    np.testing.assert_allclose(ratio[waves < 2048], 1, rtol=1e-14)
    np.testing.assert_allclose(ratio[waves > 8192], 8, rtol=1e-14)
    between = ratio[(waves > 2048) & (waves < 8192)]
    assert ((between > 1) & (between < 8)).all()


def test_errors():
    """Unknown types and missing keys are errors that say what is known or needed."""
    with pytest.raises(ConfigError, match=r"rope_type 'su' is unknown; supported: default, linear"):
        rope_tables(8, np.arange(3), scaling={"rope_type": "su"})
    with pytest.raises(ConfigError, match=r"rope_type 'linear' needs factor; given: rope_type"):
        rope_tables(8, np.arange(3), scaling={"rope_type": "linear"})


@pytest.mark.oracle
@pytest.mark.parametrize("dim", [64, 128])
@pytest.mark.parametrize(
    ("scaling", "extra"),
    [
        ({"rope_type": "linear", "factor": 3.0}, {}),
        ({"rope_type": "dynamic", "factor": 2.0}, {"seq_len": 5000}),
        (YARN, {}),
        ({**YARN, "factor": 32.0, "beta_fast": 16, "beta_slow": 2, "truncate": False}, {}),
        ({**YARN, "mscale": 1.2, "mscale_all_dim": 0.8}, {}),
        (LLAMA3, {}),
    ],
)
def test_against_transformers(dim, scaling, extra):
    """Every scaling has the frequencies and the amplitude that transformers computes in f32."""
    transformers = load_transformers()
    utils = importlib.import_module("transformers.modeling_rope_utils")
    config = transformers.LlamaConfig(
        head_dim=dim,
        max_position_embeddings=2048,
        rope_parameters={"rope_theta": 10000.0, **scaling},
    )
    theirs, amplitude = utils.ROPE_INIT_FUNCTIONS[scaling["rope_type"]](config, None, **extra)
    rules = {"original_max_position_embeddings": 2048, **scaling, **extra}
    ours, own = rope_frequencies(dim, scaling=rules)
    np.testing.assert_allclose(ours, theirs.numpy(), rtol=3e-6)
    assert own == pytest.approx(amplitude)
