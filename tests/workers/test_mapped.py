"""Mapped weights: what was read once no longer counts as memory of the process."""

from __future__ import annotations

import mmap
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from propolis_workers.weights import SafetensorsFolder


STATUS = Path("/proc/self/status")
SIZE = 64 << 20


def mapped() -> int:
    """Bytes of files that are resident in this process."""
    lines = [x.split() for x in STATUS.read_text().splitlines()]
    found = [int(x[1]) for x in lines if x[0] in ("RssFile:", "RssShmem:")]
    if not found:
        pytest.skip("this system tells of no pages")
    return sum(found) * 1024


@pytest.mark.skipif(
    not STATUS.exists() or not hasattr(mmap, "MADV_DONTNEED"),
    reason="this system tells of no pages",
)
def test_what_was_read_is_let_go(tmp_path):
    """The tensor before, when the next is read, and all at the end; both can be read again."""
    values = {name: np.full(SIZE, n + 1, np.uint8) for n, name in enumerate("ab")}
    save_file(values, tmp_path / "model.safetensors")
    with SafetensorsFolder.open(tmp_path) as source:
        before = mapped()
        a = source.data("a")
        assert a.sum(dtype=np.int64) == SIZE
        assert mapped() - before >= 0.9 * SIZE
        b = source.data("b")
        assert mapped() - before <= 0.1 * SIZE
        assert b.sum(dtype=np.int64) == 2 * SIZE
        source.release()
        assert mapped() - before <= 0.1 * SIZE
        assert a.sum(dtype=np.int64) == SIZE
        assert b.sum(dtype=np.int64) == 2 * SIZE


@pytest.mark.skipif(
    not STATUS.exists() or not hasattr(mmap, "MADV_DONTNEED"),
    reason="this system tells of no pages",
)
def test_what_is_joined_is_let_go(tmp_path):
    """Tensors that are asked for together and read later, when the next is asked for."""
    values = {name: np.full(SIZE // 4, n + 1, np.uint8) for n, name in enumerate("abc")}
    save_file(values, tmp_path / "model.safetensors")
    with SafetensorsFolder.open(tmp_path) as source:
        before = mapped()
        joined = np.concatenate([source.data("a"), source.data("b")])
        assert mapped() - before >= 0.45 * SIZE
        source.data("c")
        assert mapped() - before <= 0.1 * SIZE
        assert joined.sum(dtype=np.int64) == 3 * (SIZE // 4)
