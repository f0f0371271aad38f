"""The kernels at work, on the simulator: through hip-python, hipRTC and rocm_hip, unchanged."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

import pytest


ROOT = Path(__file__).parents[2]
# Of some families some; `make conformance` judges all, at both warp sizes.
SOME = "neg exp silu_mul add where copy fill kv_append"

both = pytest.mark.parametrize("warp", [32, pytest.param(64, marks=pytest.mark.slow)])


def script(code):
    """A program with a device and numpy."""
    head = """
    import numpy as np
    from propolis import Tensor, default_runtime, dtypes, ops
    device = default_runtime().device("rocm:0")
    upload = lambda array: Tensor.from_numpy(np.asarray(array), device)
    """
    return "-c", textwrap.dedent(head) + textwrap.dedent(code)


@pytest.mark.slow
def test_conformance(simulate) -> None:
    """What the ops say holds: values, every element written, nothing beside, capture, memory."""
    program = "from propolis.cli import main; main()"
    only = [word for op in SOME.split() for word in ("--op", op)]
    said = simulate("-c", program, "conformance", "rocm_kernels", "--quick", *only, warp=32)
    judged, passed = re.search(r"(\d+) op x dtype: (\d+) passed", said).groups()
    assert judged == passed
    assert int(passed) > 80


@both
def test_warps(simulate, warp) -> None:
    """The device has as many threads a warp as it was told to."""
    assert f"warp {warp}" in simulate(*script("print(device)"), warp=warp)


@both
def test_rounding(simulate, warp) -> None:
    """Casts round to nearest even, once, at every boundary, and saturate at every end."""
    said = simulate(str(ROOT / "tests/rocm_kernels/check_rounding.py"), warp=warp)
    assert "rounding is right" == said.strip()


@both
def test_layouts_of_many_dimensions(simulate, warp) -> None:
    """More dimensions than a kernel knows, which do not collapse, give what numpy gives."""
    code = """
    array = np.arange(3**8, dtype=np.float32).reshape((3,) * 8)[:, :2, :, :2, :, :2, :, :2]
    view = upload(np.arange(3**8, dtype=np.float32)).reshape(*(3,) * 8)
    for dim in (1, 3, 5, 7):
        view = view.narrow(dim, 0, 2)
    order = (7, 5, 3, 1, 6, 4, 2, 0)
    array, view = array.transpose(order), view.permute(*order)
    assert (ops.copy(view).numpy() == array).all()
    assert (ops.neg(view).numpy() == -array).all()
    assert (ops.add(view, view).numpy() == array + array).all()
    ops.arange(view, 5, 2)
    expected = 5 + 2 * np.arange(array.size).reshape(array.shape)
    assert (view.contiguous().numpy() == expected).all()
    """
    simulate(*script(code), warp=warp)


@both
def test_whole_rows_of_a_slice(simulate, warp) -> None:
    """Slices, biases, masks and offsets that allow packs, or just not, give what numpy gives."""
    code = """
    rng = np.random.default_rng(0)
    for kind in (np.float16, np.float32, np.uint8, np.float64):
        whole = rng.integers(0, 9, (5, 3, 64)).astype(kind)
        for start, width in ((0, 64), (16, 32), (8, 16), (1, 16), (4, 8), (2, 31)):
            array = whole[:, :, start : start + width]
            view = upload(whole).narrow(2, start, width)
            row, scale = upload(array[0, 0]), upload(array[:, :1, :1])
            assert (ops.add(view, row).numpy() == array + array[0, 0]).all()
            assert (ops.mul(scale, view).numpy() == array[:, :1, :1] * array).all()
            assert (ops.relu(view).numpy() == array).all()
            chosen = ops.where(ops.gt(view, row), view, row).numpy()
            assert (chosen == np.maximum(array, array[0, 0])).all()
            target = upload(np.zeros_like(whole))
            ops.assign(target.narrow(2, start, width), view)
            expected = np.zeros_like(whole)
            expected[:, :, start : start + width] = array
            assert (target.numpy() == expected).all()
    """
    simulate(*script(code), warp=warp)


@both
def test_blocks_are_copied_whole(simulate, warp) -> None:
    """Rows cut out of a weight in a block format are copied byte by byte."""
    code = """
    raw = np.random.default_rng(0).integers(0, 256, 6 * 4 * 144, np.uint8)
    weight = Tensor.from_blocks(raw, dtypes.q4_k, (6, 1024), device)
    rows = ops.copy(weight.narrow(1, 256, 512).narrow(0, 1, 4))
    assert (rows.numpy() == raw.reshape(6, 4 * 144)[1:5, 144 : 3 * 144]).all()
    """
    simulate(*script(code), warp=warp)


@both
def test_positions_outside_a_cache_write_nothing(simulate, warp) -> None:
    """A position below 0 or past the capacity leaves the cache, and memory, as they were."""
    code = """
    cache = upload(np.zeros((1, 4, 2, 8), np.float16))
    x = upload(np.ones((1, 3, 2, 8), np.float16))
    ops.kv_append(cache, x, upload(np.array([[-1, 2, 4]])))
    assert cache.numpy().sum(axis=(0, 2, 3)).tolist() == [0, 0, 16, 0]
    """
    simulate(*script(code), warp=warp)


@both
def test_the_largest_tensors_of_one_launch(simulate, warp) -> None:
    """More elements than one round of all threads covers are all reached."""
    code = """
    from propolis_rocm_kernels import _elementwise
    _elementwise.MAX_BLOCKS = 2
    for size in (1, 4095, 4096, 100_003):
        array = np.arange(size, dtype=np.int32)
        assert (ops.neg(upload(array)).numpy() == -array).all()
        assert (ops.copy(upload(array)).numpy() == array).all()
        assert (ops.exp(upload(array.astype(np.float16))).numpy()[:2] == [1, 2.71875][:size]).all()
        pairs = upload(array).unsqueeze(1).broadcast_to(size, 2)
        assert (ops.neg(pairs).numpy() == -array[:, None]).all()
    """
    simulate(*script(code), warp=warp)


@both
def test_small_numbers_on_the_way(simulate, warp) -> None:
    """A SiLU that f32 has no number for, or a coarse one, is none of a gated unit's business."""
    code = """
    gate, up = np.float32([-90, -100, 2.0**-149, 1.1]), np.float32([1e6, 1e30, 1e30, 3.3e38])
    wide = gate.astype(np.float64)
    np.testing.assert_allclose(
        ops.silu_mul(upload(gate), upload(up)).numpy(), wide / (1 + np.exp(-wide)) * up, rtol=1e-6
    )
    x = np.array([-710.0, -740.0])
    for op, expected in ((ops.sigmoid, np.exp(x)), (ops.silu, x * np.exp(x / 2) * np.exp(x / 2))):
        np.testing.assert_allclose(op(upload(x)).numpy(), expected, rtol=1e-12, atol=5e-324)
    """
    simulate(*script(code), warp=warp)
