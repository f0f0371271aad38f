"""The tables of rotary embeddings against the formulas, by hand where they are simple."""

from __future__ import annotations

import importlib
import math
import os

import numpy as np
import pytest

from propolis.errors import ConfigError
from propolis_workers.llm.rope import ROPE_TYPES
from propolis_workers.llm.rope import rope_frequencies
from propolis_workers.llm.rope import rope_tables


LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 2048}
LONGROPE = {
    "rope_type": "longrope",
    "factor": 4.0,
    "short_factor": [1.0, 1.1, 1.2, 1.3, 1.5, 1.7, 2.0, 2.5],
    "long_factor": [1.0, 1.5, 2.0, 4.0, 8.0, 12.0, 16.0, 20.0],
    "original_max_position_embeddings": 64,
}
SHORT = {"original_max_position_embeddings": 64}
# Scaling, length and what transformers 5.23 computes in f32 for 16 elements, a base of 100 and
# 64 trained positions: frequencies and amplitude.
TRANSFORMERS = {
    "linear": (
        {"rope_type": "linear", "factor": 3.0},
        None,
        [
            0.3333333,
            0.1874471,
            0.1054093,
            0.05927598,
            0.03333334,
            0.01874471,
            0.01054093,
            5.927598e-3,
        ],
        1.0,
    ),
    "dynamic": (
        {"rope_type": "dynamic", "factor": 2.0},
        160,
        [1.0, 0.4613085, 0.2128055, 0.09816898, 0.04528618, 0.0208909, 9.637149e-3, 4.445699e-3],
        1.0,
    ),
    "yarn": (
        {**YARN, **SHORT, "factor": 8.0},
        None,
        [1.0, 0.4639316, 0.205548, 0.08446827, 0.03, 7.029266e-3, 3.952847e-3, 2.222849e-3],
        1.2079441541679836,
    ),
    "yarn, not truncated": (
        {**YARN, **SHORT, "beta_fast": 6.0, "beta_slow": 0.5, "truncate": False}
        | {"attention_factor": 1.25},
        None,
        [1.0, 0.5544661, 0.2568569, 0.1135449, 0.0464767, 0.01636549, 7.905695e-3, 4.445699e-3],
        1.25,
    ),
    "yarn, mscale": (
        {**YARN, **SHORT, "factor": 8.0, "mscale": 1.2, "mscale_all_dim": 0.8},
        None,
        [1.0, 0.4639316, 0.205548, 0.08446827, 0.03, 7.029266e-3, 3.952847e-3, 2.222849e-3],
        1.071314169878699,
    ),
    "llama3": (
        {**LLAMA3, **SHORT},
        None,
        [1.0, 0.5623413, 0.2443846, 0.06430987, 0.01304226, 7.029266e-3, 3.952847e-3, 2.222849e-3],
        1.0,
    ),
    "longrope, short": (
        LONGROPE,
        64,
        [1.0, 0.5112194, 0.2635231, 0.1367907, 0.06666667, 0.0330789, 0.01581139, 7.113118e-3],
        1.1547005383792517,
    ),
    "longrope, long": (
        LONGROPE,
        65,
        [1.0, 0.3748942, 0.1581139, 0.04445698, 0.0125, 4.686178e-3, 1.976424e-3, 8.891397e-4],
        1.1547005383792517,
    ),
}


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
        same, _ = rope_frequencies(8, scaling=rules, seq_len=length)
        np.testing.assert_allclose(plain, same, rtol=1e-14)
    longer, _ = rope_frequencies(8, scaling=rules, seq_len=200)
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


def test_longrope():
    """Each pair is divided by its own factor: by the long ones beyond the trained length."""
    plain, _ = rope_frequencies(16)
    for length, key in ((None, "short"), (64, "short"), (65, "long"), (4096, "long")):
        scaled, amplitude = rope_frequencies(16, scaling=LONGROPE, seq_len=length)
        np.testing.assert_allclose(plain / scaled, LONGROPE[f"{key}_factor"], rtol=1e-14)
        assert math.sqrt(1 + math.log(4) / math.log(64)) == pytest.approx(amplitude)
    for extra, expected in (({"attention_factor": 1.19}, 1.19), ({"factor": 1.0}, 1.0)):
        assert expected == rope_frequencies(16, scaling={**LONGROPE, **extra})[1]
    cos, _ = rope_tables(16, np.arange(3), scaling=LONGROPE, seq_len=65)
    truth = amplitude * np.cos(np.outer(range(3), plain / LONGROPE["long_factor"]))
    np.testing.assert_allclose(cos, truth, rtol=1e-6)


@pytest.mark.parametrize("name", TRANSFORMERS)
def test_numbers_of_transformers(name):
    """Every scaling has the numbers that transformers had when they were written down."""
    scaling, length, frequencies, amplitude = TRANSFORMERS[name]
    ours, own = rope_frequencies(16, 100.0, {**SHORT, **scaling}, length)
    np.testing.assert_allclose(ours, frequencies, rtol=1e-6)
    assert own == pytest.approx(amplitude, rel=1e-12)


def test_null_is_not_given():
    """A key that is None, as JSON's null, has the formula's default; so have zeros of YaRN."""
    empty = dict.fromkeys(("beta_fast", "beta_slow", "truncate", "attention_factor", "mscale"))
    for extra in (empty, {"beta_fast": 0, "beta_slow": 0, "mscale": 0.0, "mscale_all_dim": 0}):
        ours, theirs = (rope_frequencies(64, scaling=s) for s in ({**YARN, **extra}, YARN))
        np.testing.assert_array_equal(ours[0], theirs[0])
        assert ours[1] == theirs[1]


def test_every_key_is_read():
    """Each type reads the keys that it is said to read, and no other."""
    values = {"factor": 3.0, "low_freq_factor": 2.0, "high_freq_factor": 9.0, "beta_fast": 8.0}
    values |= {"original_max_position_embeddings": 999, "beta_slow": 2.0, "truncate": False}
    values |= {"attention_factor": 0.5, "mscale": 3.0, "mscale_all_dim": 2.0}
    values |= {"short_factor": [2.0] * 8, "long_factor": [3.0] * 8}
    given = {"dynamic": {"rope_type": "dynamic", "factor": 2.0, **SHORT}, "longrope": LONGROPE}
    given |= {"yarn": {**YARN, "mscale": 1.0, "mscale_all_dim": 0.5}, "llama3": {**LLAMA3, **SHORT}}
    given |= {"linear": {"rope_type": "linear", "factor": 2.0}, "default": {}}
    assert set(given) == set(ROPE_TYPES)

    def numbers(scaling):
        """What it gives for a sequence below and beyond the trained length."""
        both = [rope_frequencies(16, 100.0, scaling, length) for length in (50, 5000)]
        return [(tuple(frequencies), amplitude) for frequencies, amplitude in both]

    for kind, scaling in given.items():
        changes = {
            key for key in values if numbers(scaling) != numbers(scaling | {key: values[key]})
        }
        assert set(ROPE_TYPES[kind]) == changes


@pytest.mark.parametrize(
    ("scaling", "message"),
    [
        ({"rope_type": "su"}, "rope_type 'su' is unknown; supported: default, linear, dynamic, y"),
        ({"rope_type": ["yarn"]}, r"rope_type \['yarn'\] is unknown; supported: default"),
        ({"rope_type": "linear"}, "rope_type 'linear' needs factor; given: nothing"),
        ({"rope_type": "linear", "factor": None}, "rope_type 'linear' needs factor"),
        ({"rope_type": "yarn", "factor": 2}, "needs original_max_position_embeddings; given: fac"),
        (
            {"rope_type": "linear", "factor": "4"},
            "factor is '4'; supported: a finite number above 0",
        ),
        ({"rope_type": "linear", "factor": True}, "factor is True; supported: a finite number"),
        ({"rope_type": "linear", "factor": 0}, "factor is 0; supported: a finite number above 0"),
        ({"rope_type": "linear", "factor": math.nan}, "factor is nan; supported: a finite number"),
        ({"rope_type": "linear", "factor": 10**400}, "factor is 10+; supported: a finite number"),
        (
            {"rope_type": "dynamic", "factor": 1e308, **SHORT},
            "not positive .*, factor 1e.308, orig",
        ),
        (YARN | {"beta_slow": -1}, "beta_slow is -1; supported: a finite number from 0"),
        (YARN | {"beta_slow": 33}, "beta_slow is 33; supported: no more than beta_fast 32"),
        (YARN | {"truncate": 1}, "truncate is 1; supported: true or false"),
        (
            YARN | {"factor": 1e9, "mscale": 1e308, "mscale_all_dim": 1e308},
            "angles that are not positive",
        ),
        (YARN | {"attention_factor": 0}, "attention_factor is 0; supported: a finite number above"),
        (
            LLAMA3 | {"low_freq_factor": 4},
            "low_freq_factor is 4; supported: below 4.0, the high one",
        ),
        (LONGROPE | {"long_factor": [1.0]}, "long_factor is .1.0.; supported: 8 finite numbers"),
        (LONGROPE | {"long_factor": [0.0] * 8}, "long_factor is .*; supported: 8 finite numbers"),
        (LONGROPE | {"short_factor": 8}, "short_factor is 8; supported: 8 finite numbers above 0"),
        (LONGROPE | {"factor": None}, "rope_type 'longrope' needs factor; given: short_factor"),
        (
            LONGROPE | {"original_max_position_embeddings": 1},
            "not positive .* dim 16, base 10000.0",
        ),
    ],
)
def test_errors(scaling, message):
    """What no angles can be computed from is refused: what was given, and what is supported."""
    with pytest.raises(ConfigError, match=message) as error:
        rope_tables(16, np.arange(3), scaling=scaling)
    assert "\n" not in str(error.value)


def test_bases():
    """A base, or a number of elements, that a formula divides by zero with is refused as well."""
    for dim, base, scaling in (
        (16, 1.0, YARN),
        (128, 5e-324, None),
        (2, 10_000.0, {"rope_type": "dynamic", "factor": 2.0, **SHORT}),
    ):
        with pytest.raises(ConfigError, match="gives angles that are not positive and finite, wit"):
            rope_frequencies(dim, base, scaling)


@pytest.mark.oracle
@pytest.mark.parametrize("dim", [16, 64, 128])
@pytest.mark.parametrize("base", [100.0, 10_000.0])
@pytest.mark.parametrize("name", TRANSFORMERS)
def test_against_transformers(dim, base, name):
    """Every scaling has the frequencies and the amplitude that transformers computes in f32."""
    transformers = load_transformers()
    utils = importlib.import_module("transformers.modeling_rope_utils")
    scaling, length, *_ = TRANSFORMERS[name]
    for key in ("short_factor", "long_factor"):
        if key in scaling:
            scaling = {**scaling, key: scaling[key] * (dim // 16)}
    config = transformers.LlamaConfig(
        head_dim=dim,
        max_position_embeddings=64,
        rope_parameters={"rope_theta": base, **scaling},
    )
    extra = {} if length is None else {"seq_len": length}
    theirs, amplitude = utils.ROPE_INIT_FUNCTIONS[scaling["rope_type"]](config, None, **extra)
    ours, own = rope_frequencies(dim, base, {**SHORT, **scaling}, length)
    np.testing.assert_allclose(ours, theirs.numpy(), rtol=3e-6)
    assert own == pytest.approx(amplitude)
