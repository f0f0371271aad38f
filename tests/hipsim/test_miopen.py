"""The simulated MIOpen: its signatures, its arithmetic and its queueing."""

from __future__ import annotations

import json
import re
from pathlib import Path


ROOT = Path(__file__).parents[2]
HEADER = ROOT / "tools/hipsim/miopen/miopen_api.h"
SIGNATURES = json.loads((ROOT / "tests/rocm_miopen/miopen_signatures.json").read_text())


def letter(parameter: str) -> str:
    """Of a type in the simulator's header."""
    pointer = r"\*|\b(miopen\w*(Handle|Descriptor)_t|hipStream_t)\b"
    for types, found in ((pointer, "P"), (r"\b(uint64_t|size_t)\b", "Q"), (r"\bbool\b", "?")):
        if re.search(types, parameter):
            return found
    assert re.search(r"\b(miopen\w+_t|int)\b", parameter), parameter
    return "i"


def test_signatures() -> None:
    """
    Each function of the library has the signature of MIOpen's own headers; none is missing.

    ``miopen_signatures.json`` has those of ROCm 6.4 in letters: ``i`` int32 or an enum, ``Q``
    uint64, ``?`` bool, ``P`` any pointer.
    """
    found = {}
    for match in re.finditer(
        r"HIPSIM_API\s+([\w ]+?[\w*]\s*\**)\s*\b(miopen\w+)\(([^)]*)\);", HEADER.read_text()
    ):
        result, name, parameters = match.groups()
        found[name] = "".join(map(letter, [result, *parameters.split(",")]))
    assert found == SIGNATURES


def test_names_and_versions(miopen_lines) -> None:
    """Versions and statuses are MIOpen's; what is not simulated is not there."""
    code = """
version = [ctypes.c_size_t() for _ in range(3)]
good("GetVersion", *map(ref, version))
print(*(number.value for number in version), ctypes.sizeof(Solution), ctypes.sizeof(Perf))
print(LIBRARY.miopenGetErrorString(3).decode(), hasattr(LIBRARY, "miopenRunSolution"))
handle, stream = P(), P()
print(call("CreateWithStream", ref(handle), P(12345)), call("GetStream", handle, ref(stream)))
print(stream.value)
"""
    old = miopen_lines(code, HIPSIM_HIP_VERSION="6.4")
    assert old == ["3 4 0 32 16", "miopenStatusBadParm False", "Success Success", "12345"]
    new = miopen_lines(code, HIPSIM_HIP_VERSION="7.0", HIPSIM_DEVICES=0)
    assert (new[0], new[2]) == ("3 5 0 32 16", "UnknownError BadParm")


def test_convolutions(miopen_lines, warp) -> None:
    """Every solution of every kind of convolution gives numpy's result, rounded once."""
    lines = miopen_lines(
        """
handle = create()
X, W = (2, 4, 7, 6), (6, 4, 3, 3)
cases = {
    "plain": (X, W, dict(pad=1)),
    "bare": (X, W, {}),
    "strided": (X, W, dict(stride=(2, 3))),
    "dilated": (X, W, dict(pad=(2, 1), dilation=(2, 1))),
    "pointwise": (X, (6, 4, 1, 1), {}),
    "padded": (X, (6, 4, 1, 1), dict(pad=1, stride=2)),
    "grouped": (X, (6, 2, 3, 2), dict(groups=2, pad=1)),
    "depthwise": (X, (4, 1, 3, 3), dict(groups=4)),
    "line": ((2, 3, 1, 9), (5, 3, 1, 3), dict(pad=(0, 1))),
    "space": ((1, 2, 4, 5, 3), (3, 2, 2, 3, 2), dict(pad=1, stride=(1, 2, 1))),
    "transposed": (X, (4, 3, 3, 3), dict(pad=1, stride=2, extra=1)),
    "back in groups": (X, (4, 3, 3, 2), dict(groups=2, dilation=(2, 1), extra=0)),
    "back in space": ((1, 2, 2, 3, 2), (2, 3, 3, 2, 2), dict(pad=(1, 0, 0), stride=2, extra=0)),
}
offered = {}
for (what, (x, w, more)), kind, last in itertools.product(cases.items(), TYPES, (False, True)):
    c = Convolution(kind, x, w, last=last, **more)
    for solution in c.solutions(handle):
        c.clear()
        said = c.run(handle, solution)
        if said != "Success" or not c.right():
            print("WRONG", what, kind, last, solution.algorithm, said)
        offered.setdefault(f"{what} {kind}", {})[solution.algorithm] = solution.workspace
for key in ("plain f32", "plain f64", "plain bf16", "strided f16", "pointwise f32"):
    print(key, offered[key])
print("transposed f16", offered["transposed f16"])
""",
        warp=warp,
    )
    assert lines == [
        f"plain f32 {{3: 0, 0: {4 * 36 * 42}, 5: {4 * 6 * 36}, 1: 0}}",
        "plain f64 {1: 0}",
        f"plain bf16 {{0: {2 * 36 * 42}, 5: {2 * 6 * 36}, 1: 0}}",
        f"strided f16 {{0: {2 * 36 * 3 * 2}, 5: {2 * 6 * 36}, 1: 0}}",
        "pointwise f32 {0: 0, 5: 96, 1: 0}",
        f"transposed f16 {{0: {2 * 36 * 14 * 12}, 5: {2 * 3 * 36}, 1: 0}}",
    ]


def test_infinite_weights_beside_padding(miopen_lines) -> None:
    """As with MIOpen: columns of padding make NaNs of them, and so does Winograd; others do not."""
    lines = miopen_lines("""
handle = create()
for extra in (None, 0):
    c = Convolution("f32", (1, 1, 3, 3), (1, 1, 3, 3), pad=1, extra=extra)
    c.x, c.w = (lay(np.full((1, 1, 3, 3), value), "f32") for value in (1, np.inf))
    for solution in c.solutions(handle):
        c.clear()
        c.run(handle, solution)
        print(solution.algorithm, np.isnan(c.result()).any())
""")
    plain, transposed = (
        ["3 True", "0 True", "5 False", "1 False"],
        ["0 False", "5 False", "1 False"],
    )
    assert lines == [*plain, *transposed]


def test_beside_rocblas(miopen_lines) -> None:
    """Both libraries have a kernel of one name, and each runs its own."""
    lines = miopen_lines("""
import rocblas
x, at = np.arange(16, dtype=np.float32).reshape(4, 4), alloc(64)
gemm, handle = rocblas.create(), create()
c = Convolution("f32", (1, 4, 6, 6), (8, 4, 3, 3))
for _ in range(2):
    print(rocblas.gemm(gemm, (4, 4, 4), upload(x), upload(x), at))
    print(np.array_equal(download(at, (4, 4)), x @ x))
    for solution in c.solutions(handle):
        c.clear()
        print(c.run(handle, solution), c.right())
""")
    assert lines == ["success", "True", *("Success True",) * 4] * 2


def test_queue_workspace_and_capture(miopen_lines) -> None:
    """Runs are queued on the handle's stream, captured once compiled, and scribble all over."""
    lines = miopen_lines("""
flow = stream()
handle = create(flow)
c = Convolution("f32", (2, 4, 8, 8), (6, 4, 3, 3), pad=1)
gemm, direct = (c.solution(handle, algorithm) for algorithm in (GEMM, DIRECT))
mode = hip.hipStreamCaptureMode.hipStreamCaptureModeThreadLocal
workspace = zeros(2 * gemm.workspace)
ok(hip.hipStreamBeginCapture(flow, mode))
print(c.run(handle, gemm, workspace))
hip.hipStreamEndCapture(flow)
print(c.compile(handle, gemm))
before = count("malloc")
ok(hip.hipStreamBeginCapture(flow, mode))
print(c.run(handle, gemm, workspace, 2 * gemm.workspace), count("malloc") - before)
graph = ok(hip.hipStreamEndCapture(flow))
print(np.isnan(c.result()).all())
ok(hip.hipGraphLaunch(ok(hip.hipGraphInstantiateWithFlags(graph, 0)), flow))
ok(hip.hipStreamSynchronize(flow))
print(c.right(), hex(download(workspace, (gemm.workspace // 2,), np.uint32)[-1]))
print(c.run(handle, direct, workspace, 6))
ok(hip.hipStreamSynchronize(flow))
print(c.right(), hex(download(workspace, (1,), np.uint32)[0]))
c.x += 1 << 20
print(c.run(handle, direct), hip.hipStreamSynchronize(flow)[0].name)
""")
    assert lines == [
        *("InternalError", "Success", "Success 0", "True", "True 0x7ffafffa"),
        *("Success", "True 0x7ffafffa", "Success hipErrorIllegalAddress"),
    ]


def test_find_mode_and_bias(miopen_lines) -> None:
    """A find tries what its workspace allows; then what it found runs, and a bias after it."""
    code = """
import time
handle = create()
c = Convolution("f16", (1, 4, 6, 6), (6, 4, 3, 3), pad=1)
size = ctypes.c_size_t()
good("ConvolutionForwardGetWorkSpaceSize", handle, *c.problem, ref(size))
workspace = zeros(size.value), size.value
print(size.value, c.forward(handle, GEMM, *workspace))
began = time.monotonic()
print(c.find(handle, *workspace), time.monotonic() - began >= 0.05, c.right())
print(c.find(handle, workspace[0], 0), done("find"))
print(*(c.forward(handle, algorithm, *workspace) for algorithm in (WINOGRAD, GEMM)))
print(c.forward(handle, WINOGRAD, *workspace, alpha=ZERO), c.right())
c.truth += np.arange(6)[:, None, None]
b, at = tensor("f16", (1, 6, 1, 1)), lay(np.arange(6), "f16")
print(call("ConvolutionForwardBias", handle, ONE, b, at, ZERO, c.tensors[2], c.y), c.right())
b, y = tensor("bf16", (1, 6, 1, 1)), tensor("bf16", (1, 6, 6, 6))
print(call("ConvolutionForwardBias", handle, ONE, b, at, ZERO, y, c.y), c.right())
for mode in (1, 2):
    good("SetConvolutionFindMode", c.descriptor, mode)
    print(*c.find(handle, *workspace))
"""
    columns, weights = 2 * 36 * 36, 2 * 6 * 36
    slow = miopen_lines(code, HIPSIM_MIOPEN_FIND_MS=50)
    assert slow == [
        f"{columns} UnknownError",
        f"{{3: 0, 0: {columns}, 5: {weights}, 1: 0}} True True",
        "{3: 0, 1: 0} 2",
        "Success Success",
        *("NotImplemented True", "Success True", "NotImplemented True"),
        *("3 0 5 1", "3"),
    ]
    fast = miopen_lines(code, MIOPEN_FIND_MODE="FAST")
    assert fast[1:4] == ["{3: 0} False True", "{3: 0} 2", "Success UnknownError"]
    assert fast[-2:] == slow[-2:]


def test_poolings(miopen_lines, warp) -> None:
    """Maxima and both means, of planes and of space; of f16 and f32 only, as MIOpen has them."""
    lines = miopen_lines(
        """
handle = create()
x = np.random.default_rng(3).integers(-9, 9, (2, 3, 7, 6)).astype(np.float64)
shapes = (((2, 2), (2, 2), (0, 0)), ((3, 2), (2, 1), (1, 1)))
for what in itertools.product(("f16", "f32"), (0, 1, 2), shapes, (False, True)):
    kind, mode, shape, last = what
    p = Pooling(kind, mode, x, *shape, last=last)
    said = p.run(handle)
    if said != "Success" or not p.right():
        print("WRONG", what, said)
sizes, bytes = [ctypes.c_int() for _ in range(4)], ctypes.c_size_t()
good("GetPoolingForwardOutputDim", p.descriptor, p.tensors[0], *map(ref, sizes))
print(*(size.value for size in sizes), p.truth.shape)
p = Pooling("f32", 2, x.reshape(2, 3, 7, 2, 3), (2, 2, 2), (2, 1, 1), (1, 0, 1))
print(p.run(handle), p.right())
p = Pooling("f32", 0, x, *shapes[0])
print(p.run(handle, backward=True))
good("SetPoolingIndexType", p.descriptor, 2)
good("PoolingGetWorkSpaceSizeV2", p.descriptor, p.tensors[1], ref(bytes))
print(bytes.value == 4 * p.truth.size)
print(*(Pooling(kind, 0, x, *shapes[0]).run(handle) for kind in ("bf16", "f64")))
p = Pooling("f32", 0, np.array([[[[np.nan, 1], [-np.inf, np.nan]]]]), (2, 1), (1, 1), (0, 0))
print(p.run(handle), p.result().ravel(), done("pooling"))
""",
        warp=warp,
    )
    assert lines == [
        "2 3 4 7 (2, 3, 4, 7)",
        *("Success True", "NotImplemented", "True", "NotImplemented NotImplemented"),
        "Success [-3.40282347e+38  1.00000000e+00] 29",
    ]
