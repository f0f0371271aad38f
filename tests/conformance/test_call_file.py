from __future__ import annotations

import contextlib
import io
import json
import pickle
import zipfile

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st

from propolis import Tensor
from propolis import dtypes
from propolis import ops
from propolis.errors import FileFormatError
from propolis.errors import UsageError
from propolis_conformance.drift import SavedCall
from propolis_conformance.drift import load
from propolis_conformance.drift import save
from propolis_conformance.drift.file import free_path


@pytest.fixture
def strided(cpu):
    """A call with a permuted view, a broadcast one, and one tensor given twice."""
    base = Tensor.from_numpy(np.arange(24, dtype=np.float32).reshape(4, 6), cpu)
    x = base.narrow(1, 2, 3).permute(1, 0)
    return SavedCall.given(ops.add, (x, x), {})


def test_a_call_comes_back_as_it_was(cpu, strided, tmp_path):
    """Elements, strides, offsets and what is shared survive the file, bytes beside do not."""
    save(strided, tmp_path / "call.npz")
    found = load(tmp_path / "call.npz")
    a = found.tensors["a"]
    assert (a.shape, a.strides, a.offset) == ((3, 4), (1, 6), 2)
    assert a.raw.nbytes == (1 * 2 + 6 * 3 + 1) * 4
    expected = np.arange(24, dtype=np.float32).reshape(4, 6)[:, 2:5].T
    np.testing.assert_array_equal(a.value(cpu).array, expected)
    assert found.shared == {"b": "a"}
    placed = a.to(cpu)
    assert (placed.strides, placed.layout.offset % 256) == ((1, 6), 2)
    np.testing.assert_array_equal(placed.numpy(), expected)


def test_every_kind_of_attribute(cpu, tmp_path):
    """Dtypes, tuples, numbers, flags and None are what they were."""
    x = Tensor.from_numpy(np.zeros((1, 2, 8, 8), np.float32), cpu)
    w = Tensor.from_numpy(np.zeros((4, 1, 3, 3), np.float32), cpu)
    wanted = {"bias": None, "stride": (2, 1), "padding": 1, "dilation": (1, 1), "groups": 2}
    for spec, args, kwargs, attributes in (
        (ops.conv2d, (x, w), wanted, wanted),
        (ops.cast, (x, dtypes.bf16), {}, {"dtype": dtypes.bf16}),
        (ops.sum, (x, (0, 2)), {"keepdim": True}, {"dims": (0, 2), "keepdim": True}),
        (ops.clamp, (x, -1.5, float("inf")), {}, {"low": -1.5, "high": float("inf")}),
    ):
        save(SavedCall.given(spec, args, kwargs), tmp_path / "call.npz")
        assert load(tmp_path / "call.npz").attributes == attributes


def test_blocks_and_empty_tensors(cpu, tmp_path):
    """A weight in blocks keeps its bytes; a tensor without elements has none."""
    raw = np.random.default_rng(0).integers(0, 256, 2 * 2 * 20, np.uint8)
    w = Tensor.from_blocks(raw, dtypes.q4_1, (2, 64), cpu)
    x = Tensor.from_numpy(np.zeros((0, 64), np.float32), cpu)
    save(SavedCall.given(ops.qmatmul, (x, w), {}), tmp_path / "call.npz")
    found = load(tmp_path / "call.npz")
    assert found.tensors["w"].raw.tolist() == raw.tolist()
    assert found.tensors["x"].value(cpu).array.shape == (0, 64)


def test_numpy_reads_it_without_pickle(strided, tmp_path):
    """The file is what its documentation says: arrays, and JSON in one of them."""
    save(strided, tmp_path / "call.npz")
    with np.load(tmp_path / "call.npz", allow_pickle=False) as arrays:
        header = json.loads(arrays["header"].tobytes())
        assert sorted(arrays) == ["header", "tensor.a"]
    assert (header["op"], header["tensors"]["b"]) == ("add", {"same_as": "a"})


def test_free_paths(tmp_path):
    """No file is overwritten, and no name leaves the folder."""
    first = free_path(tmp_path, "add", "../a b")
    assert (first.parent, first.name) == (tmp_path, "add-..-a-b.npz")
    first.write_text("")
    assert free_path(tmp_path, "add", "../a b").name == "add-..-a-b-2.npz"


# -- what is no saved call -------------------------------------------------------


def write(path, header, compress=zipfile.ZIP_STORED, **arrays):
    """A file with that header; arrays are given as what numpy or pickle makes of them."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    with zipfile.ZipFile(path, "w", compress) as archive:
        for name, array in {"header": np.frombuffer(text, np.uint8), **arrays}.items():
            raw = array
            if isinstance(array, np.ndarray):
                stream = io.BytesIO()
                np.save(stream, array)
                raw = stream.getvalue()
            archive.writestr(f"{name.replace('__', '.')}.npy", raw)
    return path


def header(**changes):
    """The header of a small call."""
    tensor = {"dtype": "f32", "shape": [2], "strides": [1], "offset": 0}
    return {
        "format": 1,
        "op": "neg",
        "attributes": {},
        "tensors": {"x": tensor | changes.pop("x", {})},
        "into": {},
        "prepared": [],
        "results": [],
        "facts": {},
    } | changes


EIGHT = np.zeros(8, np.uint8)


def test_the_small_call_is_one(tmp_path):
    """What the cases below change is right without them."""
    assert load(write(tmp_path / "a.npz", header(), tensor__x=EIGHT)).op == "neg"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"format": 2}, "it has format 2; this version reads 1"),
        ({"op": "rm"}, "the op 'rm', which is not there"),
        ({"op": None}, "the op None"),
        ({"op": ["neg"]}, "unhashable"),
        ({"tensors": []}, "no attribute 'items'"),
        ({"tensors": {}}, "neg: the tensor x is missing"),
        ({"tensors": {"x": {"same_as": "y"}}}, "it has no 'y'"),
        ({"attributes": {"code": 1}}, "neg has no parameter 'code'"),
        ({"attributes": {"x": 1}}, "neg: x is given twice"),
        ({"tensors": {}, "attributes": {"x": 1}}, "neg: x is of another kind"),
        ({"attributes": {"x": "text"}}, "an attribute is 'text'"),
        ({"attributes": {"x": {"dtype": "f31"}}}, "unknown dtype 'f31'"),
        ({"into": {"0": "y"}}, "not all among its tensors"),
        ({"into": {"zero": "x"}}, "invalid literal"),
        ({"prepared": ["y"]}, "not all among its tensors"),
        ({"facts": 3}, "no attribute 'items'"),
        ({"x": {"dtype": "f31"}}, "unknown dtype 'f31'"),
        ({"x": {"shape": [3]}}, "reaches 12 bytes, got 8"),
        ({"x": {"shape": [-2]}}, "tensor.x has shape"),
        ({"x": {"shape": [2.0]}}, "tensor.x has shape"),
        ({"x": {"shape": [2, 1]}}, "tensor.x has shape"),
        ({"x": {"shape": [True]}}, "tensor.x has shape"),
        ({"x": {"strides": [-1]}}, "tensor.x has shape"),
        ({"x": {"offset": 2**70}}, "tensor.x has shape"),
        ({"x": {"shape": [2**40, 2], "strides": [0, 1]}}, "8 bytes are repeated to shape"),
        ({"x": {"dtype": "q8_0", "shape": [32], "strides": [2]}}, "cut blocks of q8_0"),
        ({"x": {"dtype": "q8_0", "shape": [8]}}, "cut blocks of q8_0"),
    ],
    ids=str,
)
def test_damaged_headers(tmp_path, changes, said):
    """Each is one clear error about the file, and nothing of it is run."""
    path = write(tmp_path / "a.npz", header(**changes), tensor__x=EIGHT)
    with pytest.raises(FileFormatError, match="is no saved call") as caught:
        load(path)
    assert said in str(caught.value)


class Bomb:
    """An object whose pickle does something."""

    def __reduce__(self):
        return (print, ("boom",))


def claims(size):
    """Eight bytes that say they are more."""
    stream = io.BytesIO()
    fields = {"descr": "|u1", "fortran_order": False, "shape": (size,)}
    np.lib.format.write_array_header_1_0(stream, fields)
    return stream.getvalue() + bytes(8)


@pytest.mark.parametrize(
    ("arrays", "said"),
    [
        ({}, "it has no 'tensor.x'"),
        ({"tensor__x": b""}, "magic string"),
        ({"tensor__x": pickle.dumps(Bomb())}, "magic string"),
        ({"tensor__x": np.zeros(2, np.float32)}, "is float32 of shape (2,) in 8 bytes"),
        ({"tensor__x": np.zeros((2, 4), np.uint8)}, "is uint8 of shape (2, 4) in 8 bytes"),
        ({"tensor__x": claims(99_999_999_999)}, "of shape (99999999999,) in"),
    ],
    ids=["missing", "empty", "pickle", "floats", "two-dimensional", "larger-than-it-is"],
)
def test_damaged_arrays(tmp_path, capsys, arrays, said):
    """Arrays are rows of bytes that are there; what is pickled is not unpickled."""
    with pytest.raises(FileFormatError, match="is no saved call") as caught:
        load(write(tmp_path / "a.npz", header(), **arrays))
    assert said in str(caught.value)
    assert capsys.readouterr().out == ""


def test_objects_are_not_unpickled(tmp_path, capsys):
    """An array of objects is refused by its dtype."""
    stream = io.BytesIO()
    np.save(stream, np.array([Bomb()], object), allow_pickle=True)
    path = write(tmp_path / "a.npz", header(), tensor__x=stream.getvalue())
    with pytest.raises(FileFormatError, match="is object of shape"):
        load(path)
    assert capsys.readouterr().out == ""


def test_compressed_files_are_refused(tmp_path):
    """A small file that unpacks to a huge one is never unpacked."""
    bomb = np.zeros(10_000_000, np.uint8)
    path = write(tmp_path / "a.npz", header(), zipfile.ZIP_DEFLATED, tensor__x=bomb)
    with pytest.raises(FileFormatError, match="is compressed"):
        load(path)


def test_a_long_header_is_refused(tmp_path):
    """Facts are words, not megabytes."""
    path = write(tmp_path / "a.npz", b" " * 2_000_000)
    with pytest.raises(FileFormatError, match="its header is 2000000 bytes long"):
        load(path)


@pytest.mark.parametrize("raw", [b"", b"PK", b"x" * 100, b"[" * 100_000])
def test_other_files(tmp_path, raw):
    """A text, a cut zip and an empty file say that they are no saved call."""
    (tmp_path / "a.npz").write_bytes(raw)
    with pytest.raises(FileFormatError, match=r"`propolis drift --save` writes one"):
        load(tmp_path / "a.npz")


def test_deep_headers(tmp_path):
    """JSON nested deeper than Python goes is an error of the file."""
    path = write(tmp_path / "a.npz", b"[" * 500_000)
    with pytest.raises(FileFormatError, match="is no saved call"):
        load(path)


def test_no_file(tmp_path):
    """It, a folder, and a place where none can be written are the user's to see."""
    for path in (tmp_path / "none.npz", tmp_path):
        with pytest.raises(UsageError, match="cannot be read"):
            load(path)
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot be written"):
        save(SavedCall("neg", {}), tmp_path / "file" / "a.npz")


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_any_damage_is_a_clear_error(tmp_path_factory, data):
    """Bytes changed, removed or added give the call that was saved or a FileFormatError."""
    path = tmp_path_factory.getbasetemp() / "damaged.npz"
    raw = bytearray(write(path, header(), tensor__x=EIGHT).read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(raw) - 1))
        raw[at : at + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
    path.write_bytes(raw)
    with contextlib.suppress(FileFormatError):
        assert load(path).op in ops.catalogue()
