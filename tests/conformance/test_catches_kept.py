"""What is wrong with an op that gives two results and writes into an argument is caught."""

from __future__ import annotations

import pytest


# The reference's own, with a fault behind it.
KEEP = """
from propolis_cpu_ref.ops_normed import add_rms_norm_linear_rope_kv_append as right
def keep(
    total, out, cache, x, residual, weight, w, slots, positions, cos, sin, /, eps=1e-5, *,
    heads, interleaved=False,
):
    before = cache.array.copy()
    right(
        total, out, cache, x, residual, weight, w, slots, positions, cos, sin, eps,
        heads=heads, interleaved=interleaved,
    )
{body}
@hookimpl
def propolis_ops(device):
    if device.kind == "cpu":
        yield OpImpl(op="add_rms_norm_linear_rope_kv_append", fn=keep, dtypes=F32)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("check", "body"),
    [
        ("", "pass"),
        ("values", "cache.array[...] = before"),
        ("values", "cache.array[0, :, -1] = before[0, :, -1]"),
        ("values", "cache.array[:, -1] = 1"),
        ("values", "out.array[...] *= 1.001"),
        ("values", "total.array[...] *= 1.001"),
        ("inputs", "x.array[...] = 3"),
    ],
)
def test_caught_of_what_an_op_keeps(judged_here, check, body):
    """A cache that is not as it should be is seen beside the results, and they beside it."""
    result = judged_here(KEEP.format(body=f"    {body}"))
    assert (result.status, result.check) == ("failed" if check else "passed", check), result.message


PREPARED = """
from propolis_cpu_ref.ops_quantized import prepare
from propolis_cpu_ref.ops_normed import add_rms_norm_qmatmul_rope_kv_append as right
def keep(
    total, out, cache, x, residual, weight, w, slots, positions, cos, sin, /, eps=1e-5, *,
    heads, interleaved=False,
):
    before = cache.array.copy()
    right(
        total, out, cache, x, residual, weight, w, slots, positions, cos, sin, eps,
        heads=heads, interleaved=interleaved,
    )
    if w.prepared: {body}
@hookimpl
def propolis_ops(device):
    if device.kind == "cpu":
        kinds = {{"x": frozenset({{dtypes.f32}}), "w": frozenset({{dtypes.q8_0}})}}
        yield OpImpl(
            op="add_rms_norm_qmatmul_rope_kv_append", fn=keep, dtypes=kinds, prepare=prepare
        )
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("check", "body"), [("", "pass"), ("prepared", "cache.array[...] = before")]
)
def test_caught_of_prepared_weights(judged_here, check, body):
    """What is not kept by prepared weights is not taken for what was kept before."""
    result = judged_here(PREPARED.format(body=body))
    assert (result.status, result.check) == ("failed" if check else "passed", check), result.message
