"""Convolutions on matrix instructions: which are, and against f64 ones of the same numbers."""

from __future__ import annotations

import math

import numpy as np
import pytest
from convolving import CASES
from convolving import ROWS
from convolving import judge_convolution as judge
from rounding import normal

from propolis import Tensor
from propolis import dtypes
from propolis import ops
from propolis.dispatch import DispatchTable
from propolis.released import storage_of
from propolis_rocm_kernels import ops_conv_matrix as matrix
from propolis_rocm_kernels.ops_matmul_matrix import rates
from propolis_rocm_kernels.ops_matmul_matrix import stages_for
from propolis_workers.sd.layers import Conv2d
from propolis_workers.sd.layers import prepared
from propolis_workers.sd.lora import Adapters
from propolis_workers.sd.lora import LoRA
from propolis_workers.sd.lora import Update


# What tiles alone take: several channels out, more than one tap, no groups.
TAKEN = {
    name: case
    for name, case in {**CASES, **ROWS}.items()
    if case[1][0] > matrix.FEW and "groups" not in case[2] and name not in ("1x1", "row 1x1")
}
TAKEN["whole packs"] = ((2, 72, 8, 8), (130, 72, 3, 3), {"padding": 1})
TAKEN["large kernel"] = ((1, 9, 12, 11), (20, 9, 7, 6), {"padding": 3})
TAKEN["row of whole packs"] = ((3, 16, 40), (24, 16, 5), {"padding": 2})
ALL = pytest.mark.parametrize("case", TAKEN)


@pytest.fixture(autouse=True)
def instructions(request, rocm):
    """Skips what an AMD GPU, never the simulator, has no matrix instructions for."""
    asked = getattr(request.node, "callspec", None)
    dtype = asked.params.get("dtype", dtypes.f16) if asked else dtypes.f16
    arch = rocm.properties.arch
    if arch.startswith("gfx") and not matrix.has_instructions(arch, dtype):
        pytest.skip(f"{arch} has no matrix instructions for {dtype}")


@pytest.fixture
def taken(monkeypatch):
    """The names of the kernels that were launched."""
    names = []
    launch = matrix.launch

    def spy(kernel, *rest, **options):
        names.append(kernel.name.removeprefix("conv_matrix_"))
        launch(kernel, *rest, **options)

    monkeypatch.setattr(matrix, "launch", spy)
    return names


@pytest.fixture
def split(monkeypatch):
    """Has products done in the tiles and parts that a test asks for."""

    def said(rocm, tile, parts):
        most = rocm.hardware.shared_bytes

        def split_for(outs, windows, depth, units, most_of_it, *, more):
            whole = math.ceil(depth / tile[2])
            steps = math.ceil(whole / min(parts, whole))
            return matrix.Split(tile, stages_for(tile, most), math.ceil(whole / steps), steps)

        matrix._plans.cache_clear()
        monkeypatch.setattr(matrix, "split_for", split_for)

    yield said
    matrix._plans.cache_clear()


def given(dtype, case):
    """Image, weight and bias of a case."""
    x, w, attributes = case
    return (normal(dtype, *x), normal(dtype, *w, seed=1), normal(dtype, w[0], seed=2)), attributes


def kind(case):
    """The op that a case is of."""
    return "conv2d" if len(case[0]) == 4 else "conv1d"


@ALL
@pytest.mark.parametrize("dtype", matrix.MATRIX, ids=str)
def test_each_kind(rocm, taken, dtype, case) -> None:
    """Images and rows of any size, with a bias and without, are what f64 gives."""
    tensors, attributes = given(dtype, TAKEN[case])
    judge(rocm, kind(TAKEN[case]), tensors, dtype, **attributes)
    judge(rocm, kind(TAKEN[case]), tensors[:2], dtype, **attributes)
    products = [name for name in taken if name != "images"]
    assert 2 == len(products) == taken.count("images")
    assert all(name.endswith((f"x64_{dtype.name}", f"x32_{dtype.name}")) for name in products)


@ALL
@pytest.mark.parametrize("parts", [1, 3])
def test_every_tile(rocm, taken, split, parts, case) -> None:
    """All tiles that the device has, and parts of the depth that are summed after, are right."""
    for tile in rates(rocm.hardware.shared_bytes, matrix._MORE):
        split(rocm, tile, parts)
        tensors, attributes = given(dtypes.f16, TAKEN[case])
        judge(rocm, kind(TAKEN[case]), tensors, dtypes.f16, **attributes)
        assert taken[-1] == f"{'x'.join(map(str, tile))}_f16"


@ALL
def test_prepared_weights(rocm, case) -> None:
    """A prepared weight gives the same bits, has no memory itself, and comes back unchanged."""
    (x, w, bias), attributes = given(dtypes.f16, TAKEN[case])
    op = getattr(ops, kind(TAKEN[case]))
    x, weight, bias = (Tensor.from_numpy(t, rocm) for t in (x, w, bias))
    expected = op(x, weight, bias, **attributes).numpy()
    ready = DispatchTable.of(rocm).prepare(op, op.key(dtypes.f16), weight)
    assert (storage_of(ready) is None) == (math.prod(w.shape[2:]) > 1)
    assert (op(x, ready, bias, **attributes).numpy() == expected).all()
    assert (storage_of(ready) is None) == (math.prod(w.shape[2:]) > 1)
    assert (ready.numpy() == w).all()


@pytest.mark.parametrize("shape", [(3, 40, 3, 3), (40, 40, 1, 1), (40, 1, 3, 3), (40, 0, 3, 3)])
def test_weights_of_other_kernels_stay(rocm, shape) -> None:
    """What these kernels decline, or need not turn, keeps its memory, and takes none more."""
    w = Tensor.from_numpy(normal(dtypes.f16, *shape), rocm)
    prepared = matrix.prepare(w)
    assert (prepared.nbytes, prepared.restore) == (0, None)


def test_architectures_without_them(rocm, monkeypatch) -> None:
    """There, weights stay as they are, and other kernels give the same."""
    monkeypatch.setattr(matrix, "has_instructions", lambda *_: False)
    monkeypatch.setattr(matrix, "launch", None)  # which would raise
    w = Tensor.from_numpy(normal(dtypes.f16, 20, 20, 3, 3), rocm)
    assert matrix.prepare(w).restore is None
    tensors, attributes = given(dtypes.f16, CASES["3x3"])
    judge(rocm, "conv2d", tensors, dtypes.f16, **attributes)


DECLINED = {
    "groups": ((1, 8, 5, 5), (40, 4, 3, 3), {"groups": 2}, "groups"),
    "few": ((1, 8, 5, 5), (16, 8, 3, 3), {}, "16 output channels"),
    "1x1": ((1, 8, 5, 5), (40, 8, 1, 1), {}, "a plain product"),
    "nothing": ((1, 0, 5, 5), (40, 0, 3, 3), {}, "sums of nothing"),
    "padding": ((1, 1, 1, 1), (40, 1, 3, 3), {"padding": 1000}, "places with their padding"),
    "elements": ((1, 1 << 17, 1, 1), (40, 1 << 17, 20, 21), {"padding": 20}, "counted to"),
}


@pytest.mark.parametrize("case", DECLINED)
def test_what_is_declined_is_said(rocm, case) -> None:
    """Each reason why another kernel is asked."""
    x, w, attributes, said = DECLINED[case]
    x, w = (
        rocm.empty((1,) * 4, dtypes.f16).broadcast_to(*s) if all(s) else rocm.empty(s, dtypes.f16)
        for s in (x, w)
    )
    assert said in matrix._supports(x, w, **attributes)


@pytest.mark.parametrize("view", ["channels last", "slices", "repeated"])
def test_views(rocm, view) -> None:
    """Images, weights and biases of any strides."""
    x, w, bias = (
        Tensor.from_numpy(normal(dtypes.f16, *shape, seed=seed), rocm)
        for seed, shape in enumerate([(2, 10, 9, 16), (40, 10, 4, 4), (40, 2)])
    )
    turned = {
        "channels last": lambda t: t.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2),
        "slices": lambda t: t.narrow(3, 1, t.shape[3] - 1).narrow(1, 1, 9),
        "repeated": lambda t: t.narrow(3, 0, 1).broadcast_to(*t.shape),
    }[view]
    own = bias.narrow(1, 1, 1).squeeze(1)
    judge(rocm, "conv2d", (turned(x), turned(w), own), dtypes.f16, padding=1)


def test_infinities_stay_where_they_belong(rocm) -> None:
    """Only windows that see one are infinite; where padding meets an infinite weight NaN is."""
    x, w = normal(dtypes.f16, 2, 5, 7, 9), normal(dtypes.f16, 20, 5, 3, 3, seed=1)
    x[0, 4, 3, 4] = np.inf
    y = ops.conv2d(*(Tensor.from_numpy(t, rocm) for t in (x, w)), padding=1).numpy()
    assert np.isinf(y[0, :, 2:5, 3:6]).all()
    y[0, :, 2:5, 3:6] = 0
    assert np.isfinite(y).all()
    x[0, 4, 3, 4] = 1
    w[1, 1, 0, 0] = np.inf
    y = ops.conv2d(*(Tensor.from_numpy(t, rocm) for t in (x, w)), padding=1).numpy()
    assert np.isnan(y[:, 1, 0]).all()
    assert np.isnan(y[:, 1, :, 0]).all()
    assert np.isinf(y[:, 1, 1:, 1:]).all()
    assert np.isfinite(np.delete(y, 1, 1)).all()


PIECES = {
    "images": (((5, 9, 6, 7), (20, 9, 3, 3), {"padding": 1}), 2 * 8 * 9 * 16 * 2, 3),
    "rows": (((2, 9, 13, 7), (20, 9, 3, 3), {"padding": 1}), 6 * 9 * 16 * 2, 2 * 4),
    "rows with strides": (
        ((1, 9, 40, 6), (20, 9, 5, 3), {"padding": (4, 2), "stride": (3, 1), "dilation": (2, 1)}),
        *(16 * 10 * 16 * 2, 5),
    ),
    "rows of padding": (((1, 9, 2, 6), (20, 9, 3, 3), {"padding": 5}), 4 * 16 * 16 * 2, 5),
    "single rows": (((1, 9, 5, 7), (20, 9, 3, 3), {}), 1, 3),
}


@pytest.mark.parametrize("case", PIECES)
def test_what_has_no_room_together(rocm, taken, monkeypatch, case) -> None:
    """Then some images, or rows of one, are done at a time, with the same bits."""
    case, room, count = PIECES[case]
    tensors, attributes = given(dtypes.f16, case)
    tensors = [Tensor.from_numpy(t, rocm) for t in tensors]
    expected = ops.conv2d(*tensors, **attributes).numpy()
    matrix._plans.cache_clear()
    monkeypatch.setattr(matrix, "_ROOM", room)
    found = ops.conv2d(*tensors, **attributes).numpy()
    matrix._plans.cache_clear()
    assert (found == expected).all()
    assert 1 + count == taken.count("images")


def test_large_images_need_little_memory(rocm) -> None:
    """An image of any size is done in pieces of some MiB."""
    x = rocm.empty((1,) * 4, dtypes.f16).broadcast_to(1, 512, 1024, 1024)
    w = rocm.empty((1,) * 4, dtypes.f16).broadcast_to(512, 512, 3, 3)
    assert matrix._supports(x, w, padding=1) is None
    assert matrix._workspace(x, w, padding=1) <= 128 << 20
    many = rocm.empty((1,) * 4, dtypes.f16).broadcast_to(64, 128, 1024, 1024)
    assert matrix._supports(many, w.narrow(1, 0, 128), padding=1) is None


def test_what_a_call_allocates_is_said(rocm, monkeypatch, split) -> None:
    """As much as is borrowed at most, prepared or not; whatever lies there lies at whole packs."""
    asked = []
    lent = matrix.Turned.lent
    monkeypatch.setattr(matrix.Turned, "lent", lambda s, d, n: asked.append(n) or lent(s, d, n))
    case = (1, 264, 5, 5), (19, 264, 3, 3), {}  # sums of parts of 19 * 9 numbers
    split(rocm, (64, 64, 64), 3)
    tensors, attributes = given(dtypes.f16, case)
    judge(rocm, "conv2d", tensors[:2], dtypes.f16, **attributes)
    x, w = (Tensor.from_numpy(t, rocm) for t in tensors[:2])
    ready = DispatchTable.of(rocm).prepare(ops.conv2d, ops.conv2d.key(dtypes.f16), w)
    for weight in (w, ready):
        ops.conv2d(x, weight, **attributes)
        assert asked[-1] <= matrix._workspace(x, weight, **attributes) <= 1 << 18
    assert asked[-1] < asked[-2]


def test_few_windows_are_shared_out() -> None:
    """Where tiles are fewer than compute units, parts of the depth are; where not, none."""
    assert 1 < matrix.split_for(1280, 128, 23040, 60, 1 << 16).parts
    assert 1 == matrix.split_for(320, 1 << 16, 2880, 60, 1 << 16).parts
    assert 1 == matrix.split_for(320, 64, 8, 60, 1 << 16).parts


def test_a_lora_leaves_nothing_behind(rocm) -> None:
    """While one is on a layer its own weight is there once, and no other form; then as before."""
    (_, w, _), _ = given(dtypes.f16, TAKEN["whole packs"])
    layer = Conv2d(prepared(Tensor.from_numpy(w, rocm)), padding=1)
    down, up = normal(dtypes.f32, 2, *w.shape[1:]), normal(dtypes.f32, w.shape[0], 2, 1, 1)
    adapters = Adapters({"unet.layer": layer})
    name = next(iter(adapters._aliases))
    lora = LoRA("one.safetensors", "", (Update(name, down, up, 0.5),))
    adapters.apply(lora)
    own = adapters._own["unet.layer"]
    assert (storage_of(own) is None, dict(own.prepared)) == (False, {})
    assert storage_of(layer.weight) is None
    adapters.remove(lora)
    assert storage_of(layer.weight) is None
    assert (layer.weight.numpy() == w).all()
