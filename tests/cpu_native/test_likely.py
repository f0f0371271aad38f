"""The likeliest of rows and the shares of all, which tokens are drawn from: as the reference."""

from __future__ import annotations

import numpy as np
import pytest

from propolis import Tensor
from propolis import dtypes
from propolis import ops


KINDS = {
    "random": lambda rng, shape: rng.normal(0, 3, shape),
    "ties": lambda rng, shape: rng.integers(-3, 3, shape),
    "all alike": lambda _, shape: np.zeros(shape),
    "both zeros": lambda rng, shape: rng.choice([0.0, -0.0, -1.0], shape),
    "upwards": lambda _, shape: np.linspace(-9, 9, np.prod(shape)).reshape(shape),
    "odd": lambda rng, shape: rng.choice([np.nan, np.inf, -np.inf, 1, 2], shape),
    "nothing": lambda _, shape: np.full(shape, -np.inf),
}


@pytest.fixture
def cpu(runtime):
    """The CPU, by the kernels where they take a call."""
    return runtime().device("cpu")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [dtypes.f32, dtypes.f16, dtypes.bf16], ids=str)
@pytest.mark.parametrize(
    ("width", "k"), [(1, 1), (300, 256), (5000, 256), (5003, 40), (4097, 1024)]
)
def test_the_first_of_rows(cpu, kind, dtype, width, k):
    """Largest first, of equal ones the first, NaN before all, and what lies there."""
    x = KINDS[kind](np.random.default_rng(width), (3, width)).astype(dtype.numpy)
    wide = np.where(np.isnan(x.astype(np.float64)), np.inf, x.astype(np.float64))
    odd = np.isnan(x.astype(np.float64))
    expected = np.stack([np.lexsort((-w, ~o)) for w, o in zip(wide, odd, strict=True)])[:, :k]
    values, places = ops.topk(Tensor.from_numpy(x, cpu), k)
    assert (places.numpy() == expected).all()
    found = np.take_along_axis(x, expected, -1)
    assert values.numpy().tobytes() == found.tobytes()


def test_rows_that_lie_apart(cpu):
    """Rows of a larger tensor, as of a padded vocabulary, are taken where they lie."""
    x = np.random.default_rng(0).normal(0, 3, (4, 900)).astype(np.float32)
    part = Tensor.from_numpy(x, cpu).narrow(1, 100, 700)
    _, places = ops.topk(part, 300)
    assert (places.numpy() == np.argsort(-x[:, 100:800], kind="stable")[:, :300]).all()
    exact = np.exp(x[:, 100:800].astype(np.float64))
    exact /= exact.sum(-1, keepdims=True)
    assert np.allclose(ops.softmax(part).numpy(), exact, rtol=1e-5, atol=0)


def test_what_is_left_to_the_reference(cpu):
    """The smallest, very many, and other dimensions have the same answers, by another."""
    x = np.random.default_rng(0).normal(0, 3, (3, 2000)).astype(np.float32)
    given = Tensor.from_numpy(x, cpu)
    for k, axis, largest in ((5, 1, False), (2, 0, True), (1500, 1, True)):
        _, places = ops.topk(given, k, axis, largest=largest)
        order = np.argsort(-x if largest else x, axis=axis, kind="stable")
        assert (places.numpy() == order.take(range(k), axis)).all()
