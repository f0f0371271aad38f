"""Faults at shapes and numbers that a suite may forget to draw."""

from __future__ import annotations

import pytest


PLUGIN = """
from propolis_conformance.families import OPS
def run(out, *args, **attributes):
    if not out.array.size:
        return
    arrays = [t.array.astype(np.float64) for t in args if t is not None]
    with np.errstate(all="ignore"):
        result = np.asarray(OPS["{op}"].truth(*arrays, **attributes))
        if {when}:
            result = np.{wrong}
        out.array[...] = result
def {op}({signature}):
    run({call})
@hookimpl
def propolis_ops(device):
    if device.kind == "cpu":
        yield OpImpl(op="{op}", fn={op}, dtypes=F32)
"""
SIGNATURES = {
    "add": ("out, a, b, /", "out, a, b"),
    "matmul": ("out, a, b, /", "out, a, b"),
    "linear": ("out, x, w, /, bias=None", "out, x, w, bias"),
    "softmax": ("out, x, /, dim=-1", "out, x, dim=dim"),
    "rms_norm": ("out, x, weight, /, eps=1e-5", "out, x, weight, eps=eps"),
    "layer_norm": ("out, x, weight, /, bias=None, eps=1e-5", "out, x, weight, bias, eps=eps"),
}


@pytest.mark.parametrize(
    ("op", "when"),
    [
        *(("add", f"out.array.ndim == {rank}") for rank in (1, 2, 5, 6, 7)),
        ("softmax", "out.array.ndim == 1"),
        ("softmax", "out.array.ndim == 2"),
        ("rms_norm", "out.array.ndim == 2"),
        ("layer_norm", "out.array.ndim == 1"),
        ("linear", "out.array.ndim == 4"),
        # Both operands broadcast, and in the middle.
        ("add", "all(a.shape != result.shape for a in arrays)"),
        ("add", "arrays[1].ndim == 3 and arrays[1].shape[1] < result.shape[1]"),
        ("matmul", "result.ndim == 4 and arrays[1].shape[0] < arrays[0].shape[0]"),
        # A mean that is large beside what differs from it.
        ("layer_norm", "result.size and abs(arrays[0]).min() > 500"),
    ],
)
def test_shape(judged_here, op, when):
    """An op that is wrong there alone does not pass; one that is right does."""
    signature, call = SIGNATURES[op]
    how = {"op": op, "signature": signature, "call": call, "when": when}
    assert judged_here(PLUGIN.format(**how, wrong="full_like(result, 0.25)")).check
    result = judged_here(PLUGIN.format(**how, wrong="copy(result)"))
    assert not result.check, result.message
