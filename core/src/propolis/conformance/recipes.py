"""
The recipes, by op name; ops of a family share one.

They name ops of newer and older catalogues alike: what a catalogue lacks is not
asked for, and an op that no recipe names is reported as such.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from typing import Any
from typing import Final

from propolis import dtypes
from propolis.conformance.inputs import Recipe
from propolis.conformance.inputs import T


if TYPE_CHECKING:
    from collections.abc import Mapping

    _Sets = tuple[Mapping[str, Any], ...]

_TABLE: dict[str, tuple[Recipe, ...]] = {}


def _add(names: str, *recipes: Recipe) -> None:
    _TABLE.update(dict.fromkeys(names.split(), recipes))


# -- elementwise ---------------------------------------------------------------

_UNARY = Recipe({"x": T("r s c")})
_add("exp log sin cos tanh sqrt rsqrt recip erf sigmoid silu gelu gelu_erf quick_gelu", _UNARY)
_add("softplus abs neg sqr relu sign floor ceil round copy", _UNARY)
_add("powf", Recipe(_UNARY.tensors, ({"exponent": 2.0}, {"exponent": -0.5})))
_add("elu", Recipe(_UNARY.tensors, ({}, {"alpha": 0.5})))
_add("clamp", Recipe(_UNARY.tensors, ({"low": -1.0, "high": 1.0},)))
_add("affine", Recipe(_UNARY.tensors, ({"mul": 3.0, "add": -2.0},)))
_add("cast", Recipe(_UNARY.tensors, tuple({"dtype": d} for d in dtypes.ALL if d in dtypes.PLAIN)))
_BINARY = Recipe({"a": T("r s c"), "b": T("r s c")})
_ROW = Recipe({"a": T("r s c"), "b": T("1 s 1")})
_add("add sub mul div maximum minimum pow eq ne lt le gt ge", _BINARY, _ROW)
_add("silu_mul gelu_mul", Recipe({"gate": T("r s c"), "up": T("r s c")}))
_add(
    "where",
    Recipe({"condition": T("r c", domain="index:2"), "a": T("r c"), "b": T("r c", "=a")}),
    Recipe({"condition": T("r 1", domain="index:2"), "a": T("c"), "b": T("r c", "=a")}),
)

# -- rows ----------------------------------------------------------------------

_DIMS: _Sets = ({}, {"dim": 0}, {"dim": -2})
_ROWS = Recipe({"x": T("r s c")}, _DIMS)
_add("softmax log_softmax argmax argmin", _ROWS)
_add("cumsum", Recipe(_ROWS.tensors, _DIMS, linear=True, deep={"r": 1, "s": 1, "c": 2100}))
_add("sort argsort", Recipe(_ROWS.tensors, (*_DIMS, {"descending": True})))
_add("topk", Recipe(_ROWS.tensors, ({"k": 1}, {"k": 3, "dim": 0}, {"k": 2, "largest": False})))
_REDUCED: _Sets = ({}, {"dims": -1}, {"dims": (0, 2), "keepdim": True})
_add("min max", Recipe(_ROWS.tensors, _REDUCED))
_add("sum mean", Recipe(_ROWS.tensors, _REDUCED, linear=True, deep={"r": 1, "s": 2, "c": 2100}))
_add("var", Recipe(_ROWS.tensors, (*_REDUCED, {"dims": -1, "correction": 1}), linear=True))
_add("rms_norm", Recipe({"x": T("r s c"), "weight": T("c")}, ({}, {"eps": 1e-3})))
_add("add_rms_norm", Recipe({"x": T("r s c"), "residual": T("r s c"), "weight": T("c")}))
_add(
    "layer_norm",
    Recipe({"x": T("r s c"), "weight": T("c"), "bias": T("c")}, ({}, {"bias": None})),
)
_add(
    "group_norm group_norm_silu",
    Recipe({"x": T("n c*2 s"), "weight": T("c*2"), "bias": T("c*2")}, ({"groups": 2},)),
)

# -- products ------------------------------------------------------------------

_DEEP = {"m": 1, "k": 2100, "n": 3}
_add(
    "matmul",
    Recipe({"a": T("b m k"), "b": T("b k n")}, linear=True, deep=_DEEP),
    Recipe({"a": T("b m k"), "b": T("k n")}, linear=True),
)
_add(
    "linear",
    Recipe(
        {"x": T("b m k"), "w": T("n k"), "bias": T("n")},
        ({}, {"bias": None}),
        linear=True,
        deep=_DEEP,
    ),
)
_add("qmatmul", Recipe({"x": T("m k"), "w": T("n k")}, linear=True, deep={"k": 2048, "m": 1}))
_EXPERTS = T("m j", "i64", "index:e")
_add(
    "moe_linear moe_qmatmul",
    Recipe({"x": T("m j k"), "w": T("e n k"), "experts": _EXPERTS}, linear=True),
    Recipe({"x": T("m 1 k"), "w": T("e n k"), "experts": _EXPERTS}, linear=True),
)
_add("moe_gate", Recipe({"logits": T("m e")}, ({"k": 1}, {"k": 2, "renormalize": False})))
_ATTENTION = {"q": T("b t h*2 d"), "k": T("b s h d"), "v": T("b s h e")}
_add(
    "attention attention_lse",
    Recipe(
        {**_ATTENTION, "kv_len": T("b", "i32", "index:s")},
        ({"kv_len": None}, {"kv_len": None, "causal": True}, {"causal": True}, {"scale": 0.5}),
        sizes={"t": 3, "s": 5},
        special=False,
        nonempty="d",
    ),
)

# -- images --------------------------------------------------------------------

_STEPS: _Sets = ({}, {"bias": None}, {"stride": 2, "padding": 1}, {"dilation": 2})
_W1, _W2 = {"l": 11, "k": 3}, {"h": 9, "w": 11, "i": 3, "j": 2}
_GROUPS = ({"groups": 2}, {"groups": 2, "stride": 2})
_add(
    "conv1d",
    Recipe({"x": T("b c l"), "w": T("o c k"), "bias": T("o")}, _STEPS, _W1, linear=True),
    Recipe({"x": T("b c*2 l"), "w": T("o*2 c k")}, _GROUPS, _W1, linear=True),
)
_add(
    "conv2d",
    Recipe({"x": T("b c h w"), "w": T("o c i j"), "bias": T("o")}, _STEPS, _W2, linear=True),
    Recipe({"x": T("b c*2 h w"), "w": T("o*2 c i j")}, _GROUPS, _W2, linear=True),
)
_add(
    "conv_transpose1d",
    Recipe({"x": T("b c l"), "w": T("c o k"), "bias": T("o")}, _STEPS, _W1, linear=True),
)
_add(
    "conv_transpose2d",
    Recipe({"x": T("b c h w"), "w": T("c o i j"), "bias": T("o")}, _STEPS, _W2, linear=True),
)
_IMAGE = {"x": T("b c h w")}
_WINDOWS = ({"kernel": 2}, {"kernel": 3, "stride": 2, "padding": 1})
_add("im2col", Recipe(_IMAGE, _WINDOWS, _W2))
_add("avg_pool2d", Recipe(_IMAGE, (*_WINDOWS, {"kernel": 3, "padding": 1}), _W2, linear=True))
_add("max_pool2d", Recipe(_IMAGE, (*_WINDOWS, {"kernel": 2, "dilation": 2}), _W2))
_add("upsample_nearest1d", Recipe({"x": T("b c l")}, ({"size": 7}, {"size": 24}), _W1))
_SIZES = ({"size": (5, 24)}, {"size": (18, 3)})
_add("upsample_nearest2d", Recipe(_IMAGE, _SIZES, _W2))
_add(
    "upsample_bilinear2d",
    Recipe(_IMAGE, (*_SIZES, {"size": (5, 24), "align_corners": True}), _W2, linear=True),
)

# -- indices and caches --------------------------------------------------------

_add("embedding", Recipe({"ids": T("r s", domain="index:v"), "table": T("v c")}))
_add("index_select", Recipe({"x": T("v s c"), "ids": T("n", domain="index:v")}))
_add("gather", Recipe({"x": T("r v"), "ids": T("r n", domain="index:v")}))
_add(
    "scatter",
    Recipe(
        {
            "target": T("r v"),
            "ids": T("r n", domain="distinct:v"),
            "source": T("r n", "=target"),
        },
        sizes={"v": 7, "n": 5},
    ),
)
_add(
    "scatter_add",
    Recipe(
        {"target": T("r v"), "ids": T("r n", domain="index:v"), "source": T("r n", "=target")},
        linear=True,
    ),
)
_add(
    "index_add",
    Recipe(
        {"target": T("v s c"), "ids": T("n", domain="index:v"), "source": T("n s c", "=target")},
        linear=True,
    ),
)
_add(
    "rope",
    *(
        Recipe(
            {
                "x": T(f"b t h e*{parts}"),
                "positions": T("b t", domain="index:r"),
                "cos": T("r e", "f32"),
                "sin": T("r e", "f32"),
            },
            ({}, {"interleaved": True}),
        )
        for parts in (2, 3)
    ),
)
_add(
    "kv_append",
    Recipe(
        {
            "cache": T("b p h d"),
            "x": T("b t h d", "=cache"),
            "positions": T("b t", domain="distinct:p"),
        },
        sizes={"p": 7, "t": 3},
    ),
)
_TARGET = {"target": T("r s c")}
_add("fill", Recipe(_TARGET, ({"value": 3.0}, {"value": 0.1}), overwrites=True))
_add("arange", Recipe(_TARGET, ({}, {"start": 2.0, "step": 3.0}), overwrites=True))
_add("assign", Recipe({"target": T("r s c"), "source": T("s c", "=target")}, overwrites=True))
_SEEDS: _Sets = ({"seed": 7}, {"seed": 2**63, "offset": 5})
_add("uniform normal", Recipe(_TARGET, _SEEDS, overwrites=True))

# -- block formats -------------------------------------------------------------

_OUT = tuple({"dtype": d} for d in (dtypes.f32, dtypes.f16, dtypes.bf16, dtypes.f64))
_add("dequantize", Recipe({"x": T("r c")}, _OUT))
_add(
    "quantize",
    Recipe(
        {"x": T("r c*256")},
        tuple({"dtype": d} for d in dtypes.ALL if d.is_block),
        special=False,
    ),
)

RECIPES: Final = _TABLE
