"""Models that are split over several files, as the gguf library splits them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import gguf
import numpy as np
import pytest

from propolis.errors import FileFormatError
from propolis.errors import ModelError
from propolis.errors import UnsupportedModelError
from propolis_workers.weights import GGUFFile


if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def parts(tmp_path) -> list[Path]:
    """Seven tensors in four files."""
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama", split_max_tensors=2)
    for number in range(7):
        writer.add_tensor(f"t{number}", np.full((3, 5), number, np.float32))
    writer.add_context_length(11)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    found = sorted(tmp_path.glob("m-*.gguf"))
    assert len(found) == 4
    return found


def test_whichever_is_named(parts):
    """Any part opens all: every tensor is there, and the first part's metadata."""
    for path in parts:
        with GGUFFile.open(path) as file:
            assert file.metadata["llama.context_length"] == 11
            assert set(file.tensors) == {f"t{number}" for number in range(7)}
            for number in range(7):
                values = file.data(f"t{number}").view(np.float32)
                assert values.tolist() == [number] * 15


def test_a_part_is_missing(parts):
    """One that is not there is named."""
    parts[2].unlink()
    with pytest.raises(ModelError, match=r"m-00003-of-00004.gguf: there is no such file"):
        GGUFFile.open(parts[0])


def test_under_another_name(parts):
    """A part that was renamed says what it is to be called."""
    other = parts[1].rename(parts[1].with_name("second.gguf"))
    with pytest.raises(UnsupportedModelError, match=r"part 2 of 4 .*NAME-00002-of-00004.gguf"):
        GGUFFile.open(other)


def test_of_another_model(parts, tmp_path):
    """Parts that do not belong together are refused: swapped, doubled, or too few tensors."""
    second, third = (path.read_bytes() for path in parts[1:3])
    parts[1].write_bytes(third)
    with pytest.raises(FileFormatError, match="says that it is part 3 of 4, its name says"):
        GGUFFile.open(parts[0])
    parts[1].write_bytes(second)
    writer = gguf.GGUFWriter(tmp_path / "x.gguf", "llama")
    writer.add_uint16("split.no", 2)
    writer.add_uint16("split.count", 4)
    for name in ("t0", "t9"):
        writer.add_tensor(name, np.zeros(3, np.float32))
    for step in (writer.write_header_to_file, writer.write_kv_data_to_file):
        step()
    writer.write_tensors_to_file()
    writer.close()
    parts[2].write_bytes((tmp_path / "x.gguf").read_bytes())
    with pytest.raises(FileFormatError, match="tensor 't0' is in another part too"):
        GGUFFile.open(parts[0])


@pytest.mark.parametrize(
    ("no", "count"), [(4, 4), (0, 65535), (7, 3)], ids=["past the end", "absurd", "beyond"]
)
def test_absurd_numbers(tmp_path, no, count):
    """Numbers that no part has end in one line; no list of files is made for them."""
    writer = gguf.GGUFWriter(tmp_path / "m-00001-of-00004.gguf", "llama")
    writer.add_uint16("split.no", no)
    writer.add_uint16("split.count", count)
    writer.add_tensor("t0", np.zeros(3, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(ModelError) as caught:
        GGUFFile.open(tmp_path / "m-00001-of-00004.gguf")
    assert len(str(caught.value).splitlines()) == 1
