"""Windows over images and videos against torch, live: every attribute with every other."""

from __future__ import annotations

import importlib
import itertools
import os

import numpy as np
import pytest

from propolis import Tensor
from propolis import ops


def load_torch():
    """Torch, or a skip that says why; see ``test_oracle_torch``."""
    try:
        return importlib.import_module("torch")
    except ImportError as exc:
        if os.environ.get("PROPOLIS_REQUIRE_ORACLES") == "1":
            raise
        reason = f"no torch ({exc}); `make oracles` installs it"
        return pytest.skip(reason, allow_module_level=True)


torch = load_torch()
functional = torch.nn.functional
pytestmark = pytest.mark.oracle


@pytest.fixture(scope="module")
def draw64():
    """Numbers in f64, as an array and as torch's tensor."""
    rng = np.random.default_rng(0)

    def drawn(*shape):
        array = rng.standard_normal(shape)
        return array, torch.from_numpy(array)

    return drawn


def agree(theirs, ours):
    """Equal shapes, and values to the last digits of f64."""
    assert theirs.shape == ours.shape
    np.testing.assert_allclose(ours, theirs.numpy(), rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("shape", [(9, 11), (17, 5), (1, 3)], ids=str)
@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
def test_resize(draw64, shape, mode):
    """Sizes, scales, aligned corners and antialias give what interpolate gives."""
    x, wanted = draw64(2, 3, *shape)
    tensor = Tensor.from_numpy(x)
    for size, smooth, corners in itertools.product(
        [(5, 24), (18, 3), (9, 11), (1, 1), (40, 2)], (False, True), (False, True)
    ):
        rules = {"mode": mode, "antialias": smooth, "align_corners": corners}
        agree(
            functional.interpolate(wanted, size, **rules),
            ops.resize2d(tensor, size, **rules).numpy(),
        )
    for scale, smooth in itertools.product([(1.37, 1.7), (2.3, 0.9)], (False, True)):
        theirs = functional.interpolate(wanted, scale_factor=scale, mode=mode, antialias=smooth)
        size = tuple(theirs.shape[2:])
        agree(theirs, ops.resize2d(tensor, size, mode=mode, antialias=smooth, scale=scale).numpy())


@pytest.mark.parametrize("rank", [2, 3])
def test_pools(draw64, rank):
    """Kernels, strides, padding, dilation and ceil mode give what torch's pools give."""
    x, wanted = draw64(2, 3, *(5, 9, 8)[-rank:])
    tensor = Tensor.from_numpy(x)
    kernels, strides = (2, 3, (2, 3, 2)[-rank:]), (1, 2, (1, 3, 2)[-rank:])
    mean, most = (getattr(ops, f"{kind}_pool{rank}d") for kind in ("avg", "max"))
    their_mean = getattr(functional, f"avg_pool{rank}d")
    their_most = getattr(functional, f"max_pool{rank}d")
    for kernel, stride, pad, ceil in itertools.product(kernels, strides, (0, 1), (False, True)):
        window = {"stride": stride, "padding": pad, "ceil_mode": ceil}
        for counted in (False, True):
            theirs = their_mean(wanted, kernel, **window, count_include_pad=counted)
            agree(theirs, mean(tensor, kernel, **window, count_padding=counted).numpy())
        for dilation in (1, 2):
            if dilation * 2 >= min(x.shape[2:]) + 2 * pad:
                continue
            theirs = their_most(wanted, kernel, **window, dilation=dilation)
            agree(theirs, most(tensor, kernel, **window, dilation=dilation).numpy())


def test_adaptive_pools(draw64):
    """Sizes that divide the image's, do not, and are larger."""
    x, wanted = draw64(2, 3, 9, 11)
    tensor = Tensor.from_numpy(x)
    for size in (1, 3, (4, 7), (9, 11), (20, 2)):
        agree(
            functional.adaptive_avg_pool2d(wanted, size),
            ops.adaptive_avg_pool2d(tensor, size).numpy(),
        )
        agree(
            functional.adaptive_max_pool2d(wanted, size),
            ops.adaptive_max_pool2d(tensor, size).numpy(),
        )


def test_conv3d(draw64):
    """Groups, strides, padding and dilation, one for each dimension too."""
    x, wanted = draw64(2, 4, 5, 7, 6)
    for groups, stride, pad, dilation in itertools.product(
        (1, 2), (1, (1, 2, 3)), (0, (1, 0, 2)), (1, (1, 2, 1))
    ):
        (w, w_), (b, b_) = draw64(6, 4 // groups, 3, 2, 3), draw64(6)
        rules = {"stride": stride, "padding": pad, "dilation": dilation, "groups": groups}
        ours = ops.conv3d(*map(Tensor.from_numpy, (x, w, b)), **rules)
        agree(functional.conv3d(wanted, w_, b_, **rules), ours.numpy())
