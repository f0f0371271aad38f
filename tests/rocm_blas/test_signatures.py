"""
What is called, and what the simulator offers, is rocBLAS and hipBLASLt as their own headers say.

``rocblas_signatures.json`` has the signatures of ROCm 6.4's headers, ``hipblaslt_signatures.json``
those of hipBLASLt 7.1.1 as Debian has it, which a C++ compiler has checked against them: result and
arguments, ``i`` int32 or an enum, ``I`` uint32, ``q`` int64, ``Q`` uint64, ``P`` any pointer, ``v``
nothing.
"""

from __future__ import annotations

import ctypes
import json
import re
from pathlib import Path

import pytest

from propolis_rocm_blas import _ffi
from propolis_rocm_blas import _ffi_lt
from propolis_rocm_blas import errors
from propolis_rocm_hip.vendor import LETTERS


SOURCES = Path(__file__).parents[2] / "tools/hipsim"
SIZES = {"i": 4, "I": 4, "q": 8, "Q": 8, "f": 4, "d": 8, "?": 1, "P": 8}
BOTH = pytest.mark.parametrize(
    ("name", "ffi", "prefix"),
    [("rocblas", _ffi, "rocblas_"), ("hipblaslt", _ffi_lt, "hipblasLt")],
    ids=["rocblas", "hipblaslt"],
)


def signatures(name):
    """Those of a library's own headers."""
    return json.loads((Path(__file__).parent / f"{name}_signatures.json").read_text())


def header(name):
    """The simulator's."""
    return (SOURCES / name / f"{name}_api.h").read_text()


@BOTH
def test_what_the_plugin_calls(name, ffi, prefix) -> None:
    """Each function that the plugin declares has the headers' signature."""
    del prefix
    found = signatures(name)
    assert {f: found.get(f) for f in ffi.SIGNATURES} == ffi.SIGNATURES


def test_letters() -> None:
    """A letter stands for a C type of its width."""
    assert {"v": None} == {k: v for k, v in LETTERS.items() if v is None}
    assert {k: ctypes.sizeof(v) for k, v in LETTERS.items() if v} == SIZES


def letter(parameter: str) -> str:
    """Of a type in the simulator's header."""
    if "*" in parameter or re.search(
        r"\b(rocblas_handle|hipStream_t|hipblasLt(Handle|MatmulDesc|MatrixLayout|MatmulPreference)_t)\b",
        parameter,
    ):
        return "P"
    if re.search(r"\b(rocblas_stride|std::int64_t)\b", parameter):
        return "q"
    if re.search(r"\b(std::size_t|std::uint64_t)\b", parameter):
        return "Q"
    if "uint32_t" in parameter:
        return "I"
    if parameter.strip() == "void":
        return "v"
    known = r"\b(rocblas_\w+|(std::)?int32_t|int|hipDataType|hipblas\w+_t)\b"
    assert re.search(known, parameter), parameter
    return "i"


@BOTH
def test_what_the_simulator_offers(name, ffi, prefix) -> None:
    """Each function of the simulated library has the headers' signature; none is missing."""
    del ffi
    found = {}
    pattern = rf"HIPSIM_API\s+([\w ]+?[\w*]\s*\**)\s*\b({prefix}\w+)\(([^)]*)\);"
    for match in re.finditer(pattern, header(name)):
        result, function, parameters = match.groups()
        types = [result, *(p for p in parameters.split(",") if p.strip())]
        found[function] = "".join(map(letter, types))
    assert found == signatures(name)


def test_numbers() -> None:
    """The plugin and the simulator have the same numbers for operations, types and statuses."""
    text = header("rocblas")
    numbers = {k: int(v) for k, v in re.findall(r"rocblas_(\w+) = (\d+)", text)}
    assert [numbers[f"status_{name}"] for name in errors.ROCBLAS.names] == list(
        range(len(errors.ROCBLAS.names))
    )
    assert (numbers["operation_none"], numbers["operation_transpose"]) == (
        _ffi.PLAIN,
        _ffi.TRANSPOSED,
    )
    types = [numbers[f"datatype_{name}_r"] for name in ("f16", "f32", "f64", "bf16")]
    assert types == [_ffi.F16, _ffi.F32, _ffi.F64, _ffi.BF16]
    assert numbers["pointer_mode_host"] == _ffi.POINTERS_ON_HOST
    assert numbers["atomics_not_allowed"] == _ffi.ATOMICS_NOT_ALLOWED
    assert numbers["gemm_algo_standard"] == _ffi.STANDARD


def test_numbers_of_hipblaslt() -> None:
    """The same of hipBLASLt: operations, types, attributes, statuses, and a structure's layout."""
    text = header("hipblaslt")
    numbers = {k: int(v) for k, v in re.findall(r"\bHIP(?:BLAS|BLASLT)?_(\w+) = (\d+)", text)}
    names = errors.HIPBLASLT.names
    assert [numbers[f"STATUS_{name}"] for name in names] == list(range(len(names)))
    assert (_ffi_lt.PLAIN, _ffi_lt.TRANSPOSED) == (numbers["OP_N"], numbers["OP_T"])
    types = [numbers[f"R_{name}"] for name in ("32F", "16F", "16BF")]
    assert [_ffi_lt.F32, _ffi_lt.F16, _ffi_lt.BF16] == types
    assert numbers["COMPUTE_32F"] == _ffi_lt.SUMS_IN_F32
    attributes = ["MATRIX_LAYOUT_BATCH_COUNT", "MATRIX_LAYOUT_STRIDED_BATCH_OFFSET"]
    assert [numbers[a] for a in attributes] == [_ffi_lt.BATCHES, _ffi_lt.STEP]
    assert numbers["MATMUL_DESC_TRANSA"] == _ffi_lt.TRANSPOSE_FIRST
    assert numbers["MATMUL_DESC_TRANSB"] == _ffi_lt.TRANSPOSE_SECOND
    assert numbers["MATMUL_PREF_MAX_WORKSPACE_BYTES"] == _ffi_lt.MOST_WORKSPACE
    # As the compiler lays out the headers' structure.
    found = _ffi_lt.Found
    assert (24, 56) == (ctypes.sizeof(_ffi_lt.Algorithm), ctypes.sizeof(found))
    assert (24, 32, 40) == (found.workspace.offset, found.state.offset, found.reserved.offset)


def test_the_simulator_exports_them(rocm) -> None:
    """The libraries that are built have every function, and say so of those that they have not."""
    assert all(map(_ffi.library().has, signatures("rocblas")))
    assert all(map(_ffi_lt.library().has, signatures("hipblaslt")))
    assert not _ffi.library().has("rocblas_gemm_ex3")
