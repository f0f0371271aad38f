from __future__ import annotations

import inspect

import numpy as np
import pytest

from propolis import Tensor
from propolis import dtypes
from propolis import ops
from propolis.errors import DTypeError
from propolis.errors import OpError
from propolis.errors import ShapeError
from propolis.opspec.docstrings import completed
from propolis.opspec.docstrings import parameter_docs
from propolis.opspec.infer import broadcast
from propolis.opspec.spec import DEFAULT_TOLERANCE


def tensor(cpu, *shape, dtype=dtypes.f32):
    """Zeros of that shape."""
    result = cpu.empty(shape, dtype)
    result.array[...] = np.zeros((), result.array.dtype)
    return result


@pytest.fixture
def t(cpu):
    """Make zeros on the CPU."""
    return lambda *shape, dtype=dtypes.f32: tensor(cpu, *shape, dtype=dtype)


# -- the catalogue -------------------------------------------------------------


def test_the_catalogue_is_what_the_package_exports():
    """Every op of ``propolis.ops`` is in the catalogue under its name, and no other."""
    exported = {n: getattr(ops, n) for n in ops.__all__ if isinstance(getattr(ops, n), ops.OpSpec)}
    assert exported == dict(ops.catalogue())
    assert all(name == spec.name for name, spec in exported.items())


@pytest.mark.parametrize("spec", ops.catalogue().values(), ids=lambda s: s.name)
def test_every_op_is_documented(spec):
    """Summary, arguments, result or destination; and every dispatch parameter is a tensor."""
    assert spec.summary
    assert "Args:" in spec.__doc__
    assert spec.mutates or "Returns:" in spec.__doc__
    texts = parameter_docs(spec.__doc__)
    assert list(texts) == list(spec.signature.parameters)
    assert all(texts.values())
    assert list(spec.dtypes) == [p for p in spec.signature.parameters if p in spec.dtypes]
    assert all(kinds <= frozenset(dtypes.ALL) for kinds in spec.dtypes.values())
    assert repr(spec) == f"<op {spec.name}{spec.signature}>"
    assert spec.family == inspect.getmodule(spec.infer).__name__.rpartition(".")[2]


def test_a_family_shares_texts():
    """A parameter that a docstring leaves out gets the family's text; its own goes first."""
    shared = {"x": "any\n        shape.", "dim": "the dimension.", "y": "never asked for."}
    doc = "Sum.\n\nArgs:\n    x: rank 1.\n\nReturns:\n    It."
    expected = "Sum.\n\nArgs:\n    x: rank 1.\n    dim: the dimension.\n\nReturns:\n    It."
    assert completed(doc, ["x", "dim"], shared) == expected
    bare = "Sum.\n\nReturns:\n    It."
    assert completed(bare, ["x"], shared) == (
        "Sum.\n\nArgs:\n    x: any\n        shape.\n\nReturns:\n    It."
    )
    assert completed(bare, ["x"], {}) == bare


def test_tolerances_grow_as_dtypes_shrink():
    """A wider dtype is never held to less than a narrower one."""
    order = (dtypes.f64, dtypes.f32, dtypes.f16, dtypes.bf16, dtypes.f8e4m3, dtypes.f8e5m2)
    rtols = [DEFAULT_TOLERANCE[d].rtol for d in order]
    assert rtols == sorted(rtols)
    assert frozenset(order) == dtypes.FLOATS


# -- calls ---------------------------------------------------------------------


def test_a_call_allocates_and_runs(cpu):
    """The result is new, contiguous, on the arguments' device."""
    a = Tensor.from_numpy(np.float32([[1, 2], [3, 4]]), cpu)
    out = ops.add(a.transpose(0, 1), a)
    assert out.numpy().tolist() == [[2, 5], [5, 8]]
    assert out.is_contiguous
    assert out.device is cpu


def test_into_writes_where_told(cpu):
    """The destination is given back, and holds the result."""
    a = Tensor.from_numpy(np.float32([1, 2]), cpu)
    out = cpu.empty((2,), dtypes.f32)
    assert ops.mul.into(out, a, a) is out
    assert out.numpy().tolist() == [1, 4]


def test_an_op_that_mutates_gives_its_first_argument(t):
    """Nothing is allocated; the destination is the caller's."""
    cache = t(1, 4, 1, 2)
    x = Tensor.from_numpy(np.ones((1, 1, 1, 2), np.float32), cache.device)
    positions = Tensor.from_numpy(np.array([[2]], np.int32), cache.device)
    assert ops.kv_append(cache, x, positions) is cache
    assert cache.numpy()[0, :, 0, 0].tolist() == [0, 0, 1, 0]


@pytest.mark.parametrize(
    ("out", "message"),
    [
        (lambda _: None, "out is a NoneType, not a Tensor"),
        (lambda _: np.zeros(2), "out is a ndarray, not a Tensor"),
        (lambda t: t(3), r"result is f32 of shape \(2,\), out is <Tensor 3 f32 on cpu>"),
        (lambda t: t(2, dtype=dtypes.f16), r"result is f32 of .*, out is <Tensor 2 f16"),
        (lambda t: t(2, 2).narrow(1, 0, 1).squeeze(1), r"out has strides \(2,\).*contiguous"),
    ],
)
def test_into_what_does_not_fit(t, out, message):
    """The error says what the result is and what the destination is."""
    with pytest.raises(OpError, match=f"add: .*{message}"):
        ops.add.into(out(t), t(2), t(2))


def test_into_another_device(t, fakes):
    """The destination is where the arguments are; nothing is written elsewhere."""
    device = fakes.device(fakes.impl())
    with pytest.raises(OpError, match="add: out is on fake:0, the arguments on cpu"):
        ops.add.into(device.empty((2,), dtypes.f32), t(2), t(2))


def test_into_of_an_op_with_its_own_destination(t):
    """kv_append takes no out."""
    positions = t(1, 1, dtype=dtypes.i32)
    with pytest.raises(OpError, match="kv_append: writes into its first argument"):
        ops.kv_append.into(t(1), t(1, 4, 1, 2), t(1, 1, 1, 2), positions)


# -- misuse --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda _: ops.add(), r"^add\(.*: missing 2 required positional"),
        (lambda x: ops.add(*[x]), "add.*missing 1 required positional"),
        (lambda x: ops.add(x, x, x), "add.*takes 2 positional arguments but 3"),
        (lambda x: ops.add(a=x, b=x), "add.*positional-only arguments passed as keyword"),
        (lambda x: ops.add(x, b=x), "add.*positional-only"),
        (lambda x: ops.add(x, x, alpha=2), "add.*unexpected keyword argument 'alpha'"),
        (lambda x: ops.softmax(x, axis=0), "softmax.*unexpected keyword argument 'axis'"),
        (lambda x: ops.add(x, 1), r"add: b is a int, not a Tensor: Tensor\.from_numpy"),
        (lambda x: ops.add(np.zeros(2), x), "add: a is a ndarray, not a Tensor"),
        (lambda _: ops.add(None, None), "add: a is a NoneType"),
        (lambda x: ops.softmax(x, dim="last"), "softmax: dimension 'last' is no whole number"),
        (lambda x: ops.softmax(x, 1.0), r"softmax: dimension 1\.0 is no whole number"),
        (lambda x: ops.sum(x, 1.0), r"sum: dimension 1\.0 is no whole number"),
        (lambda x: ops.argmax(x, 7), "argmax: dimension 7 does not exist .* rank 1"),
        (lambda x: ops.cast(x, "f16"), r"cast: to 'f16'; supported: plain dtypes, as dtypes\.f32"),
        (lambda x: ops.cast(x, [1]), "cast.*unhashable"),
        (lambda x: ops.cast(x, dtypes.q4_0), "cast: to q4_0; supported: plain"),
        (lambda x: ops.rms_norm(x, None), "rms_norm: weight is a NoneType"),
        (lambda x: ops.linear(x, x.reshape(1, 4), 3), "linear: bias is a int, not a Tensor"),
        (lambda x: ops.linear(x, x.reshape(1, 4), bias=np.zeros(1)), "linear: bias is a ndarray"),
    ],
)
def test_misuse_is_an_op_error(t, call, message):
    """Whatever is wrong with the arguments, the error is ours and names the op."""
    with pytest.raises(OpError, match=message):
        call(t(4))


def test_an_error_of_inference_itself_is_not_hidden(t):
    """A bug in an inference function is no misuse by the caller."""

    def broken(x: Tensor, /):
        return x.no_such_attribute

    spec = ops.Op(broken, allowed={"x": dtypes.PLAIN}, outputs=1, tolerance={})
    with pytest.raises(AttributeError, match="no_such_attribute"):
        spec(t(2))


# -- devices -------------------------------------------------------------------


def test_mixed_devices(t, fakes):
    """The error says which tensor is where."""
    device = fakes.device(fakes.impl())
    here, there = t(2), t(2).to(device)
    with pytest.raises(OpError, match=r"add: .* \(a on cpu, b on fake:0\): move them with \.to"):
        ops.add(here, there)
    with pytest.raises(OpError, match=r"\(a on fake:0, b on cpu\)"):
        ops.add(there, here)
    with pytest.raises(OpError, match="several runtimes"):
        ops.add(there, t(2).to(fakes.device()))


def test_optional_tensors_on_another_device(t, fakes):
    """A bias or a length elsewhere is refused too, by position and by keyword."""
    device = fakes.device()
    x, w, bias = t(3, 4), t(2, 4), t(2).to(device)
    for call in (lambda: ops.linear(x, w, bias), lambda: ops.linear(x, w, bias=bias)):
        with pytest.raises(OpError, match=r"\(x on cpu, w on cpu, bias on fake:0\)"):
            call()
    q, length = t(1, 2, 2, 4), t(1, dtype=dtypes.i32).to(device)
    with pytest.raises(OpError, match="kv_len on fake:0"):
        ops.attention(q, q, q, kv_len=length, causal=True)


# -- keys ----------------------------------------------------------------------


def test_keys():
    """One dispatch parameter gives a dtype, several a tuple; one dtype stands for all."""
    assert ops.add.key(dtypes.f32) is dtypes.f32
    assert ops.qmatmul.key(dtypes.f32, dtypes.q4_k) == (dtypes.f32, dtypes.q4_k)
    assert ops.kv_append.key(dtypes.i32) == (dtypes.i32, dtypes.i32)


def test_keys_the_op_does_not_allow(t):
    """The error names the parameter, the dtype, those supported and the way out."""
    with pytest.raises(DTypeError, match=r"softmax: x is i32; supported: f64.*; ops\.cast"):
        ops.softmax.key(dtypes.i32)
    with pytest.raises(DTypeError, match="softmax: x is i32"):
        ops.softmax(t(2, dtype=dtypes.i32))
    with pytest.raises(DTypeError, match=r"qmatmul: dispatches on x, w, got dtypes \(f32, f32, f"):
        ops.qmatmul.key(dtypes.f32, dtypes.f32, dtypes.f32)


# -- inference -----------------------------------------------------------------


@pytest.mark.parametrize("a", [(), (1,), (3,), (2, 1), (0, 1), (2, 3)])
@pytest.mark.parametrize("b", [(), (1,), (3,), (2, 3), (4, 1, 1), (0, 3)])
def test_broadcast_is_numpys(a, b):
    """Shapes broadcast, or do not, as numpy's."""
    try:
        expected = np.broadcast_shapes(a, b)
    except ValueError:
        with pytest.raises(ShapeError, match=r"op: shapes .* do not broadcast"):
            broadcast("op", a, b)
    else:
        assert expected == broadcast("op", a, b)


f32, f16, i32, i64, q4_0 = dtypes.f32, dtypes.f16, dtypes.i32, dtypes.i64, dtypes.q4_0
q8_0 = dtypes.q8_0

GOOD = [
    ("add", [(2, 1), (3,)], {}, ((2, 3), f32)),
    ("argmax", [(2, 3)], {"dim": 0}, ((3,), i64)),
    ("argmax", [(3,)], {}, ((), i64)),
    ("attention", [(1, 2, 4, 8), (1, 5, 2, 8), (1, 5, 2, 6)], {}, ((1, 2, 4, 6), f32)),
    ("cast", [(2,), f16], {}, ((2,), f16)),
    ("copy", [(2, 32, q4_0)], {}, ((2, 32), q4_0)),
    ("dequantize", [(2, 32, q4_0)], {"dtype": f16}, ((2, 32), f16)),
    ("embedding", [(5, i32), (9, 4)], {}, ((5, 4), f32)),
    ("embedding", [(i64,), (9, 32, q4_0)], {}, ((32,), f32)),
    ("embedding", [(5, i32), (9, 32, q4_0)], {"dtype": f16}, ((5, 32), f16)),
    ("embedding", [(5, i32), (9, 4, i32)], {}, ((5, 4), i32)),
    ("kv_append", [(2, 9, 3, 4), (2, 5, 3, 4), (2, 5, i32)], {}, None),
    ("linear", [(2, 3, 4), (5, 4), (5,)], {}, ((2, 3, 5), f32)),
    ("linear", [(4,), (5, 4)], {}, ((5,), f32)),
    ("matmul", [(7, 1, 2, 3), (4, 3, 5)], {}, ((7, 4, 2, 5), f32)),
    ("kv_append", [(2, 9, 3, 32, q4_0), (2, 5, 3, 32, q4_0), (2, 5, i32)], {}, None),
    (
        "qattention",
        [(1, 2, 4, 64), (1, 5, 2, 64, q8_0), (1, 5, 2, 32, q8_0)],
        {},
        ((1, 2, 4, 32), f32),
    ),
    ("qattention", [(1, 2, 4, 7), (1, 5, 2, 7, f16), (1, 5, 2, 3, f16)], {}, ((1, 2, 4, 3), f32)),
    ("qmatmul", [(2, 32), (5, 32, q4_0)], {}, ((2, 5), f32)),
    ("rms_norm", [(2, 3), (3,)], {}, ((2, 3), f32)),
    ("rope", [(1, 2, 3, 8), (1, 2, i32), (9, 4), (9, 4)], {}, ((1, 2, 3, 8), f32)),
    (
        "rope_kv_append",
        [(1, 9, 4, 8, f16), (1, 2, 4, 8), (1, 2, i32), (1, 2, i32), (9, 4), (9, 4)],
        {},
        None,
    ),
    ("silu_mul", [(2, 3), (2, 3)], {}, ((2, 3), f32)),
    ("softmax", [(2, 3)], {"dim": -2}, ((2, 3), f32)),
]

BAD = [
    ("add", [(2,), (3,)], {}, ShapeError, r"shapes \(2,\) and \(3,\) do not broadcast"),
    ("mul", [(2,), (2, f16)], {}, DTypeError, "a is f32, b is f16; .* same dtype; ops.cast"),
    ("argmax", [()], {}, ShapeError, "dimension -1 does not exist"),
    ("argmax", [(2, 0)], {}, ShapeError, r"dimension 1 must not be empty; got x \(2, 0\)"),
    ("attention", [(1, 2, 4, 8)] * 2 + [(1, 2, 4)], {}, ShapeError, "heads a multiple"),
    ("attention", [(1, 2, 4, 8)] + [(1, 5, 3, 8)] * 2, {}, ShapeError, "heads a multiple"),
    ("attention", [(1, 2, 4, 8)] + [(1, 5, 0, 8)] * 2, {}, ShapeError, "heads a multiple"),
    ("attention", [(1, 2, 4, 8)] * 3 + [(2, i32)], {}, ShapeError, r"kv_len is \(1,\)"),
    ("attention", [(1, 2, 4, 8)] * 3 + [(1, i64)], {}, DTypeError, "kv_len is i64; .* i32"),
    ("attention", [(1, 2, 4, 8)] * 2 + [(1, 2, 4, 8, f16)], {}, DTypeError, "v is f16"),
    ("dequantize", [(2, 32, q4_0)], {"dtype": i32}, DTypeError, "to i32; supported: float"),
    ("embedding", [(5, i32), (9,)], {}, ShapeError, r"table is \(rows, width\)"),
    ("embedding", [(5, i32), (9, 4)], {"dtype": i32}, DTypeError, "dtype i32 from a table of f32"),
    ("embedding", [(5, i32), (9, 4)], {"dtype": "f16"}, DTypeError, "dtype 'f16' from"),
    ("embedding", [(5, i32), (9, 4, i32)], {"dtype": f32}, DTypeError, "a table of i32"),
    ("kv_append", [(2, 9, 3, 4), (2, 5, 3, 4), (2, 4, i32)], {}, ShapeError, "cache is"),
    ("kv_append", [(2, 9, 3, 4), (2, 5, 3, 4, f16), (2, 5, i32)], {}, DTypeError, "x is f16"),
    ("linear", [(2, 3), (5, 4)], {}, ShapeError, r"w is \(out, in\); got x \(2, 3\), w \(5, 4\)"),
    ("linear", [(), (5, 4)], {}, ShapeError, "x is"),
    ("linear", [(4,), (5, 4), (4,)], {}, ShapeError, r"bias is \(out,\)"),
    ("linear", [(4,), (5, 4), (5, f16)], {}, DTypeError, "bias is f16"),
    ("matmul", [(2, 3), (4, 5)], {}, ShapeError, r"b is \(\.\.\., k, n\)"),
    ("matmul", [(3,), (3, 5)], {}, ShapeError, "a is"),
    ("matmul", [(2, 2, 3), (4, 3, 5)], {}, ShapeError, "do not broadcast"),
    ("kv_append", [(2, 9, 3, 32, q4_0), (2, 5, 3, 32), (2, 5, i32)], {}, DTypeError, "x is f32"),
    (
        "rope",
        [(1, 2, 3, 8), (1, 2, i32), (9, 4, f16), (9, 4, f16)],
        {},
        DTypeError,
        "cos and sin are f16; supported: f32",
    ),
    (
        "rope_kv_append",
        [(1, 9, 4, 8), (1, 2, 4, 8), (1, 2, i32), (1, 2, i32), (9, 4, f16), (9, 4, f16)],
        {},
        DTypeError,
        "cos and sin are f16; supported: f32",
    ),
    (
        "rope_kv_append",
        [(1, 9, 3, 8), (1, 2, 3, 8), (1, 2, i32), (1, 2, i32), (9, 4), (9, 4)],
        {},
        ShapeError,
        r"cache is \(batch, capacity, 2 \* heads, dim\)",
    ),
    (
        "rope_kv_append",
        [(1, 9, 4, 8), (1, 2, 4, 8, f16), (1, 2, i32), (1, 2, i32), (9, 4), (9, 4)],
        {},
        DTypeError,
        "x is f16, of a cache in f32, and positions are i32; supported: f32 or the cache's",
    ),
    (
        "qattention",
        [(1, 2, 4, 32), (1, 5, 2, 32), (1, 5, 2, 32)],
        {},
        DTypeError,
        "k is f32; .* q8_0",
    ),
    ("qattention", [(1, 2, 4, 32), (1, 5, 2, 32, q8_0), (1, 5, 2, 32)], {}, DTypeError, "v is f32"),
    ("qattention", [(1, 2, 4, 32)] + [(1, 5, 2, 64, q8_0)] * 2, {}, ShapeError, "heads a multiple"),
    (
        "qattention",
        [(1, 2, 4, 32)] + [(1, 5, 2, 32, q4_0)] * 2,
        {},
        DTypeError,
        "k is q4_0; .* q8_0",
    ),
    ("qmatmul", [(2, 64), (5, 32, q4_0)], {}, ShapeError, r"w is \(out, in\)"),
    ("rms_norm", [(2, 3), (2,)], {}, ShapeError, r"weight is \(width,\)"),
    ("rms_norm", [(), ()], {}, ShapeError, "weight is"),
    ("rope", [(1, 2, 3, 8), (1, 2, i32), (9, 5), (9, 5)], {}, ShapeError, "<= dim/2"),
    ("rope", [(1, 2, 3, 8), (1, 3, i32), (9, 4), (9, 4)], {}, ShapeError, "positions"),
    ("rope", [(1, 2, 3, 8), (1, 2, i32), (9, 4), (9, 4, f16)], {}, DTypeError, "sin is f16"),
    ("silu_mul", [(2, 3), (3,)], {}, ShapeError, "gate and up must agree"),
    ("softmax", [()], {}, ShapeError, "dimension -1 does not exist"),
]


def arguments(t, given):
    """Tensors for shapes (the dtype last where it is not f32); dtypes as they are."""
    made = []
    for item in given:
        if isinstance(item, dtypes.DType):
            made.append(item)
        elif item and isinstance(item[-1], dtypes.DType):
            made.append(t(*item[:-1], dtype=item[-1]))
        else:
            made.append(t(*item))
    return made


@pytest.mark.parametrize(("name", "given", "kwargs", "meta"), GOOD)
def test_inference(t, name, given, kwargs, meta):
    """Shape and dtype of the result, before anything runs."""
    assert meta == getattr(ops, name).infer(*arguments(t, given), **kwargs)


@pytest.mark.parametrize(("name", "given", "kwargs", "error", "message"), BAD)
def test_inference_refuses(t, name, given, kwargs, error, message):
    """The error has the op's name first, what was given and what is supported."""
    with pytest.raises(error, match=f"^{name}: .*{message}"):
        getattr(ops, name)(*arguments(t, given), **kwargs)


def test_a_numpy_array_is_not_a_tensor() -> None:
    """An array in place of the only tensor is an error that says how to make one."""
    with pytest.raises(OpError, match=r"softmax: x is a ndarray, not a Tensor: Tensor.from_numpy"):
        ops.softmax(np.ones(3))
