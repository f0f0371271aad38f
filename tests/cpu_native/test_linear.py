"""Linear layers of few rows, which take weights as they lie, and models in 16 bits."""

from __future__ import annotations

import numpy as np
import pytest
from gguf import GGMLQuantizationType
from tiny_families import FAMILIES
from tiny_families import IDS
from tiny_families import Truth
from tiny_families import vocabulary
from tiny_families import write_gguf

from propolis import Tensor
from propolis import dtypes
from propolis import ops
from propolis_cpu_native import ops_linear
from propolis_workers.llm import LLM


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("dtype", [dtypes.f32, dtypes.f16, dtypes.bf16], ids=str)
@pytest.mark.parametrize("sizes", [(5, 3), (64, 33), (130, 65), (1, 1), (0, 4)], ids=str)
def test_a_row_is_the_same_alone_and_among_others(runtime, sizes, dtype, threads):
    """Of any count of rows that is few: near float64's, and to the bit what each is by itself."""
    device = runtime(threads=threads, numerics="exact").cpu
    depth, outputs = sizes
    rng = np.random.default_rng(3)
    x, w, bias = (
        rng.normal(0, 1, shape).astype(dtype.numpy)
        for shape in ((ops_linear.FEW - 1, depth), (outputs, depth), outputs)
    )
    given = Tensor.from_numpy(w, device), Tensor.from_numpy(bias, device)
    alone = [ops.linear(Tensor.from_numpy(row[None], device), *given).numpy() for row in x]
    alone = np.concatenate(alone)
    truth = x.astype(np.float64) @ w.astype(np.float64).T + bias.astype(np.float64)
    unit = {"f32": 2.0**-24, "f16": 2.0**-11, "bf16": 2.0**-8}[dtype.name]
    error = np.abs(alone.astype(np.float64) - truth)
    assert (error <= 1.01 * unit * np.abs(truth) + (depth + 2) * 2.0**-22).all()
    for rows in range(2, ops_linear.FEW):
        among = ops.linear(Tensor.from_numpy(x[:rows], device), *given).numpy()
        np.testing.assert_array_equal(among, alone[:rows])


@pytest.mark.parametrize(
    ("dtype", "rows", "own"),
    [
        (dtypes.f32, 1, True),
        (dtypes.f32, 15, True),
        (dtypes.f32, 16, False),
        (dtypes.f16, 16, True),
    ],
    ids=str,
)
def test_who_multiplies(runtime, dtype, rows, own):
    """Few rows of any dtype, and many of 16 bits; many rows of f32 are for numpy's BLAS."""
    device = runtime(numerics="exact").cpu
    w, x = (Tensor.from_numpy(np.ones((count, 8), dtype.numpy), device) for count in (4, rows))
    assert (ops.linear(x, w).numpy() == 8).all()
    assert (ops_linear._mine(x, w) is None) is own


@pytest.mark.parametrize("numerics", ["fast", "exact"])
@pytest.mark.parametrize("held", ["F16", "BF16"])
def test_a_file_of_halves(runtime, tmp_path, held, numerics):
    """It is computed so where numerics are fast, and its logits are those of f32, nearly."""
    kind = GGMLQuantizationType[held]
    path = write_gguf(
        tmp_path / "m.gguf",
        FAMILIES["llama"],
        Truth.read("llama"),
        tokenizer=vocabulary(),
        stored=kind,
    )
    llm = LLM.load(path, runtime=runtime(numerics=numerics))
    fast = numerics == "fast"
    assert llm.config.dtype.name == (held.lower() if fast else "f32")
    found, wide = (
        np.stack([engine.prefill(IDS[:20]), *(engine.decode(i) for i in IDS[20:30])])
        for engine in (llm.engine(64), LLM.load(path, runtime=runtime(), dtype="f32").engine(64))
    )
    assert ((found - wide) ** 2).mean() / (wide**2).mean() <= (
        {"F16": 3e-5, "BF16": 2e-3}[held] if fast else 1e-6
    )
