"""
What is called, and what the simulator offers, is rocBLAS as its own headers declare it.

``rocblas_signatures.json`` has the signatures of ROCm 6.4's headers, which a C++ compiler has
checked against them: result and arguments, ``i`` int32 or an enum, ``I`` uint32, ``q`` int64, ``Q``
uint64, ``P`` any pointer, ``v`` nothing.
"""

from __future__ import annotations

import ctypes
import json
import re
from pathlib import Path

from propolis_rocm_blas import _ffi
from propolis_rocm_blas import errors
from propolis_rocm_hip.vendor import LETTERS


HEADER = Path(__file__).parents[2] / "tools/hipsim/rocblas/rocblas_api.h"
SIGNATURES = json.loads((Path(__file__).parent / "rocblas_signatures.json").read_text())
SIZES = {"i": 4, "I": 4, "q": 8, "Q": 8, "f": 4, "d": 8, "?": 1, "P": 8}


def test_what_the_plugin_calls() -> None:
    """Each function that the plugin declares has the headers' signature."""
    assert {name: SIGNATURES.get(name) for name in _ffi.SIGNATURES} == _ffi.SIGNATURES


def test_letters() -> None:
    """A letter stands for a C type of its width."""
    assert {"v": None} == {k: v for k, v in LETTERS.items() if v is None}
    assert {k: ctypes.sizeof(v) for k, v in LETTERS.items() if v} == SIZES


def letter(parameter: str) -> str:
    """Of a type in the simulator's header."""
    if "*" in parameter or re.search(r"\b(rocblas_handle|hipStream_t)\b", parameter):
        return "P"
    if "rocblas_stride" in parameter:
        return "q"
    if "size_t" in parameter:
        return "Q"
    if "uint32_t" in parameter:
        return "I"
    if parameter.strip() == "void":
        return "v"
    assert re.search(r"\b(rocblas_\w+|(std::)?int32_t)\b", parameter), parameter
    return "i"


def test_what_the_simulator_offers() -> None:
    """Each function of the simulated library has the headers' signature; none is missing."""
    found = {}
    for match in re.finditer(
        r"HIPSIM_API\s+([\w ]+?[\w*]\s*\**)\s*\b(rocblas_\w+)\(([^)]*)\);", HEADER.read_text()
    ):
        result, name, parameters = match.groups()
        types = [result, *(p for p in parameters.split(",") if p.strip())]
        found[name] = "".join(map(letter, types))
    assert found == SIGNATURES


def test_numbers() -> None:
    """The plugin and the simulator have the same numbers for operations, types and statuses."""
    text = HEADER.read_text()
    numbers = {k: int(v) for k, v in re.findall(r"rocblas_(\w+) = (\d+)", text)}
    assert [numbers[f"status_{name}"] for name in errors.NAMES] == list(range(len(errors.NAMES)))
    assert (numbers["operation_none"], numbers["operation_transpose"]) == (
        _ffi.PLAIN,
        _ffi.TRANSPOSED,
    )
    types = [numbers[f"datatype_{name}_r"] for name in ("f16", "f32", "f64", "bf16")]
    assert types == [_ffi.F16, _ffi.F32, _ffi.F64, _ffi.BF16]
    assert numbers["pointer_mode_host"] == _ffi.POINTERS_ON_HOST
    assert numbers["atomics_not_allowed"] == _ffi.ATOMICS_NOT_ALLOWED
    assert numbers["gemm_algo_standard"] == _ffi.STANDARD


def test_the_simulator_exports_them(rocm) -> None:
    """The library that is built has every function, and says so of those that it has not."""
    library = _ffi.library()
    assert all(map(library.has, SIGNATURES))
    assert not library.has("rocblas_gemm_ex3")
