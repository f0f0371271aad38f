"""
A few words over hip-python for the scripts that the tests run in processes of their own.

Not a test and not imported by pytest: what hipsim must detect often ends the process.
"""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path

import numpy as np
from rocm.bindings import hip
from rocm.bindings import hiprtc


KIND = hip.hipMemcpyKind
NON_BLOCKING = 1
LIBRARY = ctypes.CDLL(str(Path(os.environ["ROCM_PATH"]) / "lib" / "libamdhip64.so"))
LIBRARY.hipsim_last_report.restype = ctypes.c_char_p
LIBRARY.hipsim_count.restype = ctypes.c_longlong


def name(result):
    """The error's name of what a hip-python call gave."""
    return result[0].name


def ok(result):
    """What a call gave beside success; the process ends when it failed."""
    error, *values = result
    if int(error) != 0:
        sys.exit(f"unexpected {error.name}")
    return values[0] if len(values) == 1 else tuple(values)


def count(what):
    """How often the simulator has seen something; see tools/hipsim/host/inspect.cpp."""
    return LIBRARY.hipsim_count(what.encode())


def last_report():
    """The last violation that the simulator has reported."""
    return LIBRARY.hipsim_last_report().decode()


def alloc(size):
    """The address of so many bytes of device memory."""
    return int(ok(hip.hipMalloc(size)))


def upload(array):
    """A copy of the array in device memory, as an address."""
    array = np.ascontiguousarray(array)
    address = alloc(array.nbytes)
    ok(hip.hipMemcpy(address, array, array.nbytes, KIND.hipMemcpyHostToDevice))
    return address


def download(address, shape, dtype=np.float32):
    """What lies at an address of device memory."""
    array = np.empty(shape, dtype)
    ok(hip.hipMemcpy(array, address, array.nbytes, KIND.hipMemcpyDeviceToHost))
    return array


def pinned(shape, dtype=np.float32):
    """An array in pinned host memory, and its address."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    address = int(ok(hip.hipHostMalloc(size, 0)))
    return np.ctypeslib.as_array((ctypes.c_char * size).from_address(address)).view(dtype).reshape(
        shape
    ), address


def stream(flags=NON_BLOCKING):
    """A new stream."""
    return ok(hip.hipStreamCreateWithFlags(flags))


def compile(source, *options, headers=None, expressions=()):  # noqa: A001
    """The result, the log and the code of a hipRTC compilation."""
    headers = headers or {}
    texts = [text.encode() for text in headers.values()]
    names = [name.encode() for name in headers]
    program = ok(
        hiprtc.hiprtcCreateProgram(source.encode(), b"test.hip", len(headers), texts, names)
    )
    for expression in expressions:
        ok(hiprtc.hiprtcAddNameExpression(program, expression.encode()))
    (result,) = hiprtc.hiprtcCompileProgram(
        program, len(options), [option.encode() for option in options]
    )
    log = bytearray(ok(hiprtc.hiprtcGetProgramLogSize(program)))
    ok(hiprtc.hiprtcGetProgramLog(program, log))
    code = bytearray()
    if int(result) == 0:
        code = bytearray(ok(hiprtc.hiprtcGetCodeSize(program)))
        ok(hiprtc.hiprtcGetCode(program, code))
    return result.name, log.rstrip(b"\0").decode(), code


class Module:
    """Kernels by attribute: ``module.name(grid, block, *arguments, shared=0, on=None)``."""

    def __init__(self, code=None):
        path = os.environ["HIPSIM_TEST_MODULE"].encode()
        self.handle = ok(hip.hipModuleLoadData(code) if code else hip.hipModuleLoad(path))

    def function(self, kernel):
        """The kernel's handle."""
        return ok(hip.hipModuleGetFunction(self.handle, kernel.encode()))

    def __getattr__(self, kernel):
        function = self.function(kernel)

        def launch(grid, block, *arguments, shared=0, on=None):
            grid = ((grid,) if isinstance(grid, int) else tuple(grid)) + (1, 1)
            block = ((block,) if isinstance(block, int) else tuple(block)) + (1, 1)
            return name(
                hip.hipModuleLaunchKernel(
                    function, *grid[:3], *block[:3], shared, on, None, arguments
                )
            )

        self.__dict__[kernel] = launch
        return launch


i32 = ctypes.c_int
i64 = ctypes.c_longlong
f32 = ctypes.c_float
