"""Tokens drawn by the kernel: the few that a row's cuts leave, and all of a vocabulary."""

from __future__ import annotations

import numpy as np
import pytest
from draws import CUTS
from draws import drawn_on
from draws import settings

from propolis import Tensor
from propolis import dtypes
from propolis import ops
from propolis_workers.llm.drawing import Drawing


@pytest.fixture
def device(runtime):
    """The CPU with the kernels."""
    return runtime().device("cpu")


@pytest.fixture
def reference(runtime):
    """The CPU as the reference has it."""
    return runtime(plugins=["cpu_ref"]).device("cpu")


@pytest.mark.parametrize("spread", [0.1, 3.0])
@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("shape", [(4, 1), (4, 15), (4, 300), (3, 5003), (1, 70_000)], ids=str)
def test_draws(device, reference, shape, cut, spread) -> None:
    """Whatever is cut, and however many are left, the CPU reference draws the same."""
    (wanted, k), rng = CUTS[cut], np.random.default_rng(shape[1])
    logits = rng.normal(0, spread, shape).astype(np.float32)
    for kind in (np.float32, np.float16):
        for ties in (False, True):
            given = (logits.round(1) if ties else logits).astype(kind)
            for _ in range(3):
                call = given, *settings(rng, shape[0], **wanted), k
                assert (drawn_on(device, *call) == drawn_on(reference, *call)).all()


def test_odd_rows(device, reference) -> None:
    """NaN, infinities, equal logits, and rows of a wider table."""
    logits = np.zeros((7, 700), np.float32)
    logits[0, 500] = np.nan
    logits[1, [3, 99, 650]] = np.inf
    logits[2] = -np.inf
    logits[3, 5:] = -np.inf
    logits[4, 690:] = 90
    logits[5] = np.random.default_rng(0).normal(0, 1e37, 700)
    keys, _, _ = settings(np.random.default_rng(0), 7)
    heat = np.array([1, 1, 1, 1, 1e-30, 1e30, 0.5], np.float32)
    for k in (0, 9, 400):
        drawn = []
        for place in (device, reference):
            x = Tensor.from_numpy(logits, place).narrow(1, 0, 690)
            given = Tensor.from_numpy(keys, place), Tensor.from_numpy(heat, place)
            drawn.append(ops.draw(x, *given, k=k).numpy().tolist())
        assert drawn[0] == drawn[1]
        assert drawn[0][0] == 500
        assert drawn[0][1] in (3, 99, 650)
        assert drawn[0][3] < 5


def test_workers_ask_it(device) -> None:
    """The worker's answers are drawn by it."""
    assert Drawing(device).serves(dtypes.f32)
