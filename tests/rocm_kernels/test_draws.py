"""Tokens drawn on the device: the few that a row's cuts leave, and all of a vocabulary."""

from __future__ import annotations

import numpy as np
import pytest
from draws import CUTS
from draws import drawn_on
from draws import settings

from propolis import Config
from propolis import Runtime
from propolis import Tensor
from propolis import capture
from propolis import dtypes
from propolis import ops


@pytest.fixture
def reference():
    """The CPU as the reference has it, whatever the default device is."""
    return Runtime.start(Config(plugins=["cpu_ref"])).device("cpu")


@pytest.mark.parametrize("spread", [0.1, 3.0])
@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("shape", [(4, 300), (3, 5000), (1, 70_000)], ids=str)
def test_draws(rocm, reference, shape, cut, spread) -> None:
    """Whatever is cut, and however many are left, the CPU reference draws the same."""
    (wanted, k), rng = CUTS[cut], np.random.default_rng(shape[1])
    logits = rng.normal(0, spread, shape).astype(np.float32)
    for kind in (np.float32, np.float16, np.float64):
        for ties in (False, True):
            given = (logits.round(1) if ties else logits).astype(kind)
            for _ in range(3):
                call = given, *settings(rng, shape[0], **wanted), k
                assert (drawn_on(rocm, *call) == drawn_on(reference, *call)).all()


def test_odd_rows(rocm, reference) -> None:
    """NaN, infinities and equal logits; rows and settings that are views with strides."""
    logits = np.zeros((6, 700), np.float32)
    logits[0, 500] = np.nan
    logits[1, [3, 99, 650]] = np.inf
    logits[2] = -np.inf
    logits[3, 5:] = -np.inf
    rng = np.random.default_rng(0)
    keys, _, _ = settings(rng, 6)
    table = np.linspace(0.1, 0.9, 24, dtype=np.float32).reshape(6, 4)
    for k in (0, 9, 400):
        drawn = []
        for place in (rocm, reference):
            x = Tensor.from_numpy(np.ascontiguousarray(logits.T), place).transpose(0, 1)
            columns = [Tensor.from_numpy(table, place).narrow(1, n, 1).squeeze(1) for n in range(3)]
            named = {"top_p": columns[1], "min_p": columns[2]} if k != 9 else {}
            given = Tensor.from_numpy(keys, place), columns[0]
            drawn.append(ops.draw(x, *given, k=k, **named).numpy().tolist())
        assert drawn[0] == drawn[1]
        assert drawn[0][0] == 500
        assert drawn[0][1] in (3, 99, 650)
        assert drawn[0][3] < 5


def test_replayed(rocm, reference) -> None:
    """A captured draw draws by the keys that are there, after one that needed more memory."""
    rng = np.random.default_rng(1)
    logits = rng.normal(0, 2, (2, 5000)).astype(np.float32)
    keys, _, _ = settings(rng, 2)
    temperatures = np.ones(2, np.float32)
    held = [Tensor.from_numpy(one, rocm) for one in (logits, keys, temperatures)]
    with capture(rocm) as graph:
        some, every = ops.draw(*held, k=50), ops.draw(*held)
    drawn_on(rocm, np.zeros((9, 40_000), np.float32), *settings(rng, 9), 256)
    for _ in range(3):
        keys, _, _ = settings(rng, 2)
        held[1].assign(keys)
        graph.replay()
        for found, k in ((some, 50), (every, 0)):
            assert (found.numpy() == drawn_on(reference, logits, keys, temperatures, {}, k)).all()


def test_few_of_parts_that_are_short(rocm) -> None:
    """The best are in the last part, which has fewer than are wanted, and its fillers are none."""
    width = 17 * 4096 + 5
    x = np.arange(width, dtype=np.float32)
    x[: 16 * 4096] -= 1e6
    for k in (255, 256, 40):
        values, places = ops.topk(Tensor.from_numpy(x[None], rocm), k)
        assert (places.numpy()[0] == width - 1 - np.arange(k)).all()
        assert (values.numpy()[0] == x[: -1 - k : -1]).all()


@pytest.mark.parametrize("dtype", [dtypes.f16, dtypes.f32, dtypes.i8], ids=str)
@pytest.mark.parametrize("width", [2049, 4096, 4097, 9000, 130_000])
def test_few_of_long_rows(rocm, dtype, width) -> None:
    """The best few of rows that are in order already, the other way round, equal, or any."""
    rng = np.random.default_rng(width)
    rows = np.round(rng.normal(0, 30, (4, width))).clip(-100, 100)
    rows[1], rows[2], rows[3] = np.sort(rows[1]), np.sort(rows[2])[::-1], 7
    array = rows.astype(dtype.numpy)
    for k in (1, 40, 255):
        for largest in (True, False):
            wide = -array.astype(np.float64) if largest else array.astype(np.float64)
            expected = np.argsort(wide, axis=1, kind="stable")[:, :k]
            values, places = ops.topk(Tensor.from_numpy(array, rocm), k, largest=largest)
            assert (places.numpy() == expected).all()
            assert (values.numpy() == np.take_along_axis(array, expected, 1)).all()
