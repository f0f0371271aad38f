# [[[cog
# import cog
# from propolis.opspec.spec import functions
# from propolis.ops import catalogue
#
# cog.outl("from propolis.opspec.spec import Op as Op")
# cog.outl("from propolis.opspec.spec import OpSpec as OpSpec")
# cog.outl("from propolis.opspec.spec import PairOp as PairOp")
# cog.outl("from propolis.opspec.spec import catalogue as catalogue")
# cog.outl("from propolis.opspec.tolerance import Tolerance as Tolerance")
# homes = {name: f.__module__ for name, f in functions().items()}
# homes |= {name: f"propolis.ops.{spec.family}" for name, spec in catalogue().items()}
# for home, name in sorted((home, name) for name, home in homes.items()):
#     cog.outl(f"from {home} import {name} as {name}")
# ]]]
from propolis.opspec.spec import Op as Op
from propolis.opspec.spec import OpSpec as OpSpec
from propolis.opspec.spec import PairOp as PairOp
from propolis.opspec.spec import catalogue as catalogue
from propolis.opspec.tolerance import Tolerance as Tolerance
from propolis.ops.attention import attention as attention
from propolis.ops.attention import attention_lse as attention_lse
from propolis.ops.attention import qattention as qattention
from propolis.ops.attention import qattention_lse as qattention_lse
from propolis.ops.binary import add as add
from propolis.ops.binary import div as div
from propolis.ops.binary import eq as eq
from propolis.ops.binary import ge as ge
from propolis.ops.binary import gt as gt
from propolis.ops.binary import le as le
from propolis.ops.binary import lt as lt
from propolis.ops.binary import maximum as maximum
from propolis.ops.binary import minimum as minimum
from propolis.ops.binary import mul as mul
from propolis.ops.binary import ne as ne
from propolis.ops.binary import pow as pow
from propolis.ops.binary import remainder as remainder
from propolis.ops.binary import sub as sub
from propolis.ops.cast import cast as cast
from propolis.ops.conv import conv1d as conv1d
from propolis.ops.conv import conv2d as conv2d
from propolis.ops.conv import conv3d as conv3d
from propolis.ops.conv import conv_transpose1d as conv_transpose1d
from propolis.ops.conv import conv_transpose2d as conv_transpose2d
from propolis.ops.conv import im2col as im2col
from propolis.ops.fill import arange as arange
from propolis.ops.fill import assign as assign
from propolis.ops.fill import cat as cat
from propolis.ops.fill import copy as copy
from propolis.ops.fill import fill as fill
from propolis.ops.fill import full as full
from propolis.ops.fill import kv_append as kv_append
from propolis.ops.indexing import embedding as embedding
from propolis.ops.indexing import gather as gather
from propolis.ops.indexing import index_add as index_add
from propolis.ops.indexing import index_select as index_select
from propolis.ops.indexing import scatter as scatter
from propolis.ops.indexing import scatter_add as scatter_add
from propolis.ops.matmul import linear as linear
from propolis.ops.matmul import matmul as matmul
from propolis.ops.moe import moe_gate as moe_gate
from propolis.ops.moe import moe_linear as moe_linear
from propolis.ops.moe import moe_qmatmul as moe_qmatmul
from propolis.ops.norm import add_rms_norm as add_rms_norm
from propolis.ops.norm import group_norm as group_norm
from propolis.ops.norm import group_norm_silu as group_norm_silu
from propolis.ops.norm import layer_norm as layer_norm
from propolis.ops.norm import rms_norm as rms_norm
from propolis.ops.normed import add_rms_norm_linear as add_rms_norm_linear
from propolis.ops.normed import add_rms_norm_linear_rope as add_rms_norm_linear_rope
from propolis.ops.normed import add_rms_norm_linear_rope_kv_append as add_rms_norm_linear_rope_kv_append
from propolis.ops.normed import add_rms_norm_qmatmul as add_rms_norm_qmatmul
from propolis.ops.normed import add_rms_norm_qmatmul_rope as add_rms_norm_qmatmul_rope
from propolis.ops.normed import add_rms_norm_qmatmul_rope_kv_append as add_rms_norm_qmatmul_rope_kv_append
from propolis.ops.pool import adaptive_avg_pool2d as adaptive_avg_pool2d
from propolis.ops.pool import adaptive_max_pool2d as adaptive_max_pool2d
from propolis.ops.pool import avg_pool2d as avg_pool2d
from propolis.ops.pool import avg_pool3d as avg_pool3d
from propolis.ops.pool import max_pool2d as max_pool2d
from propolis.ops.pool import max_pool3d as max_pool3d
from propolis.ops.quantized import dequantize as dequantize
from propolis.ops.quantized import qmatmul as qmatmul
from propolis.ops.quantized import quantize as quantize
from propolis.ops.random import draw as draw
from propolis.ops.random import normal as normal
from propolis.ops.random import uniform as uniform
from propolis.ops.reduce import argmax as argmax
from propolis.ops.reduce import argmin as argmin
from propolis.ops.reduce import cumsum as cumsum
from propolis.ops.reduce import max as max
from propolis.ops.reduce import mean as mean
from propolis.ops.reduce import min as min
from propolis.ops.reduce import prod as prod
from propolis.ops.reduce import sum as sum
from propolis.ops.reduce import var as var
from propolis.ops.rope import rope as rope
from propolis.ops.rope import rope_kv_append as rope_kv_append
from propolis.ops.softmax import log_softmax as log_softmax
from propolis.ops.softmax import softmax as softmax
from propolis.ops.sort import argsort as argsort
from propolis.ops.sort import sort as sort
from propolis.ops.sort import topk as topk
from propolis.ops.ternary import where as where
from propolis.ops.unary import abs as abs
from propolis.ops.unary import affine as affine
from propolis.ops.unary import ceil as ceil
from propolis.ops.unary import clamp as clamp
from propolis.ops.unary import cos as cos
from propolis.ops.unary import elu as elu
from propolis.ops.unary import erf as erf
from propolis.ops.unary import exp as exp
from propolis.ops.unary import expm1 as expm1
from propolis.ops.unary import floor as floor
from propolis.ops.unary import gelu as gelu
from propolis.ops.unary import gelu_erf as gelu_erf
from propolis.ops.unary import gelu_erf_mul as gelu_erf_mul
from propolis.ops.unary import gelu_mul as gelu_mul
from propolis.ops.unary import log as log
from propolis.ops.unary import log1p as log1p
from propolis.ops.unary import neg as neg
from propolis.ops.unary import powf as powf
from propolis.ops.unary import quick_gelu as quick_gelu
from propolis.ops.unary import recip as recip
from propolis.ops.unary import relu as relu
from propolis.ops.unary import round as round
from propolis.ops.unary import rsqrt as rsqrt
from propolis.ops.unary import sigmoid as sigmoid
from propolis.ops.unary import sign as sign
from propolis.ops.unary import silu as silu
from propolis.ops.unary import silu_mul as silu_mul
from propolis.ops.unary import sin as sin
from propolis.ops.unary import softplus as softplus
from propolis.ops.unary import sqr as sqr
from propolis.ops.unary import sqrt as sqrt
from propolis.ops.unary import tanh as tanh
from propolis.ops.unary import trunc as trunc
from propolis.ops.upsample import resize2d as resize2d
from propolis.ops.upsample import upsample_bilinear2d as upsample_bilinear2d
from propolis.ops.upsample import upsample_nearest1d as upsample_nearest1d
from propolis.ops.upsample import upsample_nearest2d as upsample_nearest2d
# [[[end]]]
