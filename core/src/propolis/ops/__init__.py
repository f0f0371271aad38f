"""
The catalogue of ops.

``ops.add(a, b)`` allocates the result on the device of ``a``; ``ops.add.into(out, a,
b)`` writes it where told.  Which implementation runs is the business of the
device's dispatch table; ``propolis explain add`` shows it.
"""

from __future__ import annotations

from propolis.ops._spec import Op
from propolis.ops._spec import OpSpec
from propolis.ops._spec import PairOp
from propolis.ops._spec import Tolerance
from propolis.ops._spec import catalogue
from propolis.ops.attention import attention
from propolis.ops.binary import add
from propolis.ops.binary import mul
from propolis.ops.cast import cast
from propolis.ops.fill import copy
from propolis.ops.fill import kv_append
from propolis.ops.indexing import embedding
from propolis.ops.matmul import linear
from propolis.ops.matmul import matmul
from propolis.ops.norm import rms_norm
from propolis.ops.quantized import dequantize
from propolis.ops.quantized import qmatmul
from propolis.ops.reduce import argmax
from propolis.ops.rope import rope
from propolis.ops.softmax import softmax
from propolis.ops.unary import silu_mul


__all__ = [
    "Op",
    "OpSpec",
    "PairOp",
    "Tolerance",
    "add",
    "argmax",
    "attention",
    "cast",
    "catalogue",
    "copy",
    "dequantize",
    "embedding",
    "kv_append",
    "linear",
    "matmul",
    "mul",
    "qmatmul",
    "rms_norm",
    "rope",
    "silu_mul",
    "softmax",
]
