"""How both kinds of files say that rotations are scaled, and what is computed then."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import TYPE_CHECKING

import numpy as np
import pytest

from propolis import default_runtime
from propolis.errors import ModelError
from propolis.errors import UnsupportedModelError
from propolis_workers.llm import LLM
from propolis_workers.llm.models import read_config
from propolis_workers.llm.network.rotation import RopeTables
from propolis_workers.llm.rope import ROPE_TYPES
from propolis_workers.llm.rope import rope_frequencies
from propolis_workers.weights import GGUFFile


if TYPE_CHECKING:
    from propolis_workers.llm.config import ModelConfig


PLAIN = [1, 0.1, 0.01, 0.001]  # of the tiny model: 8 elements, a base of 10,000
IDS = [*range(60, 90)]
TRAINED = "original_max_position_embeddings"
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    TRAINED: 8192,
}
YARN = {"rope_type": "yarn", "factor": 4.0, TRAINED: 24}
DYNAMIC = {"rope_type": "dynamic", "factor": 2.0}
LISTS = {"short_factor": [1.0, 1.5, 2.0, 2.5], "long_factor": [1.0, 2.0, 4.0, 8.0]}
LONGROPE = {"rope_type": "longrope", "factor": 4.0, TRAINED: 24, **LISTS}
SHORT, LONG = (np.array(factors, np.float32) for factors in LISTS.values())
TENSORS = {"rope_factors_short.weight": SHORT, "rope_factors_long.weight": LONG}
FREQS = {"rope_freqs.weight": np.array([1.0, 1.5, 5.0, 8.0], np.float32)}
BIG = 10**400


def from_folder(tiny, **config) -> ModelConfig:
    """The numbers of a folder with this config.json."""
    return read_config(
        SimpleNamespace(config=tiny.config | {"vocab_size": 266} | config, tensors={})
    )


def gguf_keys(changes: dict) -> dict:
    """Metadata, whose keys of the scaling are named by their ends."""
    return {f"llama.rope.scaling.{key}": value for key, value in changes.items()}


def from_gguf(tiny, path, changes=None, tensors=None, **keys) -> ModelConfig:
    """The numbers of a GGUF file with these keys of the scaling, and other keys of llama."""
    metadata = gguf_keys(changes or {}) | {f"llama.{key}": value for key, value in keys.items()}
    with GGUFFile.open(tiny.gguf(path / "m.gguf", metadata=metadata, tensors=tensors)) as file:
        return read_config(file)


def computed(config: ModelConfig, length: int | None = None) -> tuple[np.ndarray, float]:
    """Frequencies and amplitude of a sequence of that length."""
    return rope_frequencies(
        config.ropes[0].dim, config.ropes[0].base, config.ropes[0].scaling, length
    )


def logits_of(path, length: int | None = None) -> np.ndarray:
    """The logits of a sequence that may have so many tokens."""
    return LLM.load(path).engine(length or len(IDS)).logits_of(IDS)


def expected(tiny, frequencies, amplitude: float = 1.0) -> np.ndarray:
    """The logits in f64; queries and keys that are larger give larger scores."""
    wider = type(tiny)()
    wider.weights = {
        name: weight * (amplitude if ".q_proj." in name or ".k_proj." in name else 1)
        for name, weight in tiny.weights.items()
    }
    return wider.reference(IDS, np.array(frequencies))


def close(logits, truth) -> bool:
    """Whether both are the same up to the rounding of f32."""
    return float(((logits - truth) ** 2).mean() / truth.var()) < 1e-11


@pytest.mark.parametrize("spelling", ["rope_type", "type"])
@pytest.mark.parametrize(
    "scaling", [{"rope_type": "linear", "factor": 4}, LLAMA3, YARN, DYNAMIC, LONGROPE]
)
def test_config(tiny, scaling, spelling):
    """Settings are found where transformers 4 and 5 write them, by both names of the type."""
    written = {spelling: scaling["rope_type"], **{k: scaling[k] for k in [*scaling][1:]}}
    four = from_folder(tiny, rope_theta=5e5, rope_scaling=written)
    five = from_folder(tiny, rope_theta=None, rope_parameters=written | {"rope_theta": 5e5})
    assert four == five
    assert hash(four) == hash(five)
    assert four.ropes[0].base == 5e5
    frozen = {k: tuple(v) if isinstance(v, list) else v for k, v in scaling.items()}
    assert four.ropes[0].scaling == frozen | ({TRAINED: 96} if scaling is DYNAMIC else {})
    with pytest.raises(TypeError):
        four.ropes[0].scaling["factor"] = 1.0


def test_plain_config(tiny):
    """A file that scales nothing has the type default, whatever else it says."""
    five = {"rope_type": "default", "rope_theta": 7.0, "factor": 3.0}
    for config in ({}, {"rope_scaling": {}}, {"rope_scaling": None}, {"rope_parameters": five}):
        assert from_folder(tiny, **config).ropes[0].scaling == {"rope_type": "default"}
    assert from_folder(tiny, rope_parameters=five).ropes[0].base == 7.0
    np.testing.assert_allclose(computed(from_folder(tiny))[0], PLAIN, rtol=1e-12)


def test_what_config_leaves_out(tiny):
    """As in transformers: trained length and factor follow from the context, or the other."""
    yarn = {"rope_type": "yarn"}
    assert from_folder(tiny, rope_scaling=yarn).ropes[0].scaling == yarn | {
        TRAINED: 96,
        "factor": 1,
    }
    given = from_folder(tiny, rope_scaling=yarn | {TRAINED: 24, "factor": None})
    assert given.ropes[0].scaling == yarn | {TRAINED: 24, "factor": 4}
    # As Phi-3 has it: beside rope_scaling, and heard first.
    phi = from_folder(tiny, rope_scaling={**LONGROPE, "factor": None}, **{TRAINED: 48})
    assert (phi.ropes[0].scaling["factor"], phi.ropes[0].scaling[TRAINED]) == (2, 48)
    # Of dynamic, transformers asks for no trained length but the context.
    other = from_folder(tiny, rope_scaling={**DYNAMIC, TRAINED: 24}, **{TRAINED: 48})
    assert other.ropes[0].scaling[TRAINED] == 96


def test_extended_context(tiny, tmp_path):
    """Dynamic and YaRN extend the trained length by their factor; other contexts are the file's."""
    linear = {"rope_type": "linear", "factor": 4.0}
    for scaling, context in (
        (DYNAMIC, 192),
        (YARN, 96),  # 4 times 24, which is what the file says
        (YARN | {TRAINED: 96}, 384),
        (YARN | {"factor": 1e30}, 1 << 28),
        *((scaling, 96) for scaling in (linear, LLAMA3, LONGROPE)),
    ):
        assert context == from_folder(tiny, rope_scaling=scaling).context_length
    yarn = {"type": "yarn", "factor": 2.0}
    assert from_gguf(tiny, tmp_path, yarn).context_length == 192
    assert from_gguf(tiny, tmp_path, {"factor": 2.0}).context_length == 96


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"rope_scaling": [1]}, ModelError, "rope_scaling is .*, not an object"),
        ({"rope_scaling": "linear"}, ModelError, "rope_scaling is .*, not an object"),
        (
            {"rope_scaling": {"rope_type": "sg"}},
            UnsupportedModelError,
            "config.json: rope scaling 'sg'; supported: default, linear, dynamic, yarn, llama3, ",
        ),
        (
            {"rope_scaling": {"rope_type": [1]}},
            UnsupportedModelError,
            "rope scaling .1.; supported",
        ),
        ({"rope_parameters": {"type": "linear"}}, ModelError, "'linear' needs factor; given: noth"),
        (
            {"rope_scaling": LLAMA3 | {"factor": None}},
            ModelError,
            "'llama3' needs factor; given: l",
        ),
        (
            {"rope_scaling": YARN | {"factor": "4"}},
            ModelError,
            "factor is '4'; supported: a finite",
        ),
        ({"rope_scaling": YARN | {TRAINED: "9"}}, ModelError, f"{TRAINED} is '9', of the wrong"),
        ({"rope_scaling": YARN, TRAINED: []}, ModelError, f"json: {TRAINED} is .*, of the wrong"),
        ({"rope_scaling": YARN | {TRAINED: 0}}, ModelError, f"{TRAINED} is 0.0; supported: a fin"),
        ({"rope_scaling": YARN | {TRAINED: BIG}}, ModelError, f"{TRAINED} is '10+', outside all"),
        ({"rope_scaling": YARN | {"factor": BIG}}, ModelError, "factor is 10+; supported: a fin"),
        ({"rope_scaling": DYNAMIC | {"factor": math.nan}}, ModelError, "factor is nan; supported"),
        (
            {"rope_scaling": LLAMA3 | {"high_freq_factor": 1.0}},
            ModelError,
            "low_freq_factor is 1.0",
        ),
        ({"rope_scaling": LONGROPE | {"long_factor": [1]}}, ModelError, "supported: 4 finite numb"),
        (
            {"rope_scaling": LONGROPE | {"short_factor": None}},
            ModelError,
            "needs short_factor; giv",
        ),
        ({"rope_scaling": YARN, "rope_theta": 1.0}, ModelError, "base 1.0, factor 4.0, original_m"),
        (
            {"rope_scaling": YARN, "max_position_embeddings": BIG},
            ModelError,
            "describe a transform",
        ),
        ({"rope_scaling": YARN, "max_position_embeddings": -BIG}, ModelError, "describe a transfo"),
    ],
)
def test_bad_config(tiny, changes, error, message):
    """What would change the numbers and cannot be computed is refused in one line."""
    with pytest.raises(error, match=message) as caught:
        from_folder(tiny, **changes)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize("kind", ROPE_TYPES)
def test_every_type_is_reached(tiny, tmp_path, kind):
    """The logits of each type that core has are those of its own numbers, from config.json on."""
    scaling = {"linear": {"factor": 4.0}, "dynamic": DYNAMIC, "yarn": YARN, "longrope": LONGROPE}
    scaling |= {"llama3": LLAMA3 | {TRAINED: 64}, "default": {}}
    changes = {"rope_scaling": scaling[kind] | {"rope_type": kind}}
    changes["max_position_embeddings"] = 20 if kind == "dynamic" else 96
    path = tiny.folder(tmp_path / "m", config=changes)
    numbers = computed(from_folder(tiny, **changes), len(IDS))
    assert close(logits_of(path), expected(tiny, *numbers))
    assert (kind == "default") == close(logits_of(path), expected(tiny, PLAIN))


def llama3_frequencies(base: float, dim: int, factor, low, high, original) -> list[float]:
    """Llama 3.1's frequencies, one by one, as Meta's own code computes them."""
    frequencies = []
    for index in range(0, dim, 2):
        frequency = 1.0 / base ** (index / dim)
        wavelength = 2 * math.pi / frequency
        if wavelength < original / high:
            frequencies.append(frequency)
        elif wavelength > original / low:
            frequencies.append(frequency / factor)
        else:
            smooth = (original / wavelength - low) / (high - low)
            frequencies.append((1 - smooth) * frequency / factor + smooth * frequency)
    return frequencies


@pytest.mark.parametrize("dim", [64, 128])
@pytest.mark.parametrize("factors", [(8.0, 1.0, 4.0, 8192.0), (32.0, 1.0, 4.0, 8192.0)])
def test_llama3_frequencies(tiny, dim, factors):
    """The frequencies of Llama 3.1 and 3.2 are those of Meta's code: kept, blended, divided."""
    keys = [key for key in LLAMA3 if key != "rope_type"]
    scaling = LLAMA3 | dict(zip(keys, factors, strict=True))
    config = from_folder(tiny, head_dim=dim, rope_theta=5e5, rope_scaling=scaling)
    truth = llama3_frequencies(5e5, dim, *factors)
    np.testing.assert_allclose(computed(config)[0], truth, rtol=1e-14)
    plain = 5e5 ** (-np.arange(0, dim, 2) / dim)
    kinds = {round(float(a / b), 3) for a, b in zip(plain, truth, strict=True)}
    assert {1.0, factors[0]} < kinds  # all three branches are met


@pytest.mark.parametrize(
    ("changes", "scale"),
    [
        ({"type": "none", "factor": 4.0}, 1.0),
        ({"type": "linear", "factor": 4.0}, 4.0),
        ({"type": "linear"}, 1.0),
        # As llama.cpp: a factor without a type is linear.
        ({"factor": 4.0}, 4.0),
        ({"factor": 0.0}, 1.0),
    ],
)
def test_linear_in_gguf(tiny, tmp_path, changes, scale):
    """Linear scaling is read as llama.cpp reads it."""
    scaling = from_gguf(tiny, tmp_path, changes).ropes[0].scaling
    linear = {"rope_type": "linear", "factor": scale}
    assert scaling == (linear if scale != 1 else {"rope_type": "default"})


def test_old_linear_in_gguf(tiny, tmp_path):
    """So is the older key of the factor."""
    scaling = from_gguf(tiny, tmp_path, **{"rope.scale_linear": 2.0}).ropes[0].scaling
    assert scaling == {"rope_type": "linear", "factor": 2.0}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, {}),
        ({"yarn_beta_fast": 16.0, "yarn_beta_slow": 2.0}, {"beta_fast": 16.0, "beta_slow": 2.0}),
        ({"yarn_attn_factor": 1.25}, {"attention_factor": 1.25}),
        ({"yarn_log_multiplier": 1.0}, {"mscale": 1.0, "mscale_all_dim": 1.0}),
        ({"yarn_ext_factor": 1.0, "yarn_log_multiplier": 0.0}, {}),
        ({"yarn_ext_factor": -1.0, "finetuned": True}, {}),
        ({"attn_factor": 1.0}, {}),
    ],
)
def test_yarn_in_gguf(tiny, tmp_path, changes, words):
    """YaRN's keys are those that llama.cpp's converter writes for Hugging Face's."""
    given = {"type": "yarn", "factor": 4.0, "original_context_length": 24, **changes}
    assert from_gguf(tiny, tmp_path, given).ropes[0].scaling == YARN | words
    short = {key: value for key, value in given.items() if key != "original_context_length"}
    assert from_gguf(tiny, tmp_path, short).ropes[0].scaling == YARN | words | {TRAINED: 96}


def test_longrope_in_gguf(tiny, tmp_path):
    """The tensors are the lists; without attn_factor the amplitude is 1, as in llama.cpp."""
    # Phi 3's converter writes no type.
    silent = from_gguf(tiny, tmp_path, {"original_context_length": 24}, TENSORS)
    np.testing.assert_allclose(computed(silent, 25)[0], PLAIN / LONG, rtol=1e-12)
    given = {"type": "longrope", "original_context_length": 24}
    # What divides the frequencies of other types is not looked for beside them.
    config = from_gguf(tiny, tmp_path, given, TENSORS | FREQS)
    for length, factors in ((24, SHORT), (25, LONG)):
        frequencies, amplitude = computed(config, length)
        np.testing.assert_allclose(frequencies, PLAIN / factors, rtol=1e-12)
        assert amplitude == 1
    more = from_gguf(tiny, tmp_path, given | {"factor": 2.0, "attn_factor": 1.19}, TENSORS)
    frequencies, amplitude = computed(more, 25)
    np.testing.assert_allclose(frequencies, PLAIN / LONG / 2, rtol=1e-12)
    assert amplitude == pytest.approx(1.19, rel=1e-6)


@pytest.mark.parametrize(
    "given",
    [
        {"type": "none"},
        {"factor": 4.0},
        {"type": "yarn", "factor": 4.0, "original_context_length": 24},
    ],
)
@pytest.mark.parametrize("attention", [None, 1.5])
@pytest.mark.parametrize("tensors", [None, FREQS])
def test_gguf_alone(tiny, tmp_path, given, attention, tensors):
    """As in llama.cpp, factors divide the frequencies and multiply the amplitude of any type."""
    plain, amplitude = computed(from_gguf(tiny, tmp_path, given))
    config = from_gguf(tiny, tmp_path, given | {"attn_factor": attention}, tensors)
    divided = plain / (FREQS["rope_freqs.weight"] if tensors else 1)
    for length in (10, 1 << 28):
        frequencies, own = computed(config, length)
        np.testing.assert_allclose(frequencies, divided, rtol=1e-12)
        assert own == pytest.approx(amplitude * (attention or 1))


GGUF_LOGITS = {
    "linear": {"type": "linear", "factor": 4.0},
    "yarn": {"type": "yarn", "factor": 4.0, "original_context_length": 24},
    "longrope": {"type": "longrope", "original_context_length": 24, "attn_factor": 1.25},
    "llama3": {},
}


@pytest.mark.parametrize("name", GGUF_LOGITS)
def test_gguf_logits(tiny, tmp_path, name):
    """The logits of a GGUF file with scaled rotations are those of the formulas in f64."""
    tensors = {"longrope": TENSORS, "llama3": FREQS}.get(name)
    path = tiny.gguf(tmp_path / "m.gguf", metadata=gguf_keys(GGUF_LOGITS[name]), tensors=tensors)
    plain = np.array(PLAIN)
    truth = {
        "linear": lambda: (plain / 4,),
        "yarn": lambda: rope_frequencies(8, 10_000.0, YARN),
        "longrope": lambda: (plain / LONG, 1.25),
        "llama3": lambda: (plain / FREQS["rope_freqs.weight"],),
    }[name]()
    assert close(logits_of(path), expected(tiny, *truth))
    assert not close(logits_of(path), expected(tiny, PLAIN))
    if name == "longrope":
        engine = LLM.load(path).engine(24)
        assert close(engine.logits_of(IDS[:24]), expected(tiny, plain / SHORT, 1.25)[:24])


@pytest.mark.parametrize("kind", ["llama3", "dynamic", ""])
def test_unknown_in_gguf(tiny, tmp_path, kind):
    """A type that GGUF files do not have is refused, never ignored."""
    message = f"m.gguf: rope scaling '{kind}'; supported: none, linear, yarn, longrope"
    with pytest.raises(UnsupportedModelError, match=message):
        from_gguf(tiny, tmp_path, {"type": kind})


@pytest.mark.parametrize(
    ("changes", "tensors", "message"),
    [
        ({}, {"rope_freqs.weight": np.ones(3, "f4")}, r"rope_freqs.weight has shape \(3,\)"),
        ({}, {"rope_freqs.weight": np.zeros(4, "f4")}, "rope_freqs.weight .* finite"),
        ({}, {"rope_freqs.weight": np.full(4, np.nan, "f4")}, "rope_freqs.weight .* finite"),
        ({"type": "longrope"}, None, "tensor rope_factors_short.weight is missing"),
        ({"type": "longrope"}, TENSORS | {"rope_factors_long.weight": SHORT[:2]}, r"shape \(2,\)"),
        ({"type": "longrope", "attn_factor": -1.0}, TENSORS, "attn_factor is '-1.0', not a fin"),
        (
            {"attn_factor": -1.0},
            None,
            "llama.rope.scaling.attn_factor is '-1.0', not a finite number",
        ),
        ({"factor": -2.0}, None, "factor is -2.0; supported: a finite number above 0"),
        ({"factor": "2"}, None, "llama.rope.scaling.factor is '2', of the wrong type"),
        ({"type": "yarn", "yarn_ext_factor": 0.5}, None, "yarn_ext_factor is 0.5; supported: 1"),
        (
            {"type": "yarn", "yarn_beta_slow": 64.0},
            None,
            "beta_slow is 64.0; supported: no more th",
        ),
        ({"type": "yarn", "original_context_length": 1.5}, None, "length is '1.5', of the wrong"),
    ],
)
def test_bad_gguf(tiny, tmp_path, changes, tensors, message):
    """Factors of the wrong number or type, or that nothing can be divided by, are refused."""
    with pytest.raises(ModelError, match=message):
        from_gguf(tiny, tmp_path, changes, tensors)


def test_gguf_factors_of_another_dtype(tiny, tmp_path):
    """Factors in half precision are factors too."""
    halves = {name: values.astype(np.float16) for name, values in FREQS.items()}
    one, other = (from_gguf(tiny, tmp_path, {}, tensors) for tensors in (FREQS, halves))
    assert one == other


class Racing(RopeTables):
    """Whatever it stores first, another sequence begins at that very moment."""

    other = None

    def __setattr__(self, name, value):
        """Store, and once let the other begin."""
        super().__setattr__(name, value)
        if value and name not in ("other", "_config", "_device") and self.other is None:
            self.other = ()
            self.other = self.reserve(10)


def test_sequences_that_begin_at_once(tiny):
    """Each has the rotation that it has alone, where angles depend on the length."""
    config = from_folder(tiny, max_position_embeddings=32, rope_scaling=DYNAMIC)
    cpu = default_runtime().cpu
    racing = Racing(config, cpu)
    for length, got in ((60, racing.reserve(60)), (10, racing.other)):
        alone = RopeTables(config, cpu).reserve(length)
        np.testing.assert_array_equal(got[0].cos.numpy()[:length], alone[0].cos.numpy()[:length])
