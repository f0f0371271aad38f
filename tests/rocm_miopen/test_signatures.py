"""
What is called is MIOpen as its own headers declare it.

``miopen_signatures.json`` has the signatures of ROCm 6.4's headers, which a C++ compiler has
checked against them; tests/hipsim holds the simulator to the same.
"""

from __future__ import annotations

import ctypes
import json
import re
from pathlib import Path

from propolis_rocm_miopen import _ffi
from propolis_rocm_miopen import errors
from propolis_rocm_miopen._descriptors import KINDS


SIGNATURES = json.loads((Path(__file__).parent / "miopen_signatures.json").read_text())
HEADER = Path(__file__).parents[2] / "tools/hipsim/miopen/miopen_api.h"


def test_what_the_plugin_calls(rocm) -> None:
    """Each function that the plugin declares has the headers' signature, and the library has it."""
    assert {name: SIGNATURES.get(name) for name in _ffi.SIGNATURES} == _ffi.SIGNATURES
    assert all(map(_ffi.library().has, _ffi.SIGNATURES))


def test_numbers() -> None:
    """The plugin has the header's numbers for statuses, types, algorithms and modes."""
    numbers = {k: int(v) for k, v in re.findall(r"(\w+) = (\d+),", HEADER.read_text())}
    names = [f"miopenStatus{name}" for name in errors.NAMES]
    assert [numbers.get(name, 0) for name in names] == list(range(len(names)))
    wanted = {"f16": "miopenHalf", "f32": "miopenFloat", "bf16": "miopenBFloat16"}
    assert {d.name: kind for d, kind in KINDS.items()} == {
        name: numbers[theirs] for name, theirs in wanted.items()
    }
    algorithms = ("GEMM", "Direct", "FFT", "Winograd", "ImplicitGEMM")
    assert [numbers[f"miopenConvolutionFwdAlgo{name}"] for name in algorithms] == [*_ffi.ALGORITHMS]
    assert numbers["MIOPEN_CONVOLUTION_ATTRIB_DETERMINISTIC"] == _ffi.DETERMINISTIC
    assert numbers["miopenConvolutionFindModeNormal"] == _ffi.FIND_NORMALLY
    assert _ffi.CONVOLUTION == 0
    assert _ffi.TRANSPOSE == 1


def test_structures() -> None:
    """They are laid out as C lays them out."""
    assert (ctypes.sizeof(_ffi.Solution), ctypes.sizeof(_ffi.Measured)) == (32, 16)
    solution, measured = _ffi.Solution, _ffi.Measured
    assert (solution.workspace_size.offset, solution.solution_id.offset) == (8, 16)
    assert (solution.algorithm.offset, measured.time.offset, measured.memory.offset) == (24, 4, 8)
