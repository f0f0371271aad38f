"""Products of bf16 by tiles of matrices, where the CPU has instructions for them."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from patience import patience

from propolis import Tensor
from propolis import dtypes
from propolis import ops
from propolis_cpu_native import ops_attention
from propolis_cpu_native import ops_conv
from propolis_cpu_native import ops_linear
from propolis_cpu_native import ops_normed
from propolis_cpu_native import ops_quantized
from propolis_cpu_native._implementation import MANY
from propolis_cpu_native._native import matrix_instructions
from propolis_cpu_native._native import native


NATIVE = Path(__file__).parents[2] / "plugins" / "cpu_native" / "native"
UNIT = 2.0**-8  # of bf16, half of its last place

pytestmark = pytest.mark.skipif(
    not matrix_instructions(), reason="this CPU has no instructions for bf16"
)


def normal(*shape, seed=0, scale=1.0):
    """Random numbers in bf16."""
    values = np.random.default_rng([seed, *shape]).normal(0, scale, shape)
    return values.astype(dtypes.bf16.numpy)


def close(found, expected, terms):
    """Whether a result is an expected one rounded once, its sums in f32."""
    off = np.abs(found.astype(np.float64) - expected)
    return (off <= 1.01 * UNIT * np.abs(expected) + terms * 2.0**-22).all()


def test_what_takes_bf16_on_this_cpu(runtime):
    """Linear layers and attention of many rows lead their ladders under fast numerics alone."""
    for numerics, leads in (("fast", True), ("exact", False)):
        table = runtime(numerics=numerics).cpu.table
        for op in (ops.linear, ops.attention):
            winner = table.trace(op, op.key(dtypes.bf16)).winner
            assert (winner.variant == "matrix") is leads


@pytest.mark.parametrize("prepared", [False, True])
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize(
    "sizes", [(1, 5, 3), (16, 32, 32), (33, 31, 17), (300, 130, 65), (9, 64, 500)], ids=str
)
def test_linear(runtime, sizes, threads, prepared):
    """Rows, outputs and depths that fill no tile, with weights as they are and packed."""
    device = runtime(threads=threads).cpu
    rows, depth, outputs = sizes
    x, w, bias = normal(rows, depth), normal(outputs, depth, seed=1), normal(outputs, seed=2)
    weight = Tensor.from_numpy(w, device)
    if prepared:
        made = ops_linear.prepare(weight)
        np.testing.assert_array_equal(made.restore().array, w)
        weight = weight.with_prepared({ops_linear.prepare: made.payload})
    out = Tensor.from_numpy(np.full((rows, outputs), np.nan, dtypes.bf16.numpy), device)
    ops_linear.linear_matrix(
        out, Tensor.from_numpy(x, device), weight, Tensor.from_numpy(bias, device)
    )
    wide = [a.astype(np.float64) for a in (x, w, bias)]
    assert close(out.numpy(), wide[0] @ wide[1].T + wide[2], depth)


def test_a_packed_weight_serves_every_number_of_rows(runtime):
    """A weight that lies in tiles alone is not brought back for a single row."""
    device = runtime().cpu
    w = Tensor.from_numpy(normal(48, 64), device)
    ready = device.table.prepare(ops.linear, ops.linear.key(dtypes.bf16), w)
    assert ready.prepared
    for rows in (1, 20):
        x = normal(rows, 64, seed=rows)
        found = ops.linear(Tensor.from_numpy(x, device), ready).numpy()
        expected = x.astype(np.float64) @ w.numpy().astype(np.float64).T
        assert close(found, expected, 64)
    assert not device.table.placement.fallbacks.tallies


@pytest.mark.parametrize("dtype", sorted(ops_quantized.FORMATS, key=lambda d: d.name), ids=str)
def test_products_with_blocks(runtime, dtype):
    """Of every format: what both factors rounded to bf16 give, in f64; nothing fills a tile."""
    device = runtime(threads=2).cpu
    rows, width, outputs = 45, 2304, 53  # more than is taken apart at a time
    rng = np.random.default_rng(3)
    values = rng.normal(0, 1, (outputs, width)).astype(np.float32)
    weight = ops.quantize(Tensor.from_numpy(values, device), dtype)
    w = ops.dequantize(weight, dtypes.f32).numpy()
    x = rng.normal(0, 1, (rows, width)).astype(np.float32)
    x[:, 5] = 300  # as language models have them
    out = Tensor.from_numpy(np.full((rows, outputs), np.nan, np.float32), device)
    ops_quantized.qmatmul_matrix(out, Tensor.from_numpy(x, device), weight)
    rounded = [a.astype(dtypes.bf16.numpy).astype(np.float64) for a in (x, w)]
    terms = np.abs(rounded[0]) @ np.abs(rounded[1]).T
    # A few weights lie on the border of two numbers of bf16: f32 reaches it from either side.
    off = np.abs(out.numpy() - rounded[0] @ rounded[1].T) / terms
    assert np.quantile(off, 0.9) <= 2.0**-18
    assert off.max() <= 2.0**-9


def test_many_rows_take_matrices(runtime):
    """A prompt does where there is AMX; products of bytes are quicker than of bf16 by AVX-512."""
    device = runtime().cpu
    winner = device.table.trace(ops.qmatmul, ops.qmatmul.key(dtypes.f32, dtypes.q4_k)).winner
    assert (winner.variant == "matrix") is (matrix_instructions() == "AMX")
    x = Tensor.from_numpy(np.ones((MANY - 1, 256), np.float32), device)
    w = ops.quantize(Tensor.from_numpy(np.ones((16, 256), np.float32), device), dtypes.q4_k)
    assert "do not pay" in ops_quantized.supports_matrix(x, w)


@pytest.mark.parametrize("small", [False, True], ids=["normal", "denormal"])
@pytest.mark.parametrize("outputs", [64, 96, 1088, 62])
@pytest.mark.parametrize("rows", [1, 45, 600])
def test_gated_products_of_norms(runtime, rows, outputs, small):
    """Gated where the tiles are, or after: what norm, product and gate by themselves give."""
    device = runtime(threads=2).cpu
    width = 768  # of more steps than are taken at a time
    rng = np.random.default_rng(6)
    x, y, scale = (
        rng.normal(0, 1, size).astype(np.float32) for size in [(rows, width)] * 2 + [width]
    )
    scale[5] = 1e-39 if small else 1  # what tiles would take for 0 is left to vectors
    values = rng.normal(0, 1, (outputs, width)).astype(np.float32)
    given = [Tensor.from_numpy(a, device) for a in (x, y, scale)]
    w = ops.quantize(Tensor.from_numpy(values, device), dtypes.q4_0)
    total, out, both = (
        Tensor.from_numpy(np.full((rows, n), np.nan, np.float32), device)
        for n in (width, outputs // 2, outputs)
    )
    gated = next(impl.fn for impl in ops_normed.OPS if impl.variant == "matrix")
    gated(total, out, *given, w, gated=True)
    np.testing.assert_array_equal(total.numpy(), x + y)
    _, normed = ops.add_rms_norm(*given)
    ops_quantized.qmatmul_matrix(both, normed, w)
    halves = (both.narrow(1, first, outputs // 2) for first in (0, outputs // 2))
    np.testing.assert_array_equal(out.numpy(), ops.silu_mul(*halves).numpy())


def test_a_packed_weight_of_another_size_is_refused():
    """The module itself never reads beyond a buffer."""
    x, out = normal(20, 32), normal(20, 16)
    with pytest.raises(TypeError, match="size does not fit"):
        native().linear(out, x, None, np.zeros(64, np.uint8), None, 2, 20, 16, 32, 1, 2)


# Sizes, kernel and attributes of convolutions.
WINDOWS = [
    ((1, 16, 16, 4, 4), (3, 3), {"padding": 1}),
    ((2, 64, 33, 8, 8), (3, 3), {"padding": 1}),
    ((1, 64, 40, 6, 32), (4, 4), {"padding": (2, 1)}),
    ((2, 33, 17, 7, 9), (3, 3), {"padding": 1}),
    ((1, 40, 70, 33, 18), (1, 1), {}),
    ((2, 64, 40, 5, 100), (5, 2), {"padding": (2, 0)}),
    ((1, 96, 130, 21, 22), (3, 3), {"padding": 4}),
    ((5, 32, 16, 3, 48), (3, 3), {"padding": 1}),  # images together, of an odd number of tiles
    ((5, 32, 16, 3, 5), (3, 3), {"padding": 1}),  # a tile has pixels of three
    ((1, 256, 16, 90, 120), (3, 3), {"padding": 1}),  # several strips
    ((3, 40, 24, 16, 32), (3, 3), {"padding": 1, "stride": 2}),
    ((2, 33, 17, 19, 30), (5, 2), {"padding": (2, 1), "stride": (3, 2), "dilation": (1, 4)}),
    ((1, 40, 24, 20, 20), (3, 3), {"dilation": 7, "padding": 9}),
    ((1, 32, 24, 5, 5), (1, 1), {"stride": 7, "padding": 3}),
    ((2, 256, 16, 150, 130), (3, 3), {"padding": 1, "stride": 2}),  # several strips
]


@pytest.mark.parametrize("prepared", [False, True], ids=["as it is", "packed"])
@pytest.mark.parametrize(("sizes", "kernel", "attributes"), WINDOWS, ids=str)
def test_convolutions(runtime, sizes, kernel, attributes, prepared):
    """Windows of any size, in steps, with gaps: to a rounding of bf16, with sums in f32."""
    device = runtime(threads=2).cpu
    batch, channels, outputs, height, width = sizes
    x = normal(batch, channels, height, width)
    w = normal(outputs, channels, *kernel, seed=1, scale=(channels * 9) ** -0.5)
    bias = normal(outputs, seed=2)
    given = {"padding": 0, "stride": 1, "dilation": 1, **attributes}
    padding, stride, dilation = (
        pair if isinstance(pair, tuple) else (pair, pair) for pair in given.values()
    )
    around = ((0, 0), (0, 0), *((p, p) for p in padding))
    wide = [a.astype(np.float64) for a in (x, w, bias)]
    reach = tuple((k - 1) * d + 1 for k, d in zip(kernel, dilation, strict=True))
    seen = np.lib.stride_tricks.sliding_window_view(np.pad(wide[0], around), reach, (2, 3))
    seen = seen[:, :, :: stride[0], :: stride[1], :: dilation[0], :: dilation[1]]
    expected = np.einsum("nchwij,kcij->nkhw", seen, wide[1], optimize=True)
    expected += wide[2][:, None, None]
    weight = Tensor.from_numpy(w, device)
    if prepared:
        made = ops_conv.pack(weight)
        np.testing.assert_array_equal(made.restore().array, w)
        weight = weight.with_prepared({ops_conv.prepare: made.payload})
    out = Tensor.from_numpy(np.full(expected.shape, np.nan, dtypes.bf16.numpy), device)
    inputs = (Tensor.from_numpy(x, device), weight, Tensor.from_numpy(bias, device))
    ops_conv.conv2d_matrix(out, *inputs, **attributes)
    assert close(out.numpy(), expected, 16)


def test_a_filter_that_lies_in_tiles_serves_every_call(runtime):
    """Packed where that pays, and let go of; grouped calls, which no tiles take, get it back."""
    device = runtime().cpu
    key = ops.conv2d.key(dtypes.bf16)
    w = normal(32, 32, 3, 3, seed=1, scale=0.05)
    ready = device.table.prepare(ops.conv2d, key, Tensor.from_numpy(w, device))
    assert bool(ready.prepared) is (matrix_instructions() == "AMX")
    for groups in (1, 2):
        x = normal(2, 32 * groups, 8, 8, seed=groups)
        found = ops.conv2d(Tensor.from_numpy(x, device), ready, padding=1, groups=groups).numpy()
        parts = zip(np.split(x, groups, 1), np.split(w, groups, 0), strict=True)
        each = [ops.conv2d(*map(Tensor.from_numpy, part), padding=1).numpy() for part in parts]
        expected = np.concatenate(each, 1).astype(np.float64)
        assert np.abs(found.astype(np.float64) - expected).max() <= 2 * UNIT * 4
    few = device.table.prepare(ops.conv2d, key, Tensor.from_numpy(normal(4, 32, 3, 3), device))
    assert not any(form is not None for form in few.prepared.values())


@pytest.mark.parametrize("shape", [(16, 17, 3, 3), (33, 33, 3, 3), (40, 40, 1, 1)], ids=str)
def test_a_filter_whose_tiles_are_mostly_padding_stays(runtime, shape):
    """Tiles hold multiples of 32 channels and outputs: of few they take several times more."""
    w = Tensor.from_numpy(normal(*shape), runtime().cpu)
    assert (ops_conv.prepare(w).payload, ops_conv.prepare(w).nbytes) == (None, 0)
    wide = Tensor.from_numpy(normal(64, 320, 3, 3), runtime().cpu)
    assert ops_conv.prepare(wide).nbytes == wide.nbytes


def test_a_packed_filter_must_fit(runtime):
    """Tiles of another size are refused before anything is read of them."""
    del runtime
    out, x = np.zeros((1, 16, 4, 4), np.uint16), np.zeros((1, 16, 4, 4), np.uint16)
    sizes = (2, 16, 3, 3, 1, 1, 1, 1, 1, 1, 1, 2)
    for w, tiles in ((None, np.zeros(64, np.uint8)), (np.zeros(64, np.uint8), None)):
        with pytest.raises(TypeError, match="size does not fit"):
            native().conv2d(out, x, w, tiles, None, *sizes)


@pytest.mark.parametrize("dim", [8, 40, 64, 80, 160])
@pytest.mark.parametrize(
    "options", [{}, {"causal": True}, {"window": (20, 3)}, {"softcap": 5.0}], ids=str
)
def test_attention(runtime, dim, options):
    """Heads of any size, grouped, over more keys than are looked at together."""
    device = runtime(threads=2).cpu
    q, k, v = normal(2, 70, 4, dim), normal(2, 150, 2, dim, seed=1), normal(2, 150, 2, dim, seed=2)
    on = [Tensor.from_numpy(a, device) for a in (q, k, v)]
    wide = [a.astype(np.float64) for a in (q, k, v)]
    keys, values = (np.repeat(a, 2, axis=2) for a in wide[1:])
    scores = np.einsum("bqhd,bkhd->bhqk", wide[0], keys) * dim**-0.5
    if "softcap" in options:
        scores = 5 * np.tanh(scores / 5)
    apart = np.arange(150) - (np.arange(70)[:, None] + 80)
    left, right = options.get("window", (1000, 0 if options.get("causal") else 1000))
    scores = np.where((apart < -left) | (apart > right), -np.inf, scores)
    shares = np.exp(scores - scores.max(-1, keepdims=True))
    shares /= shares.sum(-1, keepdims=True)
    expected = np.einsum("bhqk,bkhd->bqhd", shares, values)
    out = Tensor.from_numpy(np.full(q.shape, np.nan, dtypes.bf16.numpy), device)
    _, (attention, _) = ops_attention.KERNELS
    attention(out, *on, **options)
    assert np.abs(out.numpy().astype(np.float64) - expected).max() <= 4 * UNIT
    assert np.square(out.numpy() - expected).sum() <= 1e-5 * np.square(expected).sum()


def test_a_value_that_nobody_sees(runtime):
    """NaN and infinity behind a window spoil no query that does not see them."""
    device = runtime(threads=2).cpu
    q, k, v = normal(1, 32, 2, 40), normal(1, 150, 2, 40, seed=1), normal(1, 150, 2, 40, seed=2)
    v[0, 5, 0, 3], v[0, 6, 1, 7] = np.nan, np.inf
    out = Tensor.from_numpy(np.full(q.shape, np.inf, dtypes.bf16.numpy), device)
    _, (attention, _) = ops_attention.KERNELS
    attention(out, *(Tensor.from_numpy(a, device) for a in (q, k, v)), window=(10, 0))
    assert np.isfinite(out.numpy().astype(np.float32)).all()


def test_tiles_of_amx(tmp_path):
    """AMX's body, its instructions simulated, gives what dot products and sums in f64 give."""
    program = tmp_path / "tiles"
    flags = [
        "-std=c++20",
        "-O1",
        "-w",
        "-march=x86-64-v4",
        "-mavx512bf16",
        "-mamx-tile",
        "-mamx-bf16",
    ]
    source = Path(__file__).with_name("tiles.cpp")
    compiler = os.environ.get("CXX", "c++")
    if not shutil.which(compiler):
        pytest.skip(f"there is no {compiler}")
    for command in ([compiler, *flags, "-I", NATIVE, source, "-o", program], [program]):
        done = subprocess.run(
            list(map(str, command)),
            capture_output=True,
            text=True,
            timeout=patience(120),
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout == "0 wrong\n"
