"""Decoding when memory is short."""

from __future__ import annotations

import numpy as np
import pytest
from structlog.testing import capture_logs

from propolis import default_runtime
from propolis.cpu import CpuMemory
from propolis.errors import ModelError
from propolis.errors import OutOfMemoryError
from propolis.storage import CpuStorage


class _Counted(CpuStorage):
    """Storage that says when it goes."""

    __slots__ = ("memory",)

    def __init__(self, memory, nbytes):
        super().__init__(np.empty(nbytes, np.uint8))
        self.memory = memory

    def __del__(self):
        self.memory.live -= self.nbytes


class _Limited(CpuMemory):
    """Host memory with an end."""

    def __init__(self, capacity):
        super().__init__()
        self.capacity = capacity
        self.live = self.peak = 0

    def allocate(self, nbytes):
        if self.live + nbytes > self.capacity:
            msg = f"cpu: {nbytes} bytes are more than the free memory"
            raise OutOfMemoryError(msg)
        self.live += nbytes
        self.peak = max(self.peak, self.live)
        return _Counted(self, nbytes)


@pytest.fixture
def limit(monkeypatch):
    """Return a function that limits the CPU's memory from now on; gives the memory."""

    def limited(capacity):
        memory = _Limited(capacity)
        monkeypatch.setattr(default_runtime().cpu, "memory", memory)
        return memory

    return limited


@pytest.fixture
def latents(families, on_cpu):
    """Latents of four tiles along a side."""
    return on_cpu(families.drawn("large", (1, 4, 32, 32)))


@pytest.mark.slow
def test_tiles_where_memory_is_short(models, limit, latents):
    """What does not fit is decoded in the largest tiles that do, which is logged."""
    vae = models("sd15").vae
    whole = limit(1 << 40)
    vae.decode(latents)
    in_tiles = limit(1 << 40)
    expected = vae.decode(latents, tiled="always").numpy()
    assert in_tiles.peak < whole.peak / 2
    limit(in_tiles.peak)
    with capture_logs() as logs:
        actual = vae.decode(latents).numpy()
    np.testing.assert_array_equal(expected, actual)
    assert vae.tile == 8
    (event,) = logs
    assert ("vae.tiled", "cpu", 64) == (event["event"], event["device"], event["tile"])
    assert "more than the free memory" in event["reason"]


def test_first_try_is_let_go(models, limit, latents):
    """Of the try that failed nothing stays in memory while tiles are decoded."""
    vae = models("sd15").vae
    memory = limit(1 << 40)
    vae.decode(latents, tiled="always")
    needed = memory.peak
    memory = limit(needed)
    vae.decode(latents)
    assert memory.peak <= needed
    assert 0 == memory.live


def test_never(models, limit, latents):
    """Whoever wants no tiles gets the error."""
    limit(1 << 16)
    with pytest.raises(OutOfMemoryError, match="more than the free memory"):
        models("sd15").vae.decode(latents, tiled="never")


def test_nothing_fits(models, limit, latents):
    """Where even the smallest tiles do not fit, the error says what was wanted."""
    limit(1 << 12)
    with pytest.raises(OutOfMemoryError, match=r"cpu .* 256x256 pixels, in tiles too: .*; make"):
        models("sd15").vae.decode(latents)


def test_no_larger_than_a_tile(models, families, on_cpu):
    """One tile is the whole."""
    vae = models("sd15").vae
    z = on_cpu(families.drawn("small", (1, 4, 8, 7)))
    np.testing.assert_array_equal(vae.decode(z).numpy(), vae.decode(z, tiled="always").numpy())


@pytest.mark.parametrize("shape", [(1, 3, 30, 32), (1, 4, 32, 32), (3, 32, 32)])
def test_bad_image(models, on_cpu, shape):
    """An image that the VAE cannot encode is refused, with what it takes."""
    with pytest.raises(ModelError, match=r"takes \(b, 3, h, w\) with sizes divisible by 8, got"):
        models("sd15").vae.encode(on_cpu(np.zeros(shape, np.float32)))


def test_bad_latents(models, on_cpu):
    """So are latents of other channels."""
    with pytest.raises(ModelError, match=r"takes latents \(b, 4, h, w\), got \(1, 3, 8, 8\)"):
        models("sd15").vae.decode(on_cpu(np.zeros((1, 3, 8, 8), np.float32)))
