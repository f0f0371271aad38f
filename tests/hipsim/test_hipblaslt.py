"""The simulated hipBLASLt: its arithmetic, its queueing, and what it is strict about."""

from __future__ import annotations


START = "import hipblaslt as lt\nfrom hipblaslt import I, P, Q, S, Matmul, create\n"


def test_products(sim, warp) -> None:
    """Each combination of types, both operations, batches, alpha and beta: as numpy has them."""
    lines = sim.lines(
        START
        + """
import ml_dtypes
TYPES = {"f16": np.float16, "f32": np.float32, "bf16": ml_dtypes.bfloat16}
rng = np.random.default_rng(1)
handle = create()
scratch = alloc(1 << 16)
for kind, out in (("f32", "f32"), ("f16", "f16"), ("f16", "f32"), ("bf16", "bf16"),
                  ("bf16", "f32")):
    for trans in ((111, 111), (112, 111), (111, 112), (112, 112)):
        a = rng.integers(-4, 4, (3, 6, 5)).astype(TYPES[kind])  # batches of columns
        b = rng.integers(-4, 4, (3, 5, 6)).astype(TYPES[kind])
        c = rng.integers(-4, 4, (3, 5, 5)).astype(TYPES[out])
        if trans[0] == 112: a = np.ascontiguousarray(a.transpose(0, 2, 1))
        if trans[1] == 112: b = np.ascontiguousarray(b.transpose(0, 2, 1))
        d = upload(c)
        asked = Matmul(handle, (5, 5, 6), kind, out=out, trans=trans, batches=3, steps=(30, 30, 25))
        said = asked.run(upload(a), upload(b), d, alpha=2.0, beta=-1.0,
                         workspace=(scratch, asked.wants))
        x, y = (m.astype(np.float64).transpose(0, 2, 1) for m in (a, b))
        if trans[0] == 112: x = x.transpose(0, 2, 1)
        if trans[1] == 112: y = y.transpose(0, 2, 1)
        truth = 2 * (x @ y).transpose(0, 2, 1) - c.astype(np.float64)
        found = download(d, c.shape, c.dtype).astype(np.float64)
        truth = truth.astype(TYPES[out]).astype(np.float64)
        if (asked.heuristic, asked.count, said) != (0, 1, 0) or not np.array_equal(found, truth):
            print(kind, out, trans, asked.heuristic, said, found, truth)
print(asked.wants, hex(download(scratch, (1 << 14,), np.uint32)[-1]) != "0x0")
""",
        warp=warp,
    )
    assert lines == ["65536 True"]


def test_what_it_refuses(sim) -> None:
    """A wrong call has hipBLASLt's own status, and a line that says what is wrong."""
    done = sim.run(
        START
        + """
m, d = upload(np.ones((8, 8), np.float32)), alloc(256)
handle = create()
at = P()
layout = lt.LIBRARY.hipblasLtMatrixLayoutCreate
print(layout(ctypes.byref(at), I(0), Q(4), Q(4), S(3)),
      layout(ctypes.byref(at), I(28), Q(4), Q(4), S(4)))
asked = Matmul(handle, (4, 4, 4), workspace=0)
print(asked.wants, asked.run(m, m, d))
other = Matmul(handle, (4, 4, 5)).run(m, m, d, algo=asked.found)
print(asked.run(0, m, d), asked.run(m, m, d, algo=P()), other)
wide = Matmul(handle, (4, 4, 4))
print(wide.run(m, m, d), wide.run(m, m, d, workspace=(d + 4, 65536)))
print(Matmul(handle, (4, 4, 4), compute=7).heuristic)
print(Matmul(P(), (4, 4, 4)).heuristic, lt.set_("MatrixLayout", wide.layouts[0], 0, Q(1)))
print(lt.LIBRARY.hipblasLtMatrixLayoutDestroy(wide.layouts[0]), wide.run(m, m, d))
print(lt.LIBRARY.hipblasLtDestroy(handle), lt.LIBRARY.hipblasLtDestroy(handle))
""",
        warp=32,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        *("3 7", "0 0", "3 7 3", "3 3", "7", "1 3", "0 3", "0 1"),
    ]
    assert "the leading dimension is 3, at least 4 is needed" in done.stderr
    assert "the algorithm is another problem's" in done.stderr
    assert "a has no layout, or one that was destroyed" in done.stderr


def test_no_code_is_no_end(sim, tmp_path) -> None:
    """Without files for the device it says so and knows no algorithm, as the real one does."""
    done = sim.run(
        START + "asked = Matmul(create(), (4, 4, 4))\nprint(asked.heuristic, asked.count)\n",
        warp=32,
        HIPBLASLT_TENSILE_LIBPATH=str(tmp_path),
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["3 0"]
    assert f"rocblaslt error: Cannot read {tmp_path}/TensileLibrary_lazy_hipsim32" in done.stderr
