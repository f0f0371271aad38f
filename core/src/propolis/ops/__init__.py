"""
The catalogue of ops.

``ops.add(a, b)`` allocates the result on the device of ``a``; ``ops.add.into(out, a,
b)`` writes it where told.  Which implementation runs is the business of the
device's dispatch table; ``propolis explain add`` shows it.
"""

from __future__ import annotations

from propolis.ops.attention import attention
from propolis.ops.attention import attention_lse
from propolis.ops.binary import add
from propolis.ops.binary import div
from propolis.ops.binary import eq
from propolis.ops.binary import ge
from propolis.ops.binary import gt
from propolis.ops.binary import le
from propolis.ops.binary import lt
from propolis.ops.binary import maximum
from propolis.ops.binary import minimum
from propolis.ops.binary import mul
from propolis.ops.binary import ne
from propolis.ops.binary import pow
from propolis.ops.binary import sub
from propolis.ops.cast import cast
from propolis.ops.conv import conv1d
from propolis.ops.conv import conv2d
from propolis.ops.conv import conv_transpose1d
from propolis.ops.conv import conv_transpose2d
from propolis.ops.conv import im2col
from propolis.ops.fill import arange
from propolis.ops.fill import assign
from propolis.ops.fill import cat
from propolis.ops.fill import copy
from propolis.ops.fill import fill
from propolis.ops.fill import full
from propolis.ops.fill import kv_append
from propolis.ops.indexing import embedding
from propolis.ops.indexing import gather
from propolis.ops.indexing import index_add
from propolis.ops.indexing import index_select
from propolis.ops.indexing import scatter
from propolis.ops.indexing import scatter_add
from propolis.ops.matmul import linear
from propolis.ops.matmul import matmul
from propolis.ops.moe import moe_gate
from propolis.ops.moe import moe_linear
from propolis.ops.moe import moe_qmatmul
from propolis.ops.norm import add_rms_norm
from propolis.ops.norm import group_norm
from propolis.ops.norm import group_norm_silu
from propolis.ops.norm import layer_norm
from propolis.ops.norm import rms_norm
from propolis.ops.pool import avg_pool2d
from propolis.ops.pool import max_pool2d
from propolis.ops.quantized import dequantize
from propolis.ops.quantized import qmatmul
from propolis.ops.quantized import quantize
from propolis.ops.random import normal
from propolis.ops.random import uniform
from propolis.ops.reduce import argmax
from propolis.ops.reduce import argmin
from propolis.ops.reduce import cumsum
from propolis.ops.reduce import max
from propolis.ops.reduce import mean
from propolis.ops.reduce import min
from propolis.ops.reduce import sum
from propolis.ops.reduce import var
from propolis.ops.rope import rope
from propolis.ops.softmax import log_softmax
from propolis.ops.softmax import softmax
from propolis.ops.sort import argsort
from propolis.ops.sort import sort
from propolis.ops.sort import topk
from propolis.ops.ternary import where
from propolis.ops.unary import abs
from propolis.ops.unary import affine
from propolis.ops.unary import ceil
from propolis.ops.unary import clamp
from propolis.ops.unary import cos
from propolis.ops.unary import elu
from propolis.ops.unary import erf
from propolis.ops.unary import exp
from propolis.ops.unary import floor
from propolis.ops.unary import gelu
from propolis.ops.unary import gelu_erf
from propolis.ops.unary import gelu_mul
from propolis.ops.unary import log
from propolis.ops.unary import neg
from propolis.ops.unary import powf
from propolis.ops.unary import quick_gelu
from propolis.ops.unary import recip
from propolis.ops.unary import relu
from propolis.ops.unary import round
from propolis.ops.unary import rsqrt
from propolis.ops.unary import sigmoid
from propolis.ops.unary import sign
from propolis.ops.unary import silu
from propolis.ops.unary import silu_mul
from propolis.ops.unary import sin
from propolis.ops.unary import softplus
from propolis.ops.unary import sqr
from propolis.ops.unary import sqrt
from propolis.ops.unary import tanh
from propolis.ops.upsample import upsample_bilinear2d
from propolis.ops.upsample import upsample_nearest1d
from propolis.ops.upsample import upsample_nearest2d
from propolis.opspec.spec import Op
from propolis.opspec.spec import OpSpec
from propolis.opspec.spec import PairOp
from propolis.opspec.spec import Tolerance
from propolis.opspec.spec import catalogue


__all__ = [
    "Op",
    "OpSpec",
    "PairOp",
    "Tolerance",
    "abs",
    "add",
    "add_rms_norm",
    "affine",
    "arange",
    "argmax",
    "argmin",
    "argsort",
    "assign",
    "attention",
    "attention_lse",
    "avg_pool2d",
    "cast",
    "cat",
    "catalogue",
    "ceil",
    "clamp",
    "conv1d",
    "conv2d",
    "conv_transpose1d",
    "conv_transpose2d",
    "copy",
    "cos",
    "cumsum",
    "dequantize",
    "div",
    "elu",
    "embedding",
    "eq",
    "erf",
    "exp",
    "fill",
    "floor",
    "full",
    "gather",
    "ge",
    "gelu",
    "gelu_erf",
    "gelu_mul",
    "group_norm",
    "group_norm_silu",
    "gt",
    "im2col",
    "index_add",
    "index_select",
    "kv_append",
    "layer_norm",
    "le",
    "linear",
    "log",
    "log_softmax",
    "lt",
    "matmul",
    "max",
    "max_pool2d",
    "maximum",
    "mean",
    "min",
    "minimum",
    "moe_gate",
    "moe_linear",
    "moe_qmatmul",
    "mul",
    "ne",
    "neg",
    "normal",
    "pow",
    "powf",
    "qmatmul",
    "quantize",
    "quick_gelu",
    "recip",
    "relu",
    "rms_norm",
    "rope",
    "round",
    "rsqrt",
    "scatter",
    "scatter_add",
    "sigmoid",
    "sign",
    "silu",
    "silu_mul",
    "sin",
    "softmax",
    "softplus",
    "sort",
    "sqr",
    "sqrt",
    "sub",
    "sum",
    "tanh",
    "topk",
    "uniform",
    "upsample_bilinear2d",
    "upsample_nearest1d",
    "upsample_nearest2d",
    "var",
    "where",
]
