"""Which calls are served, and that they are: packing, grids and dispatch, on the simulator."""

from __future__ import annotations

import re
import struct

import numpy as np
import pytest

from propolis import Tensor
from propolis import dtypes
from propolis_flash_attn_ck import _code
from propolis_flash_attn_ck import _instances
from propolis_flash_attn_ck import ops


def drawn(tokens=64, keys=96, dim=64, batch=1, heads=4, kv_heads=2):
    """Queries, keys and values that are served."""
    shapes = ((batch, tokens, heads, dim), *((batch, keys, kv_heads, dim),) * 2)
    return tuple(Tensor.from_numpy(np.ones(s, np.float16)) for s in shapes)


def test_prefill_is_served():
    """Many queries at once, of any batch, group of heads, window, soft cap and length."""
    assert ops.supports(*drawn()) is None
    lengths = Tensor.from_numpy(np.array([5], np.int32))
    assert ops.supports(*drawn(), lengths, causal=True, window=(3, 0), softcap=20.0) is None
    starts = Tensor.from_numpy(np.array([0, 30, 64], np.int32))
    q, _, _ = drawn()
    _, k, v = drawn(batch=2)
    assert ops.supports(q, k, v, q_start=starts) is None
    for dim in (40, 80, 96, 128, 160, 256):
        assert ops.supports(*drawn(dim=dim)) is None
        assert ops.supports(*drawn(dim=dim), softcap=5.0) is None


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"tokens": 1}, r"1 queries of 1 sequences, .*: decoding wastes a tile of 128"),
        ({"dim": 264}, r"head_dim 264 and value_dim 264: multiples of 8 up to 256"),
        ({"dim": 36}, r"head_dim 36 .*: multiples of 8"),
        ({"tokens": ops.ROWS + 8, "heads": 1, "kv_heads": 1, "dim": 8}, r"the grid has no room"),
    ],
    ids=["decode", "wide", "odd", "long"],
)
def test_shapes_that_others_serve(given, why):
    """Decoding, heads that are too wide or no whole packs, and endless batches are declined."""
    said = ops.supports(*drawn(**given))
    assert said is not None
    assert re.search(why, said)


def test_what_the_kernels_do_not_have():
    """Biases and pages are declined by their names, and a scale that masked scores do not bear."""
    for scale in (0.0, -1.0):
        assert "so it must be positive" in ops.supports(*drawn(), scale=scale)
    q, k, v = drawn()
    for name in ("bias", "alibi", "block_table"):
        given = {name: Tensor.from_numpy(np.zeros((1, 1), np.float32))}
        assert f"{name}: the compiled kernels have none" == ops.supports(q, k, v, **given)


def test_strides_that_others_serve():
    """Rows that are no whole packs, or lie too far apart for 32 bits, are declined with strides."""
    q, k, v = drawn(dim=72)
    said = ops.supports(q.narrow(3, 1, 64), k.narrow(3, 0, 64), v)
    assert said == f"q has strides {q.strides}: rows must be whole packs of 8 elements"
    turned = Tensor.from_numpy(np.ones((1, 64, 96, 4), np.float16)).permute(0, 1, 3, 2)
    assert "q has strides" in ops.supports(turned, *drawn(dim=96)[1:])


def test_the_arguments_are_the_headers():
    """Python packs as many bytes as the structure has: the header's assertion compares the rest."""
    assert _instances.SIZE == 192
    assert struct.calcsize(_instances.ARGUMENTS) == 192
    header = (_code.NATIVE / "propolis_fmha.h").read_text()
    assert "sizeof(propolis_fmha_args) == FMHA_SIZE" in header


def test_every_instance_has_a_name_of_its_own():
    """Names of kernels tell dtype, head and soft cap."""
    names = [instance.name for instance in _instances.INSTANCES]
    assert len(set(names)) == len(names) == 12
    assert "fmha_bf16_64_softcap" in names


def test_where_nothing_was_compiled(monkeypatch):
    """A card whose code object is not there is declined with what to do; the simulator never is."""
    monkeypatch.setattr(_code, "archs", lambda: ["gfx942"])
    for arch, served in (("gfx942", True), ("gfx90a", False), ("hipsim64", True)):
        for impl in ops.implementations(arch):
            said = impl.supports(*drawn())
            assert said is None if served else "make ck" in said
            assert {"gfx90a", "gfx942", *_instances.SIMULATED} == impl.archs
            assert not impl.exact
        assert set(impl.dtypes) == {dtypes.f16, dtypes.bf16}


@pytest.mark.slow
def test_conformance(propolis):
    """What attention promises holds: on views, ragged batches, windows, empty sequences."""
    said = propolis("conformance", "flash_attn_ck", "--quick")
    assert "4 op x dtype: 4 passed" in said


CALLS = """
import numpy as np
from propolis import Tensor, default_runtime, dtypes, ops
device = default_runtime().device("rocm:0")
rng = np.random.default_rng(0)
def place(array, kind):
    return Tensor.from_numpy(array.astype(kind.numpy), device)
def truth(q, k, v, lengths, causal, cap, starts):
    out = np.zeros((*q.shape[:3], v.shape[3]))
    for s, n in enumerate(lengths):
        row, some = (s, slice(None)) if starts is None else (0, slice(starts[s], starts[s + 1]))
        for h in range(q.shape[2]):
            g = h // (q.shape[2] // k.shape[2])
            score = q[row, some, h] @ k[s, :n, g].T * q.shape[3] ** -0.5
            score = cap * np.tanh(score / cap) if cap else score
            i, j = np.indices(score.shape)
            if causal:
                score = np.where(j <= n - score.shape[0] + i, score, -np.inf)
            top = score.max(1, keepdims=True, initial=-1e9)
            share = np.exp(score - top)
            total = share.sum(1, keepdims=True)
            share = np.where(total > 0, share / np.where(total > 0, total, 1), 0)
            out[row, some, h] = share @ v[s, :n, g]
    return out
for kind in (dtypes.f16, dtypes.bf16):
    for dim, value_dim, cap, ragged in (
        (40, 40, 0, 0), (64, 80, 0, 1), (128, 128, 0, 0), (64, 64, 5.0, 0), (104, 104, 0, 0),
        (128, 128, 5.0, 0), (256, 256, 0, 1), (256, 256, 5.0, 0), (192, 128, 0, 0), (64, 144, 0, 0),
    ):
        starts = [0, 150, 170] if ragged else None
        q = rng.standard_normal((1 if ragged else 2, 170, 4, dim))
        k, v = rng.standard_normal((2, 200, 2, dim)), rng.standard_normal((2, 200, 2, value_dim))
        q, k, v = (place(a, kind) for a in (q, k, v))
        lengths = [200, 33]
        more = {"q_start": Tensor.from_numpy(np.array(starts, np.int32), device)} if ragged else {}
        kv_len = Tensor.from_numpy(np.array(lengths, np.int32), device)
        got = ops.attention(q, k, v, kv_len, causal=True, softcap=cap, **more)
        both, _ = ops.attention_lse(q, k, v, kv_len, causal=True, softcap=cap, **more)
        want = truth(*(t.numpy().astype(np.float64) for t in (q, k, v)), lengths, True, cap, starts)
        far = np.abs(got.numpy().astype(np.float64) - want).max()
        assert far < (0.004 if kind is dtypes.f16 else 0.03), (kind, dim, far)
        assert both.numpy().tobytes() == got.numpy().tobytes()
print("done")
"""


@pytest.mark.slow
def test_many_tiles(propolis):
    """Heads of every size over several tiles, ragged and capped, give what float64 gives."""
    assert "done" in propolis("-c", CALLS)


def test_it_goes_first(propolis):
    """With kernels of ours beside it, `explain` names it first, and says why it is no exact one."""
    said = propolis("explain", "attention", "--device", "rocm:0", "--dtype", "f16")
    assert said.index("flash_attn_ck") < said.index("rocm_kernels")
