"""Kernels compute what HIP says they compute."""

from __future__ import annotations

import pytest


def test_every_thread_knows_where_it_is(sim, warp):
    """Each thread of a 3-D grid of 3-D blocks runs exactly once, at its own place."""
    code = """
    m = Module()
    y = alloc(4 * 2 * 3 * 4 * 5 * 3 * 2)
    print(m.where((2, 3, 4), (5, 3, 2), ctypes.c_void_p(y)))
    got = download(y, (4, 3, 2, 2, 3, 5), np.int32)
    bz, by, bx, tz, ty, tx = np.indices(got.shape)
    want = tx + 100 * ty + 10000 * tz + 10**6 * bx + 10**7 * by + 10**8 * bz
    print((got == want).all())
    """
    assert sim.lines(code, warp=warp) == ["hipSuccess", "True"]


def test_block_reduction(sim, warp):
    """Shuffles, shared memory and a barrier sum a block's values, in either order of threads."""
    code = """
    m = Module()
    x = np.random.default_rng(0).random(10_000).astype(np.float32)
    dx, dy = upload(x), alloc(4)
    for _ in range(4):
        m.sum(1, 512, ctypes.c_void_p(dx), ctypes.c_void_p(dy), i32(x.size))
        print(abs(download(dy, 1)[0] - x.sum(dtype=np.float64)) < 0.01)
    """
    assert sim.lines(code, warp=warp) == ["True"] * 4


def test_warp_operations(sim, warp):
    """Shuffles and votes give each lane what HIP's documentation says."""
    code = f"""
    W = {warp}
    m = Module()
    y = alloc(4 * 8 * 2 * W)
    m.shuffles(1, 2 * W, ctypes.c_void_p(y))
    got = download(y, (2 * W, 8), np.int32)
    lane = np.arange(2 * W) % W
    want = np.stack([
        np.full(2 * W, 5),
        lane ^ 3,
        np.where(lane + 2 < W, lane + 2, lane),
        np.where(lane >= 2, lane - 2, lane),
        lane ^ 1,
        np.full(2 * W, len(range(0, W, 3))),
        np.full(2 * W, 3),
        np.full(2 * W, 19),
    ], 1)
    print((got == want).all(0))
    """
    assert sim.lines(code, warp=warp) == ["[ True  True  True  True  True  True  True  True]"]


def test_half_a_warp_may_exchange(sim, warp):
    """Lanes that shuffle among themselves while the others wait at a barrier are served."""
    code = """
    m = Module()
    y = alloc(4 * 64)
    print(m.half_warp_shuffle(1, 64, ctypes.c_void_p(y)))
    got = download(y, 64, np.int32)
    t = np.arange(64)
    print((got == np.where(t < 16, t ^ 1, t)).all())
    """
    assert sim.lines(code, warp=warp) == ["hipSuccess", "True"]


@pytest.mark.parametrize("size", [1000, 65536])
def test_dynamic_shared_memory(sim, size):
    """A block has as much dynamic shared memory as the launch says, up to all there is."""
    code = """
    m = Module()
    x = np.arange(250, dtype=np.float32)
    dx, dy = upload(x), alloc(x.nbytes)
    print(m.dynamic_reverse(1, 250, ctypes.c_void_p(dx), ctypes.c_void_p(dy), shared=SIZE))
    print((download(dy, 250) == x[::-1]).all())
    """
    assert sim.lines(code.replace("SIZE", str(size))) == ["hipSuccess", "True"]


def test_atomics(sim):
    """Atomics lose nothing between threads, blocks and processors."""
    code = """
    m = Module()
    f, d, i = upload(np.zeros(1, "f4")), upload(np.zeros(1, "f8")), upload(np.zeros(3, "i4"))
    u, l = upload(np.zeros(1, "u4")), upload(np.zeros(1, "u8"))
    m.atomics(200, 100, *map(ctypes.c_void_p, (f, d, i, u, l)))
    print(download(f, 1)[0], download(d, 1, "f8")[0], download(i, 3, "i4"),
          download(u, 1, "u4")[0], download(l, 1, "u8")[0])
    """
    assert sim.lines(code, HIPSIM_THREADS=4) == [
        "20000.0 20000.0 [ 20000  40000 -19999] 19999 20000"
    ]


def test_arguments_of_every_kind(sim):
    """Arguments are laid out as a C struct, by `extra` and by `kernelParams`."""
    code = """
    class Strided(ctypes.Structure):
        _fields_ = [("shape", i64 * 2), ("strides", i64 * 2), ("rank", i32), ("pad", i32)]
    s = Strided((i64 * 2)(3, 4), (i64 * 2)(4, 7), 2, 0)
    m = Module()
    y = alloc(24)
    arguments = [ctypes.c_char(b"A"), ctypes.c_void_p(y), ctypes.c_short(-5),
                 ctypes.c_double(2.5), s, i32(9)]
    print(m.mixed(1, 1, *arguments))
    print(download(y, 6).tolist())
    ok(hip.hipMemset(y, 0, 24))
    addresses = [ctypes.addressof(a) for a in arguments]
    ok(hip.hipModuleLaunchKernel(m.function("mixed"), 1, 1, 1, 1, 1, 1, 0, None, addresses, None))
    print(download(y, 6).tolist())
    print(m.nothing(1, 1))
    """
    values = "[65.0, -5.0, 2.5, 7.0, 2.0, 9.0]"
    assert sim.lines(code) == ["hipSuccess", values, values, "hipSuccess"]


def test_blocks_run_on_every_thread(sim):
    """The result does not depend on how many threads run the blocks."""
    code = """
    m = Module()
    x = np.random.default_rng(0).random(100_001).astype(np.float32)
    dx, dy = upload(x), alloc(x.nbytes)
    m.copy(333, 64, ctypes.c_void_p(dx), ctypes.c_void_p(dy), i32(x.size))
    print((download(dy, x.size) == x).all())
    """
    assert sim.lines(code, HIPSIM_THREADS=1) == ["True"]
    assert sim.lines(code, HIPSIM_THREADS=7) == ["True"]


def test_name_expressions(sim):
    """A template's instance is compiled and found by the name that hipRTC gives it."""
    code = """
    m = Module()
    y = upload(np.arange(4, dtype=np.float32))
    f = m.function("doubled<float>")
    ok(hip.hipModuleLaunchKernel(f, 1, 1, 1, 4, 1, 1, 0, None, None, (ctypes.c_void_p(y),)))
    print(download(y, 4).tolist())
    """
    assert sim.lines(code) == ["[0.0, 2.0, 4.0, 6.0]"]
