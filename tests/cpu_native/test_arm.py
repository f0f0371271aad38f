"""The kernels for 64-bit Arm, from a cross compiler, run by an emulator of the CPU."""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from bytes_of_activations import most_off
from gguf import GGMLQuantizationType
from gguf import dequantize
from patience import patience
from scipy.special import erf

from propolis import Tensor
from propolis import dtypes
from propolis import ops
from propolis_cpu_native import ops_quantized
from propolis_cpu_native._native import KINDS


NATIVE = Path(__file__).parents[2] / "plugins" / "cpu_native" / "native"
COMPILER, EMULATOR = "aarch64-linux-gnu-g++", "qemu-aarch64-static"
DISASSEMBLER = "aarch64-linux-gnu-objdump"
FLAGS = ("-std=c++20", "-O2", "-ffp-contract=fast", "-fno-math-errno", "-w", "-I", NATIVE)
# As CMakeLists.txt has them; the latter has products of its own, and the rest is the same.
DOTPROD, I8MM = "-march=armv8.2-a+dotprod", "-march=armv8.2-a+dotprod+i8mm"
PRODUCTS = ("qmatmul", "qmatmul_32", "qmatmul_256")
SOURCES = ("pool", "rows", "qmatmul", "indexing", "attention", "conv", "images", "linear", "matrix")
SOURCES += ("attention_matrix", "conv_matrix", "qmatmul_matrix", "qmatmul_32", "qmatmul_256")

FORMATS = sorted(ops_quantized.FORMATS, key=lambda dtype: dtype.name)
FLOATS = sorted(KINDS, key=KINDS.get)
# Half of the last place; f32's results are sums whose terms round too.
UNITS = {dtypes.f32: 2.0**-18, dtypes.f16: 2.0**-11, dtypes.bf16: 2.0**-8}

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def programs(tmp_path_factory):
    """The kernels as programs, by the level of their products."""
    missing = [tool for tool in (COMPILER, EMULATOR) if not shutil.which(tool)]
    if missing:
        packages = "g++-aarch64-linux-gnu qemu-user-static"
        msg = f"there is no {' and no '.join(missing)}: apt-get install {packages}"
        if os.environ.get("PROPOLIS_REQUIRE_NATIVE"):
            pytest.fail(f"PROPOLIS_REQUIRE_NATIVE is set, and {msg}")
        pytest.skip(msg)
    folder = tmp_path_factory.mktemp("arm")

    def compiled(made):
        level, name = made
        to = folder / f"{name}{level}.o"
        source = Path(__file__).with_name(name) if "." in name else NATIVE / f"{name}.cpp"
        command = (COMPILER, *FLAGS, level, "-c", source, "-o", to)
        subprocess.run(command, check=True, timeout=patience(300))
        return made, to

    wanted = [(level, name) for name in PRODUCTS for level in (I8MM, DOTPROD)]
    wanted += [(DOTPROD, name) for name in (*SOURCES, "served.cpp") if name not in PRODUCTS]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        objects = dict(pool.map(compiled, wanted))
    made = {}
    for level in (DOTPROD, I8MM):
        made[level] = folder / f"served{level}"
        own = [at for (by, name), at in objects.items() if by == level or name not in PRODUCTS]
        # Statically, so that no system of that architecture is needed.
        command = (COMPILER, "-static", "-pthread", *own, "-o", made[level])
        subprocess.run(command, check=True)
    return made


@contextmanager
def running(program):
    """Calls a kernel of a program under the emulator; instead of this machine's own."""
    process = subprocess.Popen(
        [EMULATOR, "-cpu", "max", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )

    def call(name, dtype, numbers, *arrays):
        raw = [a if isinstance(a, bytes) else np.ascontiguousarray(a).tobytes() for a in arrays]
        numbers = (KINDS[dtype], *map(int, numbers))
        heading = struct.pack(f"<{len(numbers) + 2}q", len(numbers), *numbers, len(raw))
        for part in (name.encode(), *raw):
            process.stdin.write(struct.pack("<q", len(part)) + part + heading)
            heading = b""
        process.stdin.flush()
        (length,) = struct.unpack("<q", process.stdout.read(8))
        return process.stdout.read(length)

    yield call
    process.stdin.close()
    assert process.wait(patience(20)) == 0
    process.stdout.close()


@pytest.fixture(scope="module")
def kernels(programs):
    """Calls a kernel of those with products of bytes."""
    with running(programs[DOTPROD]) as call:
        yield call


def normal(dtype, *shape, seed=0):
    """Random numbers, and the same in float64."""
    values = np.random.default_rng([seed, *shape]).normal(0, 1, shape).astype(dtype.numpy)
    return values, values.astype(np.float64)


def near(raw, dtype, expected):
    """Whether a result is what is expected, to a rounding of its dtype."""
    found = np.frombuffer(raw, dtype.numpy).astype(np.float64).reshape(expected.shape)
    allowed = 1.01 * UNITS[dtype] * np.abs(expected) + 2.0**-17 * np.abs(expected).max()
    return (np.abs(found - expected) <= allowed).all()


def products(kernels, dtype):
    """Weights come back to the bit, and products are those of what the gguf library reads."""
    outputs, width = 37, 512
    values, _ = normal(dtypes.f32, outputs, width)
    blocks = np.asarray(ops.quantize(Tensor.from_numpy(values), dtype).array)
    name = dtype.name.encode()
    assert kernels("blocks", dtypes.f32, (0, outputs, width), name, blocks) == blocks.tobytes()
    w = dequantize(blocks, GGMLQuantizationType[dtype.name.upper()]).astype(np.float64)
    for tokens in (1, 3):
        x, wide = normal(dtypes.f32, tokens, width, seed=1)
        x[:, 5] = wide[:, 5] = 300  # as language models have them
        for exact in (0, 1):
            raw = kernels("product", dtypes.f32, (tokens, outputs, width, exact), name, blocks, x)
            found = np.frombuffer(raw, np.float32).reshape(tokens, outputs)
            slack = 2e-5 * 300 * np.abs(w).max() * 8
            assert (np.abs(found - wide @ w.T) <= slack + (0 if exact else most_off(x, w))).all()


def rows(kernels, dtype):
    """Norms and gates, of rows that fill no vector."""
    (x, wide), (w, factor) = normal(dtype, 5, 83), normal(dtype, 83)
    expected = wide / np.sqrt((wide**2).mean(-1, keepdims=True) + 1e-5) * factor
    assert near(kernels("rms_norm", dtype, x.shape, x, w), dtype, expected)
    y, other = normal(dtype, 5, 83, seed=1)
    silu, gelu = wide / (1 + np.exp(-wide)), wide * (1 + erf(wide * 0.5**0.5)) / 2
    assert near(kernels("pairwise", dtype, (3, x.size), x, y), dtype, silu * other)
    assert near(kernels("pairwise", dtype, (4, x.size), x, y), dtype, gelu * other)


def attention(kernels, dtype, tokens):
    """Causal, grouped heads, few queries and many."""
    keys, dim = 75, 40
    (q, a), (k, b), (v, c) = (
        normal(dtype, 2, count, heads, dim, seed=seed)
        for seed, (count, heads) in enumerate([(tokens, 4), (keys, 2), (keys, 2)])
    )
    b, c = np.repeat(b, 2, axis=2), np.repeat(c, 2, axis=2)
    scores = np.einsum("bqhd,bkhd->bhqk", a, b) * dim**-0.5
    apart = np.arange(keys) - (np.arange(tokens)[:, None] + keys - tokens)
    shares = np.exp(np.where(apart > 0, -np.inf, scores))
    expected = np.einsum("bhqk,bkhd->bqhd", shares / shares.sum(-1, keepdims=True), c)
    raw = kernels("attention", dtype, (2, tokens, keys, 4, 2, dim), q, k, v)
    assert near(raw, dtype, expected)


def images(kernels, dtype):
    """Linear layers, 3 x 3 convolutions of both ways, and norms of groups."""
    for rows in (33, 7):  # packed, and as they lie
        (x, a), (w, b), (bias, c) = (normal(dtype, *s) for s in ((rows, 70), (21, 70), (21,)))
        raw = kernels("linear", dtype, (rows, 21, 70), x, w, bias)
        assert near(raw, dtype, a @ b.T + c)
    (x, a), (w, b), (bias, c) = (
        normal(dtype, 9, 11, 14),
        normal(dtype, 21, 9, 3, 3),
        normal(dtype, 21),
    )
    seen = np.lib.stride_tricks.sliding_window_view(
        np.pad(a, ((0, 0), (1, 1), (1, 1))), (3, 3), (1, 2)
    )
    expected = np.einsum("chwij,kcij->khw", seen, b) + c[:, None, None]
    for exact in (0, 1):
        raw = kernels("convolve", dtype, (9, 11, 14, 21, exact), x, w, bias)
        assert near(raw, dtype, expected)
    (x, a), (w, b), (bias, c) = normal(dtype, 2, 6, 77), normal(dtype, 6), normal(dtype, 6, seed=1)
    groups = a.reshape(2, 3, -1)
    groups = groups - groups.mean(-1, keepdims=True)
    groups /= np.sqrt((groups**2).mean(-1, keepdims=True) + 1e-5)
    expected = groups.reshape(a.shape) * b[:, None] + c[:, None]
    raw = kernels("group_norm", dtype, (2, 6, 77, 3), x, w, bias)
    assert near(raw, dtype, expected)


def by_two_rows(programs, kernels):
    """Products of two rows of weights and of activations (i8mm) have the bits of the others."""
    outputs, width = 37, 512
    values, _ = normal(dtypes.f32, outputs, width)
    with running(programs[I8MM]) as call:
        for dtype in FORMATS:
            blocks = np.asarray(ops.quantize(Tensor.from_numpy(values), dtype).array)
            for tokens in (1, 2, 3, 9):
                x, _ = normal(dtypes.f32, tokens, width, seed=1)
                x[::2, 5] = 300  # as language models have them, and not every row
                x[1::4, 300] = 300
                for exact in (0, 1):
                    numbers = tokens, outputs, width, exact
                    asked = "product", dtypes.f32, numbers, dtype.name.encode(), blocks, x
                    assert call(*asked) == kernels(*asked), (dtype, tokens, exact)
    # That instruction is there, and in the other program is not.
    for level, there in ((I8MM, True), (DOTPROD, False)):
        command = (DISASSEMBLER, "-d", programs[level])
        shown = subprocess.run(command, capture_output=True, check=True)
        assert (b"\tsmmla\t" in shown.stdout) == there


# One test: whichever of pytest's processes had a share of several would compile anew.
def test_every_kernel(programs, kernels):
    """Products by every format, rows, attention and images, in each dtype: as in float64."""
    for dtype in FORMATS:
        products(kernels, dtype)
    for dtype in FLOATS:
        rows(kernels, dtype)
        attention(kernels, dtype, 1)
        attention(kernels, dtype, 37)
        images(kernels, dtype)
    by_two_rows(programs, kernels)
