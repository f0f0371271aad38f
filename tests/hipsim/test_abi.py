"""The simulator's interface is HIP's, as hip-python declares it and Debian's headers do."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest


SOURCES = Path(__file__).parents[2] / "tools" / "hipsim"


def exported():
    """Of every function that the simulator exports: its name and parameters' types."""
    found = {}
    for path in [*SOURCES.glob("common/*.cpp"), *SOURCES.glob("host/*.cpp")]:
        for match in re.finditer(
            r"HIPSIM_API\s+([\w ]+?[\w*]\s*\**)\s*(hip\w+)\(([^)]*)\)\s*[{;]", path.read_text()
        ):
            result, name, parameters = match.groups()
            found[name] = [result, *(p for p in parameters.split(",") if p.strip())]
    return found


def declared():
    """The same of hip-python's declarations."""
    bindings = pytest.importorskip("rocm.bindings.hip", reason="needs hip-python")
    found = {}
    for name in ("cyhip.pxd", "cyhiprtc.pxd"):
        text = (Path(bindings.__file__).parent / name).read_text()
        for match in re.finditer(r"^cdef ([\w ]+?[\w*]) ?(hip\w+)\((.*?)\)", text, re.MULTILINE):
            result, function, parameters = match.groups()
            found[function] = [result, *(p for p in parameters.split(",") if p.strip())]
    return found


# How a value travels: handles and arrays are pointers, enums are ints.
HANDLES = {
    f"hip{word}_t"
    for word in (
        *("Stream", "Event", "Module", "Function", "Graph", "GraphNode", "GraphExec"),
        *("MemPool", "Library", "Kernel", "Deviceptr", "HostFn", "StreamCallback"),
    )
} | {"hiprtcProgram"}
WORDS = {
    "size_t": "u64",
    "std::size_t": "u64",
    "unsigned long long": "u64",
    "uint64_t": "u64",
    "unsigned int": "u32",
    "unsigned": "u32",
    "int": "i32",
    "unsigned short": "u16",
    "unsigned char": "u8",
    "float": "f32",
}


def travels(parameter):
    """How the calling convention passes a parameter of that type."""
    text = parameter.strip().replace("const ", "")
    if "*" in text:
        return "pointer"
    for width in (3, 2, 1):
        word = " ".join(text.split()[:width])
        if word in HANDLES:
            return "pointer"
        if word in WORDS:
            return WORDS[word]
    word = text.split()[0]
    if word.startswith(("hip", "HIP")):
        return "i32"
    raise AssertionError(parameter)


# R0600 is what hipGetDeviceProperties has been called since ROCm 6.
RENAMED = {"hipGetDevicePropertiesR0600": "hipGetDeviceProperties"}


def test_signatures():
    """Every exported function takes and gives what hip-python passes and expects."""
    ours, theirs = exported(), declared()
    assert len(ours) > 110
    for name, signature in ours.items():
        if name.startswith("hipsim_"):
            continue
        wanted = theirs[RENAMED.get(name, name)]
        assert [travels(p) for p in signature] == [travels(p) for p in wanted], name


def test_everything_that_is_written_is_exported(tree):
    """What the sources define the libraries export, so that hip-python finds it."""
    if shutil.which("nm") is None:
        pytest.skip("needs nm")
    symbols = set()
    for library in ("libamdhip64.so", "libhiprtc.so"):
        listed = subprocess.run(
            ["nm", "-D", "--defined-only", tree / "lib" / library],  # noqa: S607
            capture_output=True,
            text=True,
            check=True,
        )
        symbols |= {line.split()[-1] for line in listed.stdout.splitlines()}
    assert set(exported()) <= symbols


def constants():
    """The enumerators that our header gives a value."""
    text = (SOURCES / "common" / "hipsim_api.h").read_text()
    text += (SOURCES / "common" / "hiprtc_api.h").read_text()
    return {
        name: int(value)
        for name, value in re.findall(r"^  (hip\w+|HIP\w+) = (\d+),$", text, re.MULTILINE)
    }


@pytest.mark.slow
def test_constants(sim):
    """Error codes and other enumerators have hip-python's values."""
    lines = sim.lines("""
        import enum
        for module in (hip, hiprtc):
            for kind in vars(module).values():
                if isinstance(kind, type) and issubclass(kind, enum.IntEnum):
                    for name, member in kind.__members__.items():
                        print(name, int(member))
    """)
    theirs = dict(line.split() for line in lines)
    ours = constants()
    assert len(ours) > 90
    assert {name: int(theirs[name]) for name in ours} == ours


@pytest.mark.slow
def test_properties(sim):
    """hipDeviceProp_t has hip-python's layout: what is filled in is found at its place."""
    lines = sim.lines(
        """
        p = ok(hip.hipGetDeviceProperties(0))
        print(p.c_sizeof(), p.gcnArchName, p.name, p.warpSize, p.totalGlobalMem)
        print(p.sharedMemPerBlock, p.maxThreadsPerBlock, list(p.maxThreadsDim), p.major, p.minor)
        print(p.multiProcessorCount, p.pciBusID, p.concurrentKernels, p.memoryPoolsSupported)
        print(p.maxSharedMemoryPerMultiProcessor, p.clockInstructionRate, p.arch.hasWarpShuffle,
              p.isLargeBar, p.asicRevision, p.integrated, p.maxThreadsPerMultiProcessor)
        A = hip.hipDeviceAttribute_t
        print([ok(hip.hipDeviceGetAttribute(a, 0)) for a in (
            A.hipDeviceAttributeWarpSize, A.hipDeviceAttributeMultiprocessorCount,
            A.hipDeviceAttributeMaxThreadsPerBlock, A.hipDeviceAttributeIntegrated,
            A.hipDeviceAttributeMaxSharedMemoryPerBlock, A.hipDeviceAttributeMemoryPoolsSupported,
            A.hipDeviceAttributePciBusId, A.hipDeviceAttributeMaxSharedMemoryPerMultiprocessor,
        )])
        print(name(hip.hipSetDevice(1)))
        """,
        warp=64,
        HIPSIM_MEMORY=1 << 24,
        HIPSIM_THREADS=3,
    )
    assert lines == [
        "1472 hipsim64 HIP simulator (host, warp 64) 64 16777216",
        "65536 1024 [1024, 1024, 1024] 1 0",
        "3 1 1 1",
        "65536 1000000 1 0 0 0 2048",
        "[64, 3, 1024, 0, 65536, 1, 1, 65536]",
        "hipErrorInvalidDevice",
    ]


def test_error_names(sim):
    """Every error that the simulator can give has HIP's own name and a text."""
    names = [name for name in constants() if name.startswith(("hipError", "hipSuccess"))]
    lines = sim.lines(f"""
        for name in {names}:
            code = hip.hipError_t[name]
            assert repr(ok(hip.hipGetErrorName(code))) == name, name
            assert len(repr(ok(hip.hipGetErrorString(code)))) > 3
        print(name)
        hip.hipSetDevice(9)
        print(hip.hipPeekAtLastError()[0].name, hip.hipGetLastError()[0].name,
              hip.hipGetLastError()[0].name)
    """)
    assert lines == [names[-1], "hipErrorInvalidDevice hipErrorInvalidDevice hipSuccess"]


def test_functions_that_are_not_simulated(sim):
    """hip-python says of a function that the simulator lacks that it is not there."""
    lines = sim.lines("""
        print(hip.has_symbol("hipMalloc"), hip.has_symbol("hipMemMap"))
        try:
            hip.hipMemUnmap(0, 5)
        except RuntimeError as error:
            print("undefined symbol: hipMemUnmap" in str(error))
    """)
    assert lines == ["True False", "True"]


def test_constants_of_debians_headers(tmp_path):
    """HIP's own headers, of whatever version Debian has, agree about the enumerators they know."""
    headers = Path("/usr/include/hip/hip_runtime_api.h")
    if not headers.exists():
        pytest.skip("needs Debian's libamdhip64-dev")
    text = headers.read_text() + Path("/usr/include/hip/driver_types.h").read_text()
    renumbered = ("hipMemoryType", "hipGraphNodeType")  # by ROCm 6; Debian's may be older
    known = [
        name
        for name in constants()
        if re.search(rf"\b{name}\b", text) and not name.startswith(renumbered)
    ]
    assert len(known) > 60
    source = tmp_path / "check.cpp"
    source.write_text(
        "#define __HIP_PLATFORM_AMD__\n#include <hip/hip_runtime_api.h>\n"
        + "".join(f"static_assert({name} == {constants()[name]});\n" for name in known)
    )
    done = subprocess.run(
        ["c++", "-std=c++20", "-fsyntax-only", source],  # noqa: S607
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
