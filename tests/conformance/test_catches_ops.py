"""Faults of single ops and of single attributes, each caught by the check made for it."""

from __future__ import annotations

import pytest


pytestmark = pytest.mark.slow  # most run the suite in processes apart

# Right but for one line: the suite's own formulas, in f32, behind the op's signature.
PLUGIN = """
from propolis_conformance.families import OPS
from propolis.errors import OpError
def check(ids, low, high):
    if ids.size and ((ids < low) | (ids > high)).any():
        raise OpError("an index is out of range")
{function}
@hookimpl
def propolis_ops(device):
    if device.kind == "cpu":
        yield OpImpl(op="{op}", fn={op}, dtypes={dtypes}{flags})
"""


def plugin(op, function, dtypes="F32", flags=""):
    """The source of a plugin with one op."""
    return PLUGIN.format(op=op, function=function, dtypes=dtypes, flags=flags)


ATTENTION = """
def attention(out, q, k, v, /, kv_len=None, *, scale=None, causal=False, window=None,
              softcap=0.0, bias=None, alibi=None, q_start=None, block_table=None):
    given = dict(kv_len=kv_len, bias=bias, alibi=alibi, q_start=q_start, block_table=block_table)
    given = {{n: t.array.astype(np.float64 if t.dtype.is_float else np.int64)
             for n, t in given.items() if t is not None}}
    capacity = k.shape[1]
    if block_table is not None:
        capacity *= block_table.shape[1]
    if kv_len is not None:
        check(kv_len.array, 0, capacity)
    if block_table is not None:
        for row, n in zip(block_table.array, kv_len.array):
            check(row[: -(-int(n) // k.shape[1])], 0, k.shape[0] - 1)
    q, k, v = (t.array.astype(np.float64) for t in (q, k, v))
    {body}
    with np.errstate(all="ignore"):
        out.array[...] = OPS["attention"].truth(
            q, k, v, scale=scale, causal=causal, window=window, softcap=softcap, **given)
"""


@pytest.mark.parametrize(
    ("attribute", "body"),
    [
        (None, "pass"),
        ("window", "window = None"),
        ("window=", "window = window and (window[0], -1)"),
        ("causal", "causal = False"),
        ("softcap", "softcap = 0.0"),
        ("scale", "scale = None"),
        # The sign of a slope, and a mask that is not added but multiplied.
        ("alibi", "given = {n: -a if n == 'alibi' else a for n, a in given.items()}"),
        ("bias", "given.pop('bias', None)"),
        ("q_start", "if q_start is not None: given['q_start'][1:-1] = 0"),
        (
            "block_table",
            "given = {n: a[:, ::-1] if n == 'block_table' else a for n, a in given.items()}",
        ),
        # Garbage behind the end of a cache: a mask that multiplies by 0 lets NaN through.
        ("kv_len", "v = np.where(np.isnan(v).any(), np.nan, v)"),
    ],
)
def test_attention(judged_here, attribute, body):
    """An attribute that is ignored, or taken otherwise, is caught by a case that has it."""
    result = judged_here(plugin("attention", ATTENTION.format(body=body)))
    expected = {None: "", "kv_len": "nan_inf", "block_table": "nan_inf"}.get(attribute, "values")
    assert result.check == expected, result.message
    assert not attribute or attribute in result.case


SORTED = """
def argsort(out, x, /, dim=-1, *, descending=False):
    a = x.array
    out.array[...] = np.argsort(a, dim, kind="stable")
    if descending:
        {body}
"""
STABLE = "out.array[...] = OPS['argsort'].truth(a, dim, descending=True)"


@pytest.mark.parametrize(
    ("check", "body"),
    [("", STABLE), ("values", "out.array[...] = np.flip(out.array, dim)")],
)
def test_unstable(judged_here, check, body):
    """Equal elements that change places are caught, though the order is right without them."""
    result = judged_here(plugin("argsort", SORTED.format(body=body)))
    assert result.check == check, result.message
    assert not check or "values=ties" in result.case or "values=special" in result.case


SCATTER = """
def scatter(target, ids, source, /, dim=-1):
    i, s, largest = ids.array, source.array, np.iinfo(ids.array.dtype).max
    check(i[i != largest], 0, target.shape[dim] - 1)
    {body}
    target.array[...] = OPS["scatter"].truth(target.array, i, s, dim)
"""


@pytest.mark.parametrize(
    ("check", "body"),
    [
        ("", "pass"),
        ("values", "i, s = np.flip(i, dim), np.flip(s, dim)  # the first one stays"),
        ("runs", "dim = dim if dim == -1 else 0"),
        ("runs", "target.array[(i == largest).any() * 10**6 or slice(None)]"),
    ],
)
def test_scatter(judged_here, check, body):
    """Repeated, masked and other dimensions' indices are all tried."""
    kinds = "{'target': F32, 'ids': {dtypes.i32}}"
    result = judged_here(plugin("scatter", SCATTER.format(body=body), kinds))
    assert result.check == check, result.message


ELEMENT = """
def {op}(out, x, /):
    a = x.array.astype(np.float32)
    with np.errstate(all="ignore"):
        {body}
"""


@pytest.mark.parametrize(
    ("op", "check", "values", "body"),
    [
        ("sqrt", "", "", "out.array[...] = np.sqrt(a)"),
        # Denormals flushed to 0; and what overflows on the way though its result does not.
        (
            "sqrt",
            "values",
            "denormal",
            "out.array[...] = np.sqrt(np.where((a > 0) & (a < 1e-37), 0, a))",
        ),
        (
            "abs",
            "nan_inf",
            "extreme",
            "out.array[...] = np.sqrt(a * a) if a.max(initial=0) > 1e30 else np.abs(a)",
        ),
        ("exp", "values", "", "out.array[...] = np.where(a < -1, 0, np.exp(a))"),
        # Results flushed to 0; what the op says that f32 may lose.
        ("exp", "values", "wide", "out.array[...] = np.where(a < -87, 0, np.exp(a))"),
        ("sigmoid", "", "", "out.array[...] = 1 / (1 + np.exp(-a))"),
        ("round", "values", "", "out.array[...] = np.trunc(a + np.copysign(np.float32(0.5), a))"),
    ],
)
def test_elements(judged_here, op, check, values, body):
    """Small, large and halfway numbers are tried; nothing small may hide below a tolerance."""
    result = judged_here(plugin(op, ELEMENT.format(op=op, body=body)))
    assert result.check == check, result.message
    assert f"values={values}" in result.case or not check


GATED = """
def silu_mul(out, gate, up, /):
    g, u = gate.array, up.array
    with np.errstate(all="ignore"):
        silu = g / (1 + np.exp(-g))
        out.array[...] = {body}
"""


@pytest.mark.parametrize(
    ("check", "body"),
    [
        ("", "silu * u"),
        ("values", "np.where((g < -60) & (g > -80), 0, silu) * u"),
        ("values", "silu / 1e30 * u * 1e30"),
    ],
)
def test_gated(judged_here, check, body):
    """What one number loses and the other brings back is missed, save what the op says."""
    result = judged_here(plugin("silu_mul", GATED.format(body=body)))
    assert result.check == check, result.message
    assert not check or "values=wide" in result.case


SOFTMAX = """
def softmax(out, x, /, dim=-1):
    a = x.array.astype(np.float64)
    with np.errstate(all="ignore"):
        y = OPS["softmax"].truth(a, dim)
        out.array[...] = {body}
"""


@pytest.mark.parametrize(
    ("check", "body"),
    [
        ("", "y"),
        # Each is far below 1e-6 in a vocabulary of thousands, and none of them is 0.
        ("values", "np.where(y < 2e-4, 0, y)"),
        ("values", "y * (1 + 1e-4)"),
    ],
)
def test_small_shares(judged_here, check, body):
    """The shares of a long row are judged relatively."""
    result = judged_here(plugin("softmax", SOFTMAX.format(body=body)))
    assert result.check == check, result.message


LINEAR = """
def matmul(out, a, b, /):
    x, y = a.array.astype(np.float64), b.array.astype(np.float64)
    with np.errstate(all="ignore"):
        top = np.abs(x).max(-1, keepdims=True, initial=0) / 127
        eighth = np.rint(x / np.where(top == 0, 1, top)) * top
        finite = np.isfinite(x).all() and np.isfinite(y).all()
        out.array[...] = (eighth if finite else x) @ y
"""


@pytest.mark.parametrize(("flags", "check"), [("", "values"), (", exact=False", "")])
def test_rounded_inputs(judged_here, flags, check):
    """Activations in 8 bits are good enough for who declares them, and only for them."""
    result = judged_here(plugin("matmul", LINEAR, flags=flags))
    assert result.check == check, result.message


BROKEN = """
STATE = []
def embedding(out, ids, table, /, dtype=None):
    if ids.numel and (ids.array.max() >= table.shape[0] or ids.array.min() < 0):
        STATE.append(1)
        raise OpError("an id is out of range")
    out.array[...] = 7 if STATE else OPS["embedding"].truth(ids.array, table.array)
"""


def test_unusable_after_an_error(judged_here):
    """A wrong call that leaves something broken behind is caught by the right one after it."""
    kinds = "{'ids': {dtypes.i32}, 'table': F32}"
    result = judged_here(plugin("embedding", BROKEN, kinds))
    assert (result.check, result.status) == ("errors", "failed"), result.message
    assert "after wrong calls the right one fails" in result.message


DOUBLE = """
def kv_append(cache, x, positions, /):
    check(positions.array, 0, cache.shape[1] - 1)
    cache.array[...] = OPS["kv_append"].truth(cache.array, x.array, positions.array)
    if positions.dtype is dtypes.i64 and cache.dtype is dtypes.i16 and cache.numel:
        cache.array[...] += 1
"""


@pytest.mark.parametrize("quick", [True, False])
def test_two_dtypes_at_once(install, quick):
    """A full run tries combinations of dtypes that a quick one leaves out."""
    from propolis_conformance import Request
    from propolis_conformance import run

    kinds = "{'cache': {dtypes.f32, dtypes.i16}, 'positions': {dtypes.i32, dtypes.i64}}"
    install(plugin("kv_append", DOUBLE, kinds))
    results, _ = run(Request("wrong", quick=quick), workers=1)
    failed = {r.unit for r in results if r.status == "failed"}
    assert failed == (set() if quick else {"kv_append[i16,i64]"})


PREPARED = """
from propolis.records import Prepared
def prepare(w):
    {body}
    return Prepared(kept, w.nbytes, "a copy")
def linear(out, x, w, /, bias=None):
    dense = w.packed.get(prepare)
    dense = w.array if dense is None else dense
    with np.errstate(all="ignore"):
        out.array[...] = OPS["linear"].truth(x.array, dense, None if bias is None else bias.array)
"""


@pytest.mark.parametrize(
    ("body", "check"),
    [
        ("kept = w.array.copy()", ""),
        ("kept = w.array.copy(order='K')", ""),
        ("kept = w.array.copy(); kept[-1:] = 0", "prepared"),
        ("kept = w.array.T.copy()", "prepared"),
        # It leads nothing any more: whoever needs it is told at load.
        ("raise MemoryError('too large')", "prepared"),
    ],
)
def test_prepared_weights(judged_here, body, check):
    """A weight that was prepared must serve as one that was not, however it lies."""
    source = plugin("linear", PREPARED.replace("{body}", body), flags=", prepare=prepare")
    result = judged_here(source)
    assert result.check == check, result.message


DROPS_NAN = """
def max(out, x, /, dims=None, *, keepdim=False):
    out.array[...] = np.fmax.reduce(x.array, axis=dims, keepdims=keepdim)
"""


def test_nan_that_is_dropped(judged_here):
    """No search is needed: at any seed each tensor of special numbers has NaN."""
    result = judged_here(plugin("max", DROPS_NAN), quick=True)
    assert result.check == "nan_inf", result.message


@pytest.mark.parametrize(("op", "rank"), [("neg", 0), ("neg", 4), ("exp", 8), ("sum", 4)])
def test_other_ranks(judged_here, op, rank):
    """What goes wrong at four or eight dimensions alone, or at none, is caught."""
    body = f"    out.array[...] = 0 if len(x.shape) == {rank} else np.{{op}}(x.array{{rest}})"
    of = {
        "neg": ("negative", ""),
        "exp": ("exp", ""),
        "sum": ("sum", ", axis=dims, keepdims=keepdim"),
    }
    name, rest = of[op]
    rest_of = ", dims=None, *, keepdim=False" if op == "sum" else ""
    text = f"def {op}(out, x, /{rest_of}):\n{body.format(op=name, rest=rest)}"
    result = judged_here(plugin(op, text))
    assert result.check == "values", result.message
