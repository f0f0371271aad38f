from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st

from propolis.errors import ShapeError
from propolis.layout import Layout
from propolis.layout import normalize_dim
from propolis.layout import row_major


shapes = st.lists(st.integers(0, 4), max_size=4).map(tuple)


def elements(array: np.ndarray, layout: Layout) -> np.ndarray:
    """The elements that a layout shows of a flat array."""
    strides = tuple(s * array.itemsize for s in layout.strides)
    return np.lib.stride_tricks.as_strided(array[layout.offset :], layout.shape, strides)


@st.composite
def views(draw):
    """A layout made by up to four random views, and numpy's array after the same."""
    shape = draw(st.lists(st.integers(1, 4), min_size=1, max_size=4).map(tuple))
    flat = np.arange(np.prod(shape, dtype=int))
    layout, array = Layout.contiguous(shape), flat.reshape(shape)
    for step in draw(st.lists(st.sampled_from(["permute", "narrow", "new", "drop", "repeat"]))):
        rank = len(layout.shape)
        if step == "permute":
            dims = tuple(draw(st.permutations(range(rank))))
            layout, array = layout.permute(dims), array.transpose(dims)
        elif step == "narrow" and rank:
            dim = draw(st.integers(-rank, rank - 1))
            size = layout.shape[dim]
            start = draw(st.integers(0, size))
            length = draw(st.integers(0, size - start))
            layout = layout.narrow(dim, start, length)
            array = np.moveaxis(np.moveaxis(array, dim, 0)[start : start + length], 0, dim)
        elif step == "new" and rank < 5:
            dim = draw(st.integers(-rank - 1, rank))
            layout, array = layout.unsqueeze(dim), np.expand_dims(array, dim)
        elif step == "drop" and 1 in layout.shape:
            dim = layout.shape.index(1)
            layout, array = layout.squeeze(dim), array.squeeze(dim)
        elif step == "repeat" and rank < 5:
            want = (draw(st.integers(0, 3)), *(n if n != 1 else 2 for n in layout.shape))
            layout, array = layout.broadcast_to(want), np.broadcast_to(array, want)
    return flat, layout, array


@given(shapes)
def test_contiguous_is_numpys_row_major(shape):
    """A fresh layout has numpy's strides, starts at 0 and reaches its last element."""
    layout = Layout.contiguous(shape)
    array = np.empty(shape, np.uint8)
    if array.size:
        assert layout.strides == row_major(shape)
        assert all(s == t for n, s, t in zip(shape, layout.strides, array.strides) if n > 1)  # noqa: B905
    assert layout.is_contiguous
    assert (layout.offset, layout.numel, layout.extent) == (0, array.size, array.size)


@given(views())
@settings(max_examples=300)
def test_views_show_what_numpy_shows(case):
    """Any chain of views shows the elements that numpy's views show, without a copy."""
    flat, layout, array = case
    assert layout.shape == array.shape
    assert layout.numel == array.size
    if layout.numel:
        np.testing.assert_array_equal(elements(flat, layout), array)
        assert layout.is_contiguous == array.flags.c_contiguous
        assert layout.extent <= len(flat)
        assert elements(flat, layout).max() < layout.extent


@given(views(), st.data())
def test_reshape_of_views(case, data):
    """A contiguous view takes any factorisation of its size; a strided one refuses."""
    flat, layout, array = case
    shape = data.draw(st.permutations(layout.shape)).__add__([1]) if layout.shape else [1]
    if not layout.is_contiguous:
        with pytest.raises(ShapeError, match=r"\.contiguous\(\)"):
            layout.reshape(tuple(shape))
        return
    reshaped = layout.reshape(tuple(shape))
    assert reshaped.shape == tuple(shape)
    if layout.numel:
        np.testing.assert_array_equal(elements(flat, reshaped), array.reshape(shape))


@given(views(), st.data())
def test_unflatten_splits_any_strides(case, data):
    """Splitting a dimension needs no order in memory."""
    flat, layout, array = case
    if not layout.shape or not layout.numel:
        return
    dim = data.draw(st.integers(-len(layout.shape), len(layout.shape) - 1))
    size = layout.shape[dim]
    inner = data.draw(st.sampled_from([n for n in range(1, size + 1) if size % n == 0]))
    split = layout.unflatten(dim, inner)
    front = dim % len(layout.shape)
    shape = (*array.shape[:front], size // inner, inner, *array.shape[front + 1 :])
    np.testing.assert_array_equal(elements(flat, split), array.reshape(shape))


def test_reshape_solves_one_unknown():
    """A size of -1 is what is left, also where there is nothing."""
    assert Layout.contiguous((2, 6)).reshape((-1, 3)).shape == (4, 3)
    assert Layout.contiguous((0, 6)).reshape((-1, 3)).shape == (0, 3)
    assert Layout.contiguous(()).reshape((-1,)).shape == (1,)


@pytest.mark.parametrize("shape", [(5,), (-1, -1), (-1, 5), (-2, -3), (-1, 0), ((2, 3),)])
def test_reshape_to_what_does_not_fit(shape):
    """The error names both shapes and the number of elements."""
    with pytest.raises(ShapeError, match=r"reshape: shape \(2, 3\) \(6 elements\) cannot become"):
        Layout.contiguous((2, 3)).reshape(shape)


@pytest.mark.parametrize("dims", [(0,), (0, 0), (0, 2), (0, -3), (0, 1, 2)])
def test_permute_needs_each_dimension_once(dims):
    """Missing, double and unknown dimensions are refused by name."""
    with pytest.raises(ShapeError, match=r"permute: .*shape \(2, 3\) once"):
        Layout.contiguous((2, 3)).permute(dims)


@pytest.mark.parametrize(("start", "length"), [(-1, 1), (0, 4), (3, 1), (1, -1), (4, 0)])
def test_narrow_stays_inside(start, length):
    """A slice that leaves its dimension is refused; numpy would clip it silently."""
    with pytest.raises(ShapeError, match=r"dimension 1 of size 3 \(shape \(2, 3\)\)"):
        Layout.contiguous((2, 3)).narrow(-1, start, length)


@pytest.mark.parametrize("shape", [(3,), (2, 4), (3, 3), (-1, 3), (2, -1, 3), (4, 2)])
def test_broadcast_to_what_does_not_fit(shape):
    """Only sizes of 1 repeat, and no size is negative."""
    with pytest.raises(ShapeError, match=r"shape \(2, 3\) does not broadcast to"):
        Layout.contiguous((2, 3)).broadcast_to(shape)


def test_broadcast_of_one_to_a_negative_size():
    """-1 does not mean "as it is": a layout of -1 elements must not come to be."""
    with pytest.raises(ShapeError, match=r"\(1, 3\) does not broadcast to \(-1, 3\)"):
        Layout.contiguous((1, 3)).broadcast_to((-1, 3))


def test_squeeze_of_a_real_dimension():
    """Only a dimension of size 1 can go."""
    with pytest.raises(ShapeError, match=r"dimension 1 of \(1, 3\) has size 3, not 1"):
        Layout.contiguous((1, 3)).squeeze(-1)


@pytest.mark.parametrize("inner", [0, -2, 4])
def test_unflatten_needs_a_divisor(inner):
    """The error names the dimension and the number."""
    with pytest.raises(ShapeError, match=rf"shape \(2, 6\) is no multiple of {inner}"):
        Layout.contiguous((2, 6)).unflatten(1, inner)


@pytest.mark.parametrize(("dim", "rank"), [(2, 2), (-3, 2), (0, 0), (-1, 0)])
def test_dimensions_that_do_not_exist(dim, rank):
    """One wording for all: op, dimension, rank."""
    with pytest.raises(ShapeError, match=f"op: dimension {dim} does not exist .* rank {rank}"):
        normalize_dim("op", dim, rank)


def test_a_dimension_is_a_whole_number():
    """Whole numbers of numpy count as dimensions, floats do not."""
    assert normalize_dim("op", np.int64(-1), 3) == 2
    with pytest.raises(ShapeError, match=r"op: dimension 1\.0 is no whole number"):
        normalize_dim("op", 1.0, 3)


@pytest.mark.parametrize("shape", [(5.0, 13), ("2", 3), (None,)])
def test_sizes_are_whole_numbers(shape):
    """A float size is refused, and must not stay behind in the cache for its equal."""
    with pytest.raises(ShapeError, match="no whole number"):
        Layout.contiguous(shape)


def test_a_refused_float_size_leaves_no_trace():
    """(2.0, 7) equals (2, 7): neither may answer for the other with floats inside."""
    for _ in range(2):
        with pytest.raises(ShapeError):
            Layout.contiguous((2.0, 104_729))
        assert all(type(n) is int for n in Layout.contiguous((2, 104_729)).shape)
    assert all(type(n) is int for n in Layout.contiguous((np.int64(2), np.int64(9))).shape)


def test_negative_sizes():
    """No shape has a negative size."""
    with pytest.raises(ShapeError, match=r"shape \(2, -1\) has a negative size"):
        Layout.contiguous((2, -1))


def test_very_large_shapes_are_exact():
    """Sizes are Python integers: they do not overflow."""
    layout = Layout.contiguous((2**40, 2**40))
    assert layout.numel == 2**80
    assert layout.strides == (2**40, 1)


def test_equality_and_hash():
    """Layouts are values."""
    assert Layout((2, 3), (3, 1)) == Layout.contiguous((2, 3))
    assert hash(Layout((2, 3), (3, 1))) == hash(Layout.contiguous((2, 3)))
    assert Layout((2, 3), (3, 1), 1) != Layout.contiguous((2, 3))
    assert Layout((2, 3), (3, 1)) != "Layout"
    assert repr(Layout((2,), (1,), 4)) == "Layout(shape=(2,), strides=(1,), offset=4)"
