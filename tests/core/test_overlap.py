"""What a destination may share memory with."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st

from propolis import Layout
from propolis import Tensor
from propolis import capture
from propolis import dtypes
from propolis import ops
from propolis.errors import OpError
from propolis.ops import catalogue
from propolis.opspec.check import _touches


def of(cpu, *shape, dtype=np.float32):
    """Positive numbers, in memory that the device gave."""
    tensor = cpu.empty(shape, dtypes.from_numpy(np.dtype(dtype)))
    tensor.assign((np.arange(tensor.numel) + 1).astype(dtype).reshape(shape))
    return tensor


OVERLAPS = {
    "shifted": lambda x: (x.narrow(0, 0, 4), x.narrow(0, 1, 4)),
    "broadcast": lambda x: (x.narrow(0, 0, 4), x.narrow(0, 2, 1)),
    "transposed": lambda x: (
        x.narrow(0, 0, 4).reshape(2, 2),
        x.narrow(0, 0, 4).reshape(2, 2).transpose(0, 1),
    ),
}


@pytest.mark.parametrize("views", OVERLAPS.values(), ids=OVERLAPS)
def test_partial_overlap_is_refused(cpu, views):
    """Whichever input it is, and by keyword too; nothing is written."""
    x = of(cpu, 8)
    out, part = views(x)
    other = of(cpu, *out.shape)
    for args in ((part, other), (other, part)):
        with pytest.raises(OpError, match=r"add: .* shares memory with [ab], .*; give memory of"):
            ops.add.into(out, *args)
    assert x.numpy().tolist() == [1, 2, 3, 4, 5, 6, 7, 8]


def test_ops_that_are_not_elementwise_take_no_input_as_destination(cpu):
    """Not even exactly; named by the parameter."""
    x, w = of(cpu, 2, 2), of(cpu, 2)
    with pytest.raises(OpError, match=r"matmul: .* with b, .*: this op reads inputs while it writ"):
        ops.matmul.into(x, of(cpu, 2, 2), x)
    with pytest.raises(OpError, match=r"linear: .* shares memory with bias"):
        ops.linear.into(w, of(cpu, 2), x, bias=w)


def test_pairs_are_apart(cpu):
    """From inputs, and from each other."""
    x, r, w = of(cpu, 2, 4), of(cpu, 2, 4), of(cpu, 4)
    h, y = of(cpu, 2, 4), of(cpu, 2, 4)
    with pytest.raises(OpError, match="shares memory with residual"):
        ops.add_rms_norm.into((r, y), x, r, w)
    with pytest.raises(OpError, match=r"its outputs .* share memory"):
        ops.add_rms_norm.into((h, h), x, r, w)
    ops.add_rms_norm.into((h, y), x, r, w)
    assert h.numpy().tolist() == (x.numpy() + r.numpy()).tolist()


def test_apart_in_one_storage_is_no_overlap(cpu):
    """Views of one buffer that share no element: beside each other, and in gaps."""
    x = of(cpu, 4, 4)
    rows = [x.narrow(0, i, 1).reshape(4) for i in range(4)]
    ops.add.into(rows[3], rows[0], rows[1])
    assert rows[3].numpy().tolist() == [6, 8, 10, 12]
    column = x.narrow(1, 0, 1)  # strided over the whole buffer
    hole = x.narrow(0, 1, 1).narrow(1, 1, 3).reshape(3)
    ops.mul.into(hole, hole, column.narrow(0, 0, 1).reshape(1))
    gap = x.narrow(0, 2, 1).narrow(1, 1, 2).reshape(2, 1)
    ops.neg.into(gap, column.narrow(0, 0, 2))
    assert gap.numpy().tolist() == [[-1], [-5]]


def test_arrays_of_one_memory(cpu):
    """Tensors made of views of one numpy array overlap as those do."""
    array = np.arange(6, dtype=np.float32)
    a, b, apart = (Tensor.from_numpy(array[s], cpu) for s in (slice(4), slice(1, 5), slice(4, 6)))
    with pytest.raises(OpError, match="shares memory"):
        ops.neg.into(a, b)
    ops.neg.into(apart, Tensor.from_numpy(array[:2], cpu))
    ops.neg.into(a, Tensor.from_numpy(array[:4], cpu))
    assert array.tolist() == [0, -1, -2, -3, 0, -1]


ELEMENTWISE = [
    pytest.param(name, spec, position, split, id=f"{name}-{position}{'-decomposed' * split}")
    for name, spec in sorted(catalogue().items())
    if spec.elementwise
    for position in range(len(spec._tensors))
    for split in (False, True)
    if spec.decomposition or not split
]
EXTRA = {"powf": (0.5,), "clamp": (1.5, 3.0), "affine": (2.0, 1.0), "cast": (dtypes.i32,)}


@pytest.mark.parametrize(("name", "spec", "position", "split"), ELEMENTWISE)
def test_elementwise_ops_may_write_over_an_input(cpu, name, spec, position, split):
    """Over any one of them, decomposed too; the result is that of memory of its own."""
    if split:
        cpu.table._impls.pop(name)
    inputs = [of(cpu, 2, 3) for _ in spec._tensors]
    if name == "where":
        inputs[0] = of(cpu, 2, 3, dtype=np.int32)
        inputs[0].assign(np.array([[0, 1, 0], [1, 1, 0]], np.int32))
        inputs[1:] = [ops.cast(t, dtypes.i32) if position == 0 else t for t in inputs[1:]]
    extra = EXTRA.get(name, ())
    expected = spec(*inputs, *extra)
    out = inputs[position]
    if expected.dtype is not out.dtype:  # the same bytes under another dtype
        if expected.dtype.block_bytes != out.dtype.block_bytes:
            inputs = [ops.cast(t, dtypes.u8) for t in inputs]
            expected, out = spec(*inputs, *extra), inputs[position]
        out = Tensor(out.storage, out.layout, expected.dtype, cpu)
    spec.into(out, *inputs, *extra)
    assert out.numpy().tobytes() == expected.numpy().tobytes()


def test_core_copies_for_who_cannot(fakes):
    """Whoever on the ladder does not declare it gets a copy of the input, which is counted."""

    def backwards(out, a, b, /):
        view = fakes.view
        view(out)[...] = 0
        view(out)[...] = view(a) + view(b)

    device = fakes.device(
        fakes.impl(in_place=True, plugin="can", priority=9, supports=lambda *_: "not this"),
        fakes.impl(fn=backwards, plugin="cannot"),
        fakes.copy,
        policy="error",
    )
    x, y = (Tensor.from_numpy(np.float32(v), device) for v in ([1, 2], [3, 4]))
    assert ops.add.into(x, x, y).numpy().tolist() == [4, 6]
    placement = device.table.placement
    assert placement.in_place_copies == 1
    assert "copies: 1 inputs that were the destination too" in placement.lines()
    with capture(device) as graph:
        ops.add.into(x, x, y)
    graph.replay()
    assert x.numpy().tolist() == [10, 14]


def test_ops_with_their_own_destination_read_inputs_as_they_were(fakes):
    """Also where those overlap it, on devices whose kernels do not care."""

    def careless(target, source, /):
        t, s = fakes.view(target), fakes.view(source)
        for i in range(len(t)):
            t[i] = s[i]

    device = fakes.device(fakes.impl("assign", careless), fakes.copy, policy="error")
    x = Tensor.from_numpy(np.arange(6, dtype=np.float32), device)
    ops.assign(x.narrow(0, 1, 5), x.narrow(0, 0, 5))
    assert x.numpy().tolist() == [0, 0, 1, 2, 3, 4]
    ops.assign(x.narrow(0, 0, 2), x.narrow(0, 4, 2))
    assert x.numpy().tolist() == [3, 4, 1, 2, 3, 4]
    assert device.table.placement.in_place_copies == 1


def test_blocks_overlap_by_their_bytes(cpu):
    """A destination of another dtype in the same storage as a block-format input."""
    raw = cpu.empty((4, 32), dtypes.q8_0)
    inside = Tensor(raw.storage, Layout((32,), (1,), 0), dtypes.f32, cpu)
    row = raw.narrow(0, 1, 1)
    with pytest.raises(OpError, match="shares memory with x"):
        ops.dequantize.into(inside.reshape(1, 32), row)
    ops.dequantize.into(
        inside.reshape(1, 32), raw.narrow(0, 3, 1)
    ) if raw.nbytes > 4 * 128 else None


@given(st.data())
@settings(max_examples=300, deadline=None)
def test_touching_is_what_numpy_says(data):
    """Of any view that core can make and any contiguous range: exactly."""
    from propolis.runtime import default_runtime

    device = default_runtime().cpu
    buffer = device.empty((240,), dtypes.i16)
    view = buffer.reshape(*data.draw(st.sampled_from([(240,), (15, 16), (4, 6, 10), (2, 3, 5, 8)])))
    for _ in range(data.draw(st.integers(0, 4))):
        dim = data.draw(st.integers(0, len(view.shape) - 1))
        size = view.shape[dim]
        start = data.draw(st.integers(0, size - 1))
        view = view.narrow(dim, start, data.draw(st.integers(1, size - start)))
        view = view.transpose(dim, data.draw(st.integers(0, len(view.shape) - 1)))
    start = data.draw(st.integers(0, 239))
    solid = buffer.narrow(0, start, data.draw(st.integers(1, 240 - start)))
    assert _touches(view, solid) == np.shares_memory(view.array, solid.array)


def test_windows_from_numpy_overlap_in_doubt(cpu):
    """Strides that reach elements twice have no digits: yes, where the ranges meet."""
    array = np.arange(10, dtype=np.float32)
    windows = np.lib.stride_tricks.sliding_window_view(array, 3)[:2]
    x = Tensor.from_numpy(windows, cpu)
    assert _touches(x, Tensor.from_numpy(array[1:2], cpu))
    assert not _touches(x, Tensor.from_numpy(array[8:], cpu))


def test_every_spec_says_what_it_means(cpu):
    """Elementwise specs give their input's shape for equal shapes; no other claims to be one."""
    for name, spec in catalogue().items():
        if spec.elementwise:
            assert spec.outputs == 1, name
            kinds = {n: next(iter(k)) for n, k in spec.dtypes.items()}
            first = next(iter(kinds.values()))
            tensors = [
                Tensor(None, Layout((2, 32), (32, 1)), kinds.get(n, kinds.get("a", first)), cpu)
                for n in spec._tensors
            ]
            assert spec.infer(*tensors, *EXTRA.get(name, ()))[0] == (2, 32), name


def test_captured_calls_are_checked_when_recorded(cpu):
    """Never again: a replay runs what the table bound."""
    x = of(cpu, 8)
    with capture(cpu) as graph, pytest.raises(OpError):
        ops.add.into(*itertools.repeat(x.narrow(0, 0, 4), 2), x.narrow(0, 1, 4))
    assert len(graph) == 0
