from __future__ import annotations

import json
import os
import struct
import tracemalloc

import ml_dtypes
import numpy as np
import pytest
import safetensors
import safetensors.numpy
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st

from propolis import dtypes
from propolis.errors import FileFormatError
from propolis.errors import ModelError
from propolis.errors import PropolisError
from propolis.errors import UnsupportedModelError
from propolis_workers.weights import SafetensorsFolder
from propolis_workers.weights import WeightSource


BAD, NO = FileFormatError, UnsupportedModelError
CODES = {
    dtypes.f64: "F64",
    dtypes.f32: "F32",
    dtypes.f16: "F16",
    dtypes.bf16: "BF16",
    dtypes.f8e4m3: "F8_E4M3",
    dtypes.f8e5m2: "F8_E5M2",
    dtypes.u8: "U8",
    dtypes.u32: "U32",
    dtypes.i8: "I8",
    dtypes.i16: "I16",
    dtypes.i32: "I32",
    dtypes.i64: "I64",
}


def entry(dtype="F32", shape=(2,), offsets=(0, 8), **more) -> dict:
    """The header entry of a tensor, by default of two floats."""
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets, **more}


def blob(header: object, data: bytes = bytes(8), length: int | None = None) -> bytes:
    """A safetensors file; ``header`` may be raw bytes, ``length`` a lie."""
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(raw) if length is None else length) + raw + data


def x(*args, **kwargs) -> bytes:
    """A file with one tensor ``x`` and eight bytes of data."""
    return blob({"x": entry(*args, **kwargs)})


SMALL = blob(
    {
        "__metadata__": {"format": "pt"},
        "w": entry("BF16", (2, 3), (0, 12)),
        "b": entry("F32", (), (12, 16)),
        "none": entry("I64", (0, 4), (16, 16)),
    },
    bytes(range(16)),
)
TWO = {"x": entry(), "y": entry(offsets=(8, 16))}

# What a file holds, the error, and words that its message must have.
HOSTILE = {
    "empty": (b"", BAD, "is empty (0 bytes)"),
    "7 bytes": (bytes(7), BAD, "ends after 7 bytes, a header takes 8 at least"),
    "no header": (bytes(8), BAD, "the header begins with b'', supported: a JSON object"),
    "header, huge": (blob({}, length=2**64 - 1), BAD, "claims a header of 18446744073709551615"),
    "header, past the end": (blob({}, length=99), BAD, "of 99 bytes, 10 are left in the file"),
    "header, array": (blob(b"[]"), BAD, "the header begins with b'['"),
    "header, space first": (blob(b" {}"), BAD, "the header begins with b' '"),
    "header, cut": (blob(b'{"x": '), BAD, "its JSON cannot be read ('Expecting value"),
    "header, more after it": (blob(b"{} {}"), BAD, "its JSON cannot be read ('Extra data"),
    "header, not UTF-8": (blob(b'{"\xff": 1}'), BAD, "its JSON cannot be read"),
    "header, lone surrogate": (blob(rb'{"\ud800": 1}'), BAD, "in position 0: surrogates not"),
    "header, 10^5 deep": (blob(b'{"x": ' + b"[" * 10**5), BAD, "its JSON is nested too deep"),
    "header, 5000 digits": (blob(b'{"x": ' + b"9" * 5000 + b"}"), BAD, "its JSON cannot be read"),
    "name, twice": (blob(b'{"x": 1, "x": 2}'), BAD, "a key occurs twice"),
    "metadata, number": (blob({"__metadata__": {"a": 1}}), BAD, "is not an object of strings"),
    "metadata, text": (blob({"__metadata__": "a"}), BAD, "is not an object of strings"),
    "entry, list": (blob({"x": []}), BAD, "tensor 'x' is not described by dtype, shape and"),
    "entry, missing": (blob({"x\n": {"dtype": "F32"}}), BAD, r"tensor 'x\n' is not described"),
    "entry, more": (x(stride=1), BAD, "is not described by dtype, shape and data_offsets alone"),
    "dtype, U16": (x("U16", (4,)), NO, "tensor 'x' has dtype 'U16', supported: F64, F32, F16"),
    "dtype, BOOL": (x("BOOL", (8,)), NO, "has dtype 'BOOL'"),
    "dtype, F8_E8M0": (x("F8_E8M0", (8,)), NO, "F8_E5M2, U8, U32, I8, I16, I32, I64; convert the"),
    "dtype, long": (x("F" * 10**4), NO, "...', supported"),
    "dtype, list": (x(["F32"]), NO, "has dtype a JSON list"),
    "shape, text": (x(shape="2"), BAD, "has shape '2', supported: 0 to 32 sizes >= 0"),
    "shape, negative": (x(shape=(-2, -1)), BAD, "has shape a JSON list"),
    "shape, float": (x(shape=(2.0,)), BAD, "has shape a JSON list"),
    "shape, true": (x(shape=(2, True)), BAD, "has shape a JSON list"),
    "shape, 33": (x(shape=(1,) * 33), BAD, "has shape [1, 1, 1, 1"),
    "shape, overflow": (x(shape=(2**32, 2**32)), BAD, "of more than 2^63 elements"),
    "shape, overflow, 0": (x(shape=(2**62, 4, 0)), BAD, "of more than 2^63 elements"),
    "size, less": (x(shape=(1,)), BAD, "of f32 [1] takes 4 bytes, its data_offsets span 8"),
    "size, more": (x(shape=(3,)), BAD, "of f32 [3] takes 12 bytes, its data_offsets span 8"),
    "offsets, 3": (x(offsets=(0, 8, 8)), BAD, "has data_offsets [0, 8, 8], not [begin, end]"),
    "offsets, backward": (x(offsets=(8, 0)), BAD, "has data_offsets [8, 0], not [begin, end]"),
    "offsets, negative": (x(offsets=(-8, 0)), BAD, "has data_offsets a JSON list"),
    "offsets, 2^64": (x(offsets=(2**64, 2**64 + 8)), BAD, "has data_offsets a JSON list"),
    "offsets, null": (x(offsets=None), BAD, "has data_offsets None"),
    "hole, first": (blob({"x": entry(offsets=(8, 16))}, bytes(16)), BAD, "'x' begins at byte"),
    "hole, last": (blob({"x": entry()}, bytes(9)), BAD, "the tensors end at byte"),
    "cut data": (blob({"x": entry()}, bytes(7)), BAD, "the download is incomplete"),
    "overlap": (blob({**TWO, "y": entry(offsets=(4, 12))}, bytes(16)), BAD, "neither overlap nor"),
    "overlap, exact": (blob({**TWO, "y": entry()}, bytes(16)), BAD, "tensor 'y' begins at byte"),
    "zip": (b"PK\3\4" + bytes(99), NO, "a Python pickle (PyTorch checkpoint)"),
    "pickle": (b"\x80\2}q\0." + bytes(99), NO, "runs whatever code its author put in it"),
    "GGUF": (b"GGUF" + bytes(99), BAD, "a GGUF file; open it as one"),
    "LFS pointer": (b"version https://git-lfs/spec/v1\n", BAD, "run `git lfs pull`"),
}


def opened(path) -> PropolisError | None:
    """Open a model and read all of it; the error, after a check of its form, if it is ours."""
    try:
        with SafetensorsFolder.open(path) as source:
            for info in source.tensors.values():
                assert info.nbytes == source.data(info.name).nbytes
            return None
    except PropolisError as error:
        found = error
    assert len(str(found).splitlines()) == 1
    assert str(found).startswith(str(path))
    assert "; " in str(found), "a message says what to do"
    return found


@pytest.fixture
def model(tmp_path):
    """A sharded model: ``a`` in the first file, ``b`` and ``c`` in the second."""
    names = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
    (tmp_path / names[0]).write_bytes(blob({"a": entry()}, b"aaaaaaaa"))
    two = {"b": entry(), "c": entry(offsets=(8, 16))}
    (tmp_path / names[1]).write_bytes(blob(two, b"bbbbbbbbcccccccc"))
    index = {"metadata": {"total_size": 24}, "weight_map": {"a": names[0], "c": names[1]}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    (tmp_path / "config.json").write_text('{"model_type": "llama", "eps": 1e-5}')
    return tmp_path


@pytest.fixture(scope="module")
def scratch(tmp_path_factory):
    """A path that tests of this module may write to; no config.json lies beside it."""
    return tmp_path_factory.mktemp("safetensors") / "x.safetensors"


@pytest.mark.parametrize("dtype", CODES, ids=str)
def test_every_dtype_is_read(dtype, tmp_path):
    """A tensor of each dtype, written by the library, has its dtype, shape and bytes."""
    raw = np.random.RandomState(0).randint(0, 256, 6 * dtype.block_bytes).astype(np.uint8)
    array = raw.view(dtype.numpy).reshape(2, 3)
    path = tmp_path / "x.safetensors"
    spec = {"dtype": CODES[dtype], "shape": [2, 3], "data": raw.tobytes()}
    header = entry(spec["dtype"], spec["shape"], (0, raw.nbytes))
    path.write_bytes(blob({"x": header}, spec["data"]))
    [(name, expected)] = safetensors.deserialize(path.read_bytes())
    with SafetensorsFolder.open(path) as source:
        info = source.tensors[name]
        assert expected["dtype"] == CODES[info.dtype]
        assert (dtype, tuple(expected["shape"])) == (info.dtype, info.shape)
        assert bytes(expected["data"]) == source.data("x").tobytes()
        assert array.tobytes() == source.data("x").view(dtype.numpy).tobytes()


def test_library_files_are_read(tmp_path):
    """A file that the library saved is read whole, metadata and mixed dtypes included."""
    arrays = {
        "f16": np.arange(6, dtype=np.float16).reshape(2, 3),
        "bf16": np.arange(6).astype(ml_dtypes.bfloat16),
        "u8": np.arange(3, dtype=np.uint8),
        "scalar": np.array(2.5, np.float32),
        "none": np.zeros((0, 4), np.int64),
    }
    safetensors.numpy.save_file(arrays, tmp_path / "x.safetensors", {"format": "np"})
    with SafetensorsFolder.open(tmp_path / "x.safetensors") as source:
        assert arrays.keys() == source.tensors.keys()
        for name, array in arrays.items():
            info = source.tensors[name]
            assert (dtypes.from_numpy(array.dtype), array.shape) == (info.dtype, info.shape)
            assert array.tobytes() == source.data(name).tobytes()


def test_header_of_640_bytes_is_no_pickle(scratch):
    """A header whose length begins like a pickle does not make the file one."""
    raw = json.dumps({"x": entry()}).encode().ljust(640)
    scratch.write_bytes(blob(raw))
    assert scratch.read_bytes()[:2] == b"\x80\x02"
    assert opened(scratch) is None


def test_sharded_folder(model):
    """The index decides what tensors there are; each comes from its shard; config is read."""
    with SafetensorsFolder.open(model) as source:
        assert isinstance(source, WeightSource)
        assert model == source.path
        assert source.config == {"model_type": "llama", "eps": 1e-5}
        assert list(source.tensors) == ["a", "c"]
        assert source.data("a").tobytes() == b"a" * 8
        assert source.data("c").tobytes() == b"c" * 8
        with pytest.raises(ModelError, match="no tensor 'b'; it holds 2 tensors"):
            source.data("b")
    index = model / "model.safetensors.index.json"
    assert list(SafetensorsFolder.open(index).tensors) == ["a", "c"]


@pytest.mark.parametrize("stem", ["model", "diffusion_pytorch_model"])
def test_folder_with_one_file(stem, tmp_path):
    """One file of the name that transformers or diffusers gives it is found; no config is {}."""
    (tmp_path / f"{stem}.safetensors").write_bytes(SMALL)
    with SafetensorsFolder.open(str(tmp_path)) as source:
        assert source.config == {}
        assert list(source.tensors) == ["w", "b", "none"]


def test_data_is_a_read_only_view_until_closed(scratch):
    """Data is a read-only view; it outlives close, while the names do not."""
    scratch.write_bytes(SMALL)
    source = SafetensorsFolder.open(scratch)
    data = source.data("w")
    assert (np.dtype(np.uint8), 1, False) == (data.dtype, data.ndim, data.flags.writeable)
    assert np.shares_memory(data, source.data("w"))
    source.close()
    assert bytes(range(12)) == data.tobytes()
    with pytest.raises(ModelError, match="closed, so tensor 'w' is gone; open it again"):
        source.data("w")


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_file(case, scratch):
    """Each hostile file is refused with the error and words of the table, on one line."""
    raw, error, words = HOSTILE[case]
    scratch.write_bytes(raw)
    found = opened(scratch)
    assert error is type(found)
    assert words in str(found)


@pytest.mark.parametrize(
    ("weight_map", "words"),
    [
        (None, "has no object 'weight_map'"),
        (["a"], "has no object 'weight_map'"),
        ({"a": 1}, "puts tensor 'a' in 1; a shard must be a .safetensors file beside the index"),
        ({"a": "../x.safetensors"}, "puts tensor 'a' in '../x.safetensors'; a shard must be"),
        ({"a": "/x.safetensors"}, "a shard must be a .safetensors file beside the index"),
        ({"a": "x\0.safetensors"}, "a shard must be a .safetensors file beside the index"),
        ({"a": "pytorch_model.bin"}, "a shard must be a .safetensors file beside the index"),
        ({"a": "gone.safetensors"}, "there is no such file; check the path"),
        ({"z\n": "model-00001-of-00002.safetensors"}, r"puts tensor 'z\n' in 'model-00001"),
    ],
)
def test_hostile_index(weight_map, words, model):
    """An index may name only shards beside it, and only tensors that they hold."""
    index = {"weight_map": weight_map}
    (model / "model.safetensors.index.json").write_text(json.dumps(index))
    assert words in str(opened(model))


@pytest.mark.parametrize("name", ["config.json", "model.safetensors.index.json"])
@pytest.mark.parametrize("raw", [b"", b"{", b"[]", b"\xff", b"[" * 10**5, b"\x80\4N."])
def test_hostile_json(name, raw, model):
    """A damaged config or index is refused by an error that names it."""
    (model / name).write_bytes(raw)
    found = opened(model)
    assert isinstance(found, FileFormatError | UnsupportedModelError)
    assert name in str(found)


@pytest.mark.parametrize(
    ("files", "error", "words"),
    [
        (
            [],
            ModelError,
            "no model.safetensors or diffusion_pytorch_model.safetensors, nor the index",
        ),
        (["pytorch_model.bin"], NO, "pytorch_model.bin: a Python pickle"),
        (["a.gguf"], ModelError, "give the file itself: 'a.gguf'?"),
        (["lora.safetensors"], ModelError, "give the file itself: 'lora.safetensors'?"),
        (
            ["adapter_config.json", "adapter_model.safetensors"],
            ModelError,
            "merge it into its base model",
        ),
    ],
)
def test_folder_without_a_model(files, error, words, tmp_path):
    """A folder without weights says what was looked for and what lies there instead."""
    for name in files:
        (tmp_path / name).write_bytes(b"\x80\2")
    found = opened(tmp_path)
    assert error is type(found)
    assert words in str(found)


@pytest.mark.parametrize("suffix", [".bin", ".pt", ".pth", ".CKPT"])
def test_pickle_by_name(suffix, tmp_path):
    """A name that pickles have is refused, whatever the file holds."""
    path = tmp_path / f"model{suffix}"
    path.write_bytes(SMALL)
    found = opened(path)
    assert NO is type(found)
    assert "convert it to safetensors" in str(found)


def test_missing_pipe_and_dangling_link(tmp_path):
    """What is no regular file is refused at once, with a message of its own."""
    assert "there is no such file" in str(opened(tmp_path / "none.safetensors"))
    os.mkfifo(tmp_path / "pipe.safetensors")
    assert "is a pipe or device" in str(opened(tmp_path / "pipe.safetensors"))
    (tmp_path / "model.safetensors").symlink_to(tmp_path / "gone")
    assert "there is no such file" in str(opened(tmp_path))


def test_limits(scratch, model, monkeypatch):
    """A header of too many tensors, and a JSON file too large to parse, are refused."""
    monkeypatch.setattr("propolis_workers.weights.safetensors.COUNT_LIMIT", 2)
    scratch.write_bytes(SMALL)
    assert "holds 3 tensors, supported: 2" in str(opened(scratch))
    os.truncate(model / "config.json", 2**35)
    assert "a JSON file of 34359738368 bytes, supported: 100000000" in str(opened(model))


@pytest.mark.parametrize(
    ("call", "words"),
    [
        ("is_dir", "is a folder, not a file"),
        ("lstat", "model.safetensors: there is no such file"),
        ("iterdir", "the folder cannot be listed; make it readable"),
    ],
)
def test_no_permission(call, words, tmp_path, monkeypatch):
    """A folder that may not be looked into is a ModelError (root may all: simulated)."""

    def refuse(*args):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(f"propolis_workers.weights.safetensors.Path.{call}", refuse)
    found = opened(tmp_path)
    assert ModelError is type(found)
    assert words in str(found)


def test_every_truncation(scratch):
    """A file cut anywhere is refused: the format knows no padding at the end."""
    for length in range(len(SMALL)):
        scratch.write_bytes(SMALL[:length])
        assert FileFormatError is type(opened(scratch)), length
    scratch.write_bytes(SMALL)
    assert opened(scratch) is None


VALUES = st.sampled_from(
    [b"0", b"-1", b"2", b"12", b"16", b"4294967296", b"9" * 20, b"[]", b'"F4"']
)
POSITIONS = st.integers(0, len(SMALL) - 1)


@pytest.mark.slow
@settings(max_examples=1000, deadline=None, database=None)
@given(
    edits=st.lists(
        st.one_of(
            st.tuples(POSITIONS, st.integers(0, 3), st.binary(max_size=3)),
            st.tuples(POSITIONS, st.integers(0, 3), VALUES),
        ),
        min_size=1,
        max_size=4,
    ),
    keep=st.one_of(st.none(), POSITIONS),
    repair=st.booleans(),
)
def test_fuzz(edits, keep, repair, scratch):
    """A mutated file opens or is refused by an error of ours; what opens, the library takes."""
    raw = SMALL
    for at, drop, put in edits:
        raw = raw[:at] + put + raw[at + drop :]
    if repair:  # a header of the claimed length lets edits reach the checks behind it
        raw = struct.pack("<Q", max(len(raw) - 24, 0)) + raw[8:]
    raw = raw[:keep]
    scratch.write_bytes(raw)
    tracemalloc.start()
    try:
        found = opened(scratch)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 2**17 + 64 * len(raw)
    if found is None:
        assert safetensors.deserialize(raw) is not None
