from __future__ import annotations

import copy
import pickle

import gguf
import ml_dtypes
import numpy as np
import pytest

from propolis import Tensor
from propolis import dtypes
from propolis import ops
from propolis.dtypes import DType
from propolis.errors import DTypeError


NAMES = [
    "f64",
    "f32",
    "f16",
    "bf16",
    "f8e4m3",
    "f8e5m2",
    "u8",
    "u32",
    "i8",
    "i16",
    "i32",
    "i64",
    "q4_0",
    "q4_1",
    "q5_0",
    "q5_1",
    "q8_0",
    "q8_1",
    "q2_k",
    "q3_k",
    "q4_k",
    "q5_k",
    "q6_k",
    "q8_k",
    "iq4_nl",
    "iq4_xs",
    "tq1_0",
    "tq2_0",
    "mxfp4",
]


def test_every_name_of_the_design_is_there():
    """ALL holds the dtypes that the architecture names, in that order, and nothing else."""
    assert [d.name for d in dtypes.ALL] == NAMES
    assert all(getattr(dtypes, name).name == name for name in NAMES)


def test_sets_split_all():
    """Floats, integers and blocks are disjoint and cover everything."""
    assert frozenset(dtypes.ALL) == dtypes.FLOATS | dtypes.INTEGERS | dtypes.BLOCKS
    assert len(dtypes.ALL) == len(dtypes.FLOATS) + len(dtypes.INTEGERS) + len(dtypes.BLOCKS)
    assert dtypes.PLAIN == dtypes.FLOATS | dtypes.INTEGERS


@pytest.mark.parametrize("dtype", dtypes.ALL, ids=str)
def test_kinds_agree(dtype):
    """The three predicates and the sets say the same."""
    assert dtype.is_float == (dtype in dtypes.FLOATS)
    assert dtype.is_integer == (dtype in dtypes.INTEGERS)
    assert dtype.is_block == (dtype in dtypes.BLOCKS)


@pytest.mark.parametrize("dtype", [d for d in dtypes.ALL if d.ggml_type is not None], ids=str)
def test_ggml_ids_and_sizes_are_those_of_the_gguf_library(dtype):
    """Type id, block size and bytes agree with the library that others wrote."""
    theirs = gguf.GGMLQuantizationType[dtype.name.upper()]
    assert dtype.ggml_type == theirs.value
    assert dtypes.from_ggml(theirs.value) is dtype
    if dtype is not dtypes.q8_1:  # the library says 40; ggml's struct has 36
        assert (dtype.block_size, dtype.block_bytes) == gguf.GGML_QUANT_SIZES[theirs]


def test_q8_1_is_two_halves_and_32_bytes():
    """The one size that the gguf library has wrong: ggml's block is d, s (f16) and qs[32]."""
    assert (dtypes.q8_1.block_size, dtypes.q8_1.block_bytes) == (32, 2 + 2 + 32)


@pytest.mark.parametrize(
    ("dtype", "theirs"),
    [
        (dtypes.f64, np.float64),
        (dtypes.bf16, ml_dtypes.bfloat16),
        (dtypes.f8e4m3, ml_dtypes.float8_e4m3fn),
        (dtypes.f8e5m2, ml_dtypes.float8_e5m2),
        (dtypes.u8, np.uint8),
        (dtypes.i8, np.int8),
        (dtypes.i64, np.int64),
    ],
    ids=str,
)
def test_numpy_counterparts(dtype, theirs):
    """Plain dtypes and numpy's stand for each other, with the same item size."""
    assert dtype.numpy == np.dtype(theirs)
    assert dtypes.from_numpy(np.dtype(theirs)) is dtype
    assert (dtype.block_size, dtype.block_bytes) == (1, np.dtype(theirs).itemsize)


@pytest.mark.parametrize("strange", ["c8", "S3", ">f4", "bool"])
def test_numpy_dtypes_without_counterpart(strange):
    """The error names the numpy dtype and those there are."""
    with pytest.raises(DTypeError, match=r"float32.*bfloat16"):
        dtypes.from_numpy(np.dtype(strange))


def test_unknown_ggml_type():
    """A type that GGUF files may hold and we do not know is None, not an error."""
    assert dtypes.from_ggml(16) is None


@pytest.mark.parametrize(("given", "name"), [("BF16", "bf16"), (" q4_K ", "q4_k"), ("f32", "f32")])
def test_parse_ignores_case_and_blanks(given, name):
    """People write dtypes as they like."""
    assert dtypes.parse_dtype(given) is getattr(dtypes, name)


def test_parse_takes_a_dtype():
    """What is a dtype already stays itself."""
    assert dtypes.parse_dtype(dtypes.f16) is dtypes.f16


def test_parse_names_near_matches():
    """A typo is answered with what was meant."""
    with pytest.raises(DTypeError, match=r"'fp16': did you mean .*f16"):
        dtypes.parse_dtype("fp16")


def test_parse_names_all_when_nothing_is_near():
    """Without a near match, all names are listed."""
    with pytest.raises(DTypeError, match=r"'zzz': known: f64, f32.*q8_k"):
        dtypes.parse_dtype("zzz")


def test_parse_of_what_is_no_name():
    """A numpy type is not a name; the error says so and lists the names."""
    with pytest.raises(DTypeError, match=r"numpy\.float32.*known: f64"):
        dtypes.parse_dtype(np.float32)  # type: ignore[arg-type]


def test_nbytes():
    """Bytes of consecutive elements, in whole blocks."""
    assert dtypes.f16.nbytes(3) == 6
    assert dtypes.q4_k.nbytes(512) == 288
    assert dtypes.q4_k.nbytes(0) == 0


def test_nbytes_of_part_of_a_block():
    """Half a block cannot be stored; the error names the multiple."""
    with pytest.raises(DTypeError, match=r"q4_0: 48 elements .* multiple of 32"):
        dtypes.q4_0.nbytes(48)


@pytest.mark.parametrize("dtype", dtypes.ALL, ids=str)
def test_singletons_survive_copies_and_pickles(dtype):
    """``is`` compares dtypes, so copying and pickling gives the same object."""
    assert copy.copy(dtype) is dtype
    assert copy.deepcopy([dtype])[0] is dtype
    assert pickle.loads(pickle.dumps(dtype)) is dtype
    assert repr(dtype) == dtype.name
    assert isinstance(dtype, DType)


def test_what_converts():
    """Where blocks are part of it they are quantised or dequantised, not cast."""
    x = Tensor.from_numpy(np.ones((2, 32), np.float32))
    blocks = ops.quantize(x, dtypes.q4_0)
    for wrong in (lambda: ops.linear(x, blocks), lambda: ops.qmatmul(x, x)):
        with pytest.raises(DTypeError, match=r"; ops\.\(de\)quantize converts$"):
            wrong()
    with pytest.raises(DTypeError, match=r"; ops\.cast converts$"):
        ops.add(x, ops.cast(x, dtypes.f16))
