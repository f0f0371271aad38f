"""The simulated MIOpen: what it refuses, what it lacks, and what is injected into it."""

from __future__ import annotations

import os

import pytest


BAD = "BadParm"


def test_problems_that_it_refuses(miopen) -> None:
    """Descriptors that disagree have MIOpen's status, and a line that says what is wrong."""
    done = miopen("""
handle, count = create(), ctypes.c_size_t()
X, W, Y = (1, 4, 6, 6), (8, 4, 3, 3), (1, 8, 4, 4)
def ask(x, w, y, *, kinds=("f32",) * 3, strides=(None,) * 3, pad=0, groups=1):
    by = made("CreateConvolutionDescriptor")
    good("InitConvolutionDescriptor", by, 0, pad, pad, 1, 1, 1, 1)
    good("SetConvolutionGroupCount", by, groups)
    x, w, y = (tensor(k, v, strides=s) for k, v, s in zip(kinds, (x, w, y), strides))
    print(call("ConvolutionForwardGetSolutionCount", handle, w, x, by, y, ref(count)))
ask(X, W, Y)
print(count.value)
ask(X, (8, 2, 3, 3), Y)
ask(X, (8, 2, 3, 3), Y, groups=3)
ask(X, W, (1, 8, 4, 5))
ask(X, W, Y, pad=1)
ask(X, (8, 4, 7, 7), Y)
ask((*X, 1), W, Y)
ask(X, W, Y, kinds=("f32", "f16", "f32"))
ask(X, W, Y, strides=((144, 36, 1, 6), None, None))
ask(X, W, Y, strides=((144, 1, 24, 4), None, None))
ask(X, W, Y, kinds=("i8",) * 3)
""")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["Success", "4", *(BAD,) * 9, "NotImplemented"]
    assert (
        "hipsim: miopenConvolutionForwardGetSolutionCount: miopenStatusBadParm: "
        "y is 1 x 8 x 4 x 5, the result is 1 x 8 x 4 x 4\n"
    ) in done.stderr


def test_descriptors_that_it_refuses(miopen_lines) -> None:
    """Numbers out of range; descriptors that are null, of another kind, unset or destroyed."""
    lines = miopen_lines("""
handle, n = create(), ctypes.c_size_t()
size, by, pool = (made(f"Create{kind}Descriptor") for kind in ("Tensor", "Convolution", "Pooling"))
def refused(name, *arguments):
    said = call(name, *arguments)
    if said != "BadParm":
        print(name, arguments, said)
SIZES, INIT = "Set4dTensorDescriptor", "InitConvolutionDescriptor"
refused(SIZES, size, 1, 1, 0, 2, 2)
refused(SIZES, size, 4, 1, 1, 1, 1)
refused(SIZES, None, 1, 1, 1, 1, 1)
refused(SIZES, by, 1, 1, 1, 1, 1)
refused("Set4dTensorDescriptorEx", size, 1, 1, 1, 2, 2, 4, 4, 0, 1)
refused("SetTensorDescriptor", size, 1, 4, None, None)
refused("GetTensorNumBytes", size, ref(n))
refused("SetConvolutionGroupCount", by, 1)
refused(INIT, by, 0, -1, 0, 1, 1, 1, 1)
refused(INIT, by, 2, 0, 0, 1, 1, 1, 1)
refused(INIT, by, 0, 0, 0, 0, 1, 1, 1)
refused(INIT, by, 0, 0, 0, 1, 1, 0, 1)
refused("Set2dPoolingDescriptor", pool, 0, 2, 2, 2, 0, 1, 1)
refused("Set2dPoolingDescriptor", pool, 3, 2, 2, 0, 0, 1, 1)
refused("SetPoolingIndexType", pool, 0)
good(INIT, by, 1, 0, 0, 1, 1, 1, 1)
refused("SetConvolutionGroupCount", by, 0)
refused("SetTransposeConvOutputPadding", by, -1, 0)
refused("SetTransposeConvNdOutputPadding", by, 3, ints((0, 0, 0)))
refused("SetConvolutionAttribute", by, 4, 0)
refused("SetConvolutionFindMode", by, 4)
COUNT = "ConvolutionForwardGetSolutionCount"
w, x, by, y = Convolution("f32", (1, 4, 6, 6), (8, 4, 3, 3)).problem
refused(COUNT, handle, w, size, by, y, ref(n))
refused(COUNT, handle, w, None, by, y, ref(n))
refused(COUNT, handle, w, P(12345), by, y, ref(n))
refused(COUNT, handle, w, x, made("CreateConvolutionDescriptor"), y, ref(n))
refused(COUNT, handle, w, x, by, y, None)
good("DestroyTensorDescriptor", size)
refused("DestroyTensorDescriptor", size)
refused("DestroyConvolutionDescriptor", P(77))
good("Destroy", handle)
refused(COUNT, handle, w, x, by, y, ref(n))
refused("Destroy", handle)
refused("SetStream", None, None)
refused("Create", None)
good("Set4dTensorDescriptorEx", x, 5, 2, 3, 4, 5, 90, 1, 15, 3)
good("GetTensorNumBytes", x, ref(n))
print(n.value)
""")
    assert lines == [str(2 * (90 + 2 + 3 * 15 + 4 * 3 + 1))]


def test_runs_that_it_refuses(miopen) -> None:
    """A workspace that is too small, a solution that is none, and null operands."""
    done = miopen("""
handle = create()
c = Convolution("f32", (1, 4, 6, 6), (8, 4, 3, 3))
for s in c.solutions(handle):
    if s.workspace:
        print(c.run(handle, s, zeros(8), s.workspace - 1), c.run(handle, s, P(0)))
s.id = 7
print(c.run(handle, s), c.compile(handle, 12))
s.id, c.x = 85, None
print(c.run(handle, s))
""")
    assert done.stdout.splitlines() == [*(f"{BAD} {BAD}",) * 3, BAD]
    assert "gemm wants a workspace of 2304 bytes" in done.stderr
    assert "solution 7 is none for this problem" in done.stderr


def test_one_thread_at_a_time(miopen) -> None:
    """A handle that another thread is in is refused, and serves again when that is out."""
    done = miopen(
        """
import threading
handle = create()
c = Convolution("f32", (1, 4, 6, 6), (8, 4, 3, 3))
direct, theirs, ours = c.solution(handle, DIRECT), [], []
while theirs != ["Success"]:  # who comes second is refused: at first that may be the other
    theirs.clear()
    thread = threading.Thread(target=lambda: theirs.append(c.run(handle, direct)))
    thread.start()
    while thread.is_alive() and "UnknownError" not in ours:
        ours.append(call("SetStream", handle, None))
    thread.join()
print(ours[-1], call("SetStream", handle, None))
""",
        HIPSIM_MIOPEN_COMPILE_MS=300,
    )
    assert done.stdout == "UnknownError Success\n", done.stderr
    assert "miopenSetStream: miopenStatusUnknownError: another thread is using" in done.stderr


def test_no_rocblas_for_the_architecture(miopen, miopen_lines, tmp_path) -> None:
    """The GEMM solver aborts as rocBLAS does, compiled before or not; others do not."""
    code = """
handle = create()
c = Convolution("f32", (1, 4, 6, 6), (8, 4, 3, 3))
for s in c.solutions(handle)[::-1]:
    print(s.algorithm, c.ACT(handle, s), flush=True)
"""
    compiled, run = (code.replace("ACT", act) for act in ("compile", "run"))
    assert miopen_lines(compiled) == ["1 Success", "5 Success", "0 Success", "3 Success"]
    for act in (compiled, run):
        done = miopen(act, ROCBLAS_TENSILE_LIBPATH=tmp_path)
        assert (done.returncode, done.stdout) == (-6, "1 Success\n5 Success\n")
        assert f"rocBLAS error: Cannot read {os.fspath(tmp_path)}/TensileLibrary.dat" in done.stderr
    spared = miopen_lines(run, ROCBLAS_TENSILE_LIBPATH=tmp_path, MIOPEN_DEBUG_CONV_GEMM=0)
    assert spared == ["1 Success", "5 Success", "3 Success"]


@pytest.mark.slow
def test_compilations(miopen_lines, tmp_path) -> None:
    """A solution of a problem is compiled once, which takes time, and then lies in a folder."""
    code = """
import time
handle = create()
c, other = (Convolution("f32", (n, 4, 6, 6), (8, 4, 3, 3)) for n in (1, 2))
began = time.monotonic()
print(c.compile(handle, c.solution(handle, DIRECT)), time.monotonic() - began >= 0.02)
for of, algorithm in itertools.product((c, c, other), (DIRECT, GEMM)):
    assert of.run(create(), of.solution(handle, algorithm)) == "Success" and of.right()
print(done("compile"))
"""

    def files(folder):
        return sum(path.is_file() for path in folder.rglob("*"))

    slow = {"HIPSIM_MIOPEN_COMPILE_MS": 20}
    assert miopen_lines(code, **slow) == ["Success True", "4"]
    assert files(tmp_path) == 4
    assert miopen_lines(code, HIPSIM_MIOPEN_COMPILE_MS=10**6)[1] == "0"
    assert miopen_lines(code, **slow, MIOPEN_DISABLE_CACHE=1) == ["Success True", "4"]
    home = tmp_path / "home"
    assert miopen_lines(code, MIOPEN_CUSTOM_CACHE_DIR="", HOME=home)[1] == "4"
    assert files(home / ".cache" / "miopen") == 4


def test_faults(miopen_lines) -> None:
    """Statuses that the environment or a test injects, and how often things were done."""
    code = """
handle = create()
c = Convolution("f32", (1, 4, 6, 6), (8, 4, 3, 3))
s = c.solution(handle, DIRECT)
print(*(c.run(handle, s) for _ in range(4)), done("convolution"))
inject = LIBRARY.hipsim_miopen_inject
print(inject(b"compile", b"1:4"), inject(b"nothing", b"1"), done("nothing"))
c = Convolution("f32", (1, 4, 5, 5), (8, 4, 3, 3))
print(c.run(handle, s), c.run(handle, s), done("compile"))
"""
    once = miopen_lines(code, HIPSIM_FAIL_CONVOLUTION=2)
    assert once == [
        *("Success InternalError Success Success 4", "0 -1 -1", "AllocFailed Success 2"),
    ]
    lasting = miopen_lines(code, HIPSIM_FAIL_CONVOLUTION="3+:4")
    assert lasting[0] == "Success Success AllocFailed AllocFailed 4"
