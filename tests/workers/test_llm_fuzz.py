from __future__ import annotations

import json
import struct
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st

from propolis.errors import PropolisError
from propolis_workers.llm import LLM


if TYPE_CHECKING:
    from pathlib import Path

CHECKED = [HealthCheck.function_scoped_fixture]
EDGES = [struct.pack("<I", 0), struct.pack("<I", 2**31), b"\0", b"\xff"]
EDGES += [struct.pack("<Q", n) for n in (2**32, 2**63, 2**64 - 1)]
CHANGE = st.tuples(st.floats(0, 1), st.binary(min_size=1, max_size=12) | st.sampled_from(EDGES))

KEYS = ["hidden_size", "num_hidden_layers", "num_attention_heads", "head_dim", "vocab_size"]
KEYS += ["num_key_value_heads", "rms_norm_eps", "rope_theta", "rope_scaling", "rope_parameters"]
KEYS += ["max_position_embeddings", "model_type", "tie_word_embeddings", "intermediate_size"]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=4,
)


def refusal(path: Path) -> str | None:
    """Why a model cannot be used; None when it answers.  Other errors are bugs."""
    try:
        list(LLM.load(path).complete("the", max_tokens=2))
    except PropolisError as error:
        return str(error)
    return None


@pytest.fixture(scope="module")
def scratch(tmp_path_factory) -> Path:
    """A file to write again and again."""
    return tmp_path_factory.mktemp("fuzz") / "fuzzed.gguf"


def header_size(content: bytes) -> int:
    """Where the last tensor's description ends."""
    return content.rindex(b".weight") + len(b".weight") + 4 + 16 + 4 + 8


@pytest.mark.slow
@settings(max_examples=250, deadline=None, suppress_health_check=CHECKED)
@given(changes=st.lists(CHANGE, min_size=1, max_size=3), cut=st.none() | st.floats(0, 1))
def test_header(tiny_gguf, scratch, changes, cut):
    """Whatever a header says, loading ends in a model or in an error of ours of one line."""
    content = bytearray(tiny_gguf.read_bytes())
    end = header_size(content)
    for where, raw in changes:
        # The vocabulary is most of the header, and dull: half of the changes hit its ends.
        at = int(where * 4 * 1000) if where < 0.25 else int(where * end)
        at = end - int((1 - where) * 4 * 1400) if where > 0.75 else at
        at = min(max(at, 0), end - len(raw))
        content[at : at + len(raw)] = raw
    if cut is not None:
        del content[int(cut * len(content)) :]
    scratch.write_bytes(content)
    assert "\n" not in (refusal(scratch) or "")


@pytest.mark.slow
@settings(max_examples=150, deadline=None, suppress_health_check=CHECKED)
@given(changes=st.dictionaries(st.sampled_from(KEYS), JSON, min_size=1, max_size=2))
def test_config(tiny_folder, changes):
    """So it is with a config.json."""
    path = tiny_folder / "config.json"
    kept = path.read_text(encoding="utf-8")
    try:
        path.write_text(json.dumps(json.loads(kept) | changes), encoding="utf-8")
        assert "\n" not in (refusal(tiny_folder) or "")
    finally:
        path.write_text(kept, encoding="utf-8")
