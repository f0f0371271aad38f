"""
The recipes, by op name; ops of a family share one.

They name ops of newer and older catalogues alike: what a catalogue lacks is not
asked for, and an op that no recipe names is reported as such.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING
from typing import Any
from typing import Final

from propolis import dtypes
from propolis_conformance.inputs import Recipe
from propolis_conformance.inputs import T


if TYPE_CHECKING:
    from collections.abc import Mapping

    _Sets = tuple[Mapping[str, Any], ...]

_TABLE: dict[str, tuple[Recipe, ...]] = {}


def _add(names: str, *recipes: Recipe) -> None:
    _TABLE.update(dict.fromkeys(names.split(), recipes))


# -- elementwise ---------------------------------------------------------------

_X = {"x": T("r s c")}
_UNARY = Recipe(_X, ties=True, extreme=True)
_add("exp log sin cos tanh sqrt rsqrt recip erf sigmoid silu gelu gelu_erf quick_gelu", _UNARY)
_add("softplus abs neg sqr relu sign floor ceil round copy", _UNARY)
_POWERS = (2.0, -0.5, 0.5, 3.0, 0.0, -1.0)
_add("powf", Recipe(_X, tuple({"exponent": e} for e in _POWERS), extreme=True))
_add("elu", Recipe(_X, ({}, {"alpha": 0.5}, {"alpha": 0.0}), extreme=True))
_CLAMPS: _Sets = (
    {"low": -1.0, "high": 1.0},
    {"low": 0.3, "high": float("inf")},
    {"low": float("-inf"), "high": -0.1},
    {"low": 2.0, "high": 2.0},
)
_add("clamp", Recipe(_X, _CLAMPS, extreme=True))
_LINES: _Sets = ({"mul": 3.0, "add": -2.0}, {"mul": 0.1, "add": 0.0}, {"mul": -1.5, "add": 0.7})
_add("affine", Recipe(_X, _LINES, extreme=True))
_PLAIN = tuple({"dtype": d} for d in dtypes.ALL if d in dtypes.PLAIN)
_add(
    "cast",
    Recipe(_X, _PLAIN, ties=True),
    # Every pair, with what overflows and what rounds to nothing.
    *(Recipe(_X, (a,), extreme=True) for a in _PLAIN),
)
_BINARY = Recipe({"a": T("r s c"), "b": T("r s c")}, ties=True, extreme=True)
_ROW = Recipe({"a": T("r s c"), "b": T("1 s 1")})
_WIDER = Recipe({"a": T("c"), "b": T("r s c")})
_add("add sub mul div maximum minimum pow eq ne lt le gt ge", _BINARY, _ROW, _WIDER)
_add("silu_mul gelu_mul", Recipe({"gate": T("r s c"), "up": T("r s c")}, extreme=True))
_CONDITION = T("r c", domain="index:2")
_add(
    "where",
    Recipe({"condition": _CONDITION, "a": T("r c"), "b": T("r c", "=a")}, extreme=True),
    Recipe({"condition": T("r 1", domain="index:2"), "a": T("c"), "b": T("r c", "=a")}),
    Recipe({"condition": T("s r c"), "a": T("1"), "b": T("r 1", "=a")}),
)

# -- rows ----------------------------------------------------------------------

_DIMS: _Sets = ({}, {"dim": 0}, {"dim": -2})
_add("softmax log_softmax", Recipe(_X, _DIMS, deep={"r": 1, "s": 1, "c": 2100}, extreme=True))
_add("argmax argmin", Recipe(_X, _DIMS, ties=True, extreme=True))
_add("cumsum", Recipe(_X, _DIMS, deep={"r": 1, "s": 1, "c": 2100}))
_ORDERS: _Sets = (*_DIMS, {"descending": True}, {"descending": True, "dim": 1})
_add("sort argsort", Recipe(_X, _ORDERS, ties=True, extreme=True))
_BEST: _Sets = (
    {"k": 1},
    {"k": 3, "dim": 0},
    {"k": 2, "largest": False},
    {"k": 5, "dim": 1, "largest": False},
    {"k": 0},
)
_add("topk", Recipe(_X, _BEST, ties=True, extreme=True))
_REDUCED: _Sets = (
    {},
    {"dims": -1},
    {"dims": 0},
    {"dims": (1,), "keepdim": True},
    {"dims": (0, 2), "keepdim": True},
    {"dims": (-1, 0)},
    {"keepdim": True},
    {"dims": ()},
)
_add("min max", Recipe(_X, _REDUCED, ties=True, extreme=True))
_add("sum mean", Recipe(_X, _REDUCED, deep={"r": 1, "s": 2, "c": 2100}))
_add("var", Recipe(_X, (*_REDUCED[:-1], {"dims": -1, "correction": 1}, {"correction": 70})))
_NORMED = {"x": T("r s c"), "weight": T("c")}
_add("rms_norm", Recipe(_NORMED, ({}, {"eps": 1e-3}), deep={"r": 1, "s": 1, "c": 2100}))
_SUMMED = {"x": T("r s c"), "residual": T("r s c"), "weight": T("c")}
_add("add_rms_norm", Recipe(_SUMMED, ({}, {"eps": 1e-3})))
_add("layer_norm", Recipe({**_NORMED, "bias": T("c")}, ({}, {"bias": None}, {"eps": 0.1})))
_CHANNELS = {"weight": T("c*2"), "bias": T("c*2")}
_GROUPED: _Sets = ({"groups": 2}, {"groups": 1}, {"groups": 2, "eps": 0.1})
_add(
    "group_norm group_norm_silu",
    Recipe({"x": T("n c*2 s"), **_CHANNELS}, _GROUPED),
    Recipe({"x": T("n c*2 h w"), **_CHANNELS}, _GROUPED),
    Recipe({"x": T("n c*2"), **_CHANNELS}, ({"groups": 2},)),
)

# -- products ------------------------------------------------------------------

_DEEP = {"m": 1, "k": 2100, "n": 3}
_add(
    "matmul",
    Recipe({"a": T("b m k"), "b": T("b k n")}, deep=_DEEP),
    Recipe({"a": T("b m k"), "b": T("k n")}),
    Recipe({"a": T("m k"), "b": T("b k n")}),
    Recipe({"a": T("h 1 m k"), "b": T("b k n")}),
)
_add(
    "linear",
    Recipe({"x": T("b m k"), "w": T("n k"), "bias": T("n")}, ({}, {"bias": None}), deep=_DEEP),
    Recipe({"x": T("k"), "w": T("n k"), "bias": T("n")}, ({}, {"bias": None})),
)
_add(
    "qmatmul",
    Recipe({"x": T("m k"), "w": T("n k")}, deep={"k": 2048, "m": 1}),
    Recipe({"x": T("b m k"), "w": T("n k")}),
    Recipe({"x": T("k"), "w": T("n k")}),
)
_EXPERTS = T("m j", "i64", "index:e")
_add(
    "moe_linear moe_qmatmul",
    Recipe({"x": T("m j k"), "w": T("e n k"), "experts": _EXPERTS}),
    Recipe({"x": T("m 1 k"), "w": T("e n k"), "experts": _EXPERTS}),
)
_GATES: _Sets = ({"k": 1}, {"k": 2, "renormalize": False}, {"k": 3})
_add("moe_gate", Recipe({"logits": T("m e")}, _GATES, ties=True, special=False))

# -- attention -----------------------------------------------------------------

_SIZES_A = {"t": 3, "s": 5, "b": 2}
_Q = {"q": T("b t h*2 d")}
_KV = {"k": T("b s h d", domain="cache"), "v": T("b s h e", domain="cache")}
_LENGTHS = {"kv_len": T("b", "i32", "length:s")}
_RULES: _Sets = (
    {},
    {"causal": True},
    {"window": (1, 0)},
    {"window": (0, 1)},
    {"window": (2, -1), "causal": True},
    {"window": (-1, 1)},
    {"softcap": 1.5},
    {"softcap": 0.5, "causal": True, "window": (2, 0)},
    {"scale": 0.5},
    {"scale": 0.0, "causal": True},
)
_BIASED: _Sets = ({}, {"causal": True}, {"softcap": 2.0}, {"window": (1, 1)})
_WHOLE = {"q": T("b t h*2 d"), "k": T("b s h d"), "v": T("b s h e")}


def _attention(tensors: Mapping[str, T], rules: _Sets, sizes: Mapping[str, int]) -> Recipe:
    return Recipe(tensors, rules, {**_SIZES_A, **sizes}, special=False, nonempty="dhg")


_add(
    "attention attention_lse",
    _attention({**_Q, **_KV, **_LENGTHS}, (*_RULES, {"kv_len": None}), {}),
    # More queries than keys, and heads of keys shared by all.
    _attention({**_Q, **_KV, **_LENGTHS}, _RULES[:4], {"t": 7, "s": 4, "h": 1}),
    _attention({**_WHOLE, "bias": T("b h*2 t s")}, _BIASED, {}),
    _attention({**_WHOLE, "bias": T("h*2 1 s", domain="mask")}, _BIASED, {}),
    _attention({**_WHOLE, "alibi": T("h*2", "f32", "positive")}, _BIASED, {"t": 4}),
    _attention(
        {
            "q": T("1 t h*2 d"),
            **_KV,
            **_LENGTHS,
            "q_start": T("b+1", "i32", "starts:t"),
            "alibi": T("h*2", "f32", "positive"),
        },
        (*({"alibi": None, **rules} for rules in _RULES), {}, {"causal": True}),
        {"t": 7, "b": 3},
    ),
    _attention(
        {
            **_Q,
            "k": T("p g h d", domain="cache"),
            "v": T("p g h e", domain="cache"),
            "kv_len": T("b", "i32", "length:n*g"),
            "block_table": T("b n", "i32", "index:p"),
        },
        (*_RULES[:5], _RULES[7]),
        {"g": 4, "n": 3, "p": 5},
    ),
    _attention(
        {
            "q": T("1 t h*2 d"),
            "k": T("p g h d", domain="cache"),
            "v": T("p g h e", domain="cache"),
            "kv_len": T("b", "i32", "length:n*g"),
            "q_start": T("b+1", "i32", "starts:t"),
            "block_table": T("b n", "i32", "distinct:p"),
        },
        _RULES[:3],
        {"g": 2, "n": 3, "p": 7, "t": 5},
    ),
    # NaN and infinities: in what is compared, and in what is weighted.
    *(
        Recipe(
            {
                name: replace(t, domain="values" if name in odd else "finite")
                for name, t in _WHOLE.items()
            },
            _RULES[:6],
            _SIZES_A,
            nonempty="dh",
        )
        for odd in ("qk", "v")
    ),
)

# -- images --------------------------------------------------------------------

_STEPS: _Sets = (
    {},
    {"bias": None},
    {"stride": 2, "padding": 1},
    {"dilation": 2},
    {"stride": 3, "padding": 2, "dilation": 2},
)
_UNEVEN: _Sets = (
    {"stride": (2, 1), "padding": (0, 1)},
    {"dilation": (1, 2), "padding": (2, 1), "bias": None},
)
_MORE: _Sets = (
    {"stride": 2, "output_padding": 1},
    {"dilation": 2, "output_padding": 1, "padding": 1},
)
_MORE2: _Sets = ({"stride": (2, 3), "output_padding": (0, 2), "padding": (1, 0)},)
_W1, _W2 = {"l": 11, "k": 3}, {"h": 9, "w": 11, "i": 3, "j": 2}
_GROUPS = ({"groups": 2}, {"groups": 2, "stride": 2}, {"groups": 2, "padding": 1, "dilation": 2})
_GROUPS_T = (*_GROUPS, {"groups": 2, "stride": 2, "output_padding": 1})
_add(
    "conv1d",
    Recipe({"x": T("b c l"), "w": T("o c k"), "bias": T("o")}, _STEPS, _W1, deep={"c": 700}),
    Recipe({"x": T("b c*2 l"), "w": T("o*2 c k")}, _GROUPS, _W1),
)
_add(
    "conv2d",
    Recipe({"x": T("b c h w"), "w": T("o c i j"), "bias": T("o")}, (*_STEPS, *_UNEVEN), _W2),
    Recipe({"x": T("b c*2 h w"), "w": T("o*2 c i j")}, _GROUPS, _W2),
    # Each channel by itself; and kernels of one element, which are matrix products.
    Recipe(
        {"x": T("b 4 h w"), "w": T("4 1 i j")}, ({"groups": 4}, {"groups": 4, "stride": 2}), _W2
    ),
    Recipe({"x": T("b c h w"), "w": T("o c 1 1")}, ({}, {"stride": 2}), _W2, deep={"c": 700}),
)
_add(
    "conv_transpose1d",
    Recipe({"x": T("b c l"), "w": T("c o k"), "bias": T("o")}, (*_STEPS, *_MORE), _W1),
    Recipe({"x": T("b c*2 l"), "w": T("c*2 o k")}, _GROUPS_T, _W1),
)
_T2 = (*_STEPS, *_UNEVEN, *_MORE, *_MORE2)
_add(
    "conv_transpose2d",
    Recipe({"x": T("b c h w"), "w": T("c o i j"), "bias": T("o")}, _T2, _W2),
    Recipe({"x": T("b c*2 h w"), "w": T("c*2 o i j")}, _GROUPS_T, _W2),
)
_IMAGE = {"x": T("b c h w")}
_WINDOWS: _Sets = (
    {"kernel": 2},
    {"kernel": 3, "stride": 2, "padding": 1},
    {"kernel": (3, 2), "stride": (1, 3), "padding": (1, 0)},
    {"kernel": 1},
)
_SPREAD: _Sets = ({"kernel": 2, "dilation": 2}, {"kernel": (2, 3), "dilation": (3, 1), "stride": 2})
_add("im2col", Recipe(_IMAGE, (*_WINDOWS, *_SPREAD), _W2))
_COUNTED: _Sets = (
    {"kernel": 3, "padding": 1, "count_padding": False},
    {"kernel": 3, "padding": 1},
)
_add("avg_pool2d", Recipe(_IMAGE, (*_WINDOWS, *_COUNTED), _W2))
_EDGES: _Sets = (
    {"kernel": 3, "padding": 1, "dilation": 2},
    {"kernel": 2, "padding": 1, "stride": 1},
)
_add("max_pool2d", Recipe(_IMAGE, (*_WINDOWS, *_SPREAD, *_EDGES), _W2, ties=True, extreme=True))
_LENGTHS_1: _Sets = ({"size": 7}, {"size": 24}, {"size": 11}, {"size": 1})
_add("upsample_nearest1d", Recipe({"x": T("b c l")}, _LENGTHS_1, _W1))
_SIZES: _Sets = ({"size": (5, 24)}, {"size": (18, 3)}, {"size": (9, 11)}, {"size": (1, 33)})
_add("upsample_nearest2d", Recipe(_IMAGE, _SIZES, _W2))
_ALIGNED = tuple({**given, "align_corners": True} for given in _SIZES)
_add("upsample_bilinear2d", Recipe(_IMAGE, (*_SIZES, *_ALIGNED), _W2))

# -- indices and caches --------------------------------------------------------

_ROUNDED: _Sets = ({}, {"dtype": dtypes.f16}, {"dtype": dtypes.f32})
_add(
    "embedding",
    Recipe({"ids": T("r s", domain="index:v"), "table": T("v c")}, _ROUNDED),
    Recipe({"ids": T("r s", domain="masked:v"), "table": T("v c")}),
)
_add(
    "index_select",
    Recipe({"x": T("v s c"), "ids": T("n", domain="index:v")}),
    Recipe({"x": T("s v c"), "ids": T("n", domain="masked:v")}, ({"dim": 1}, {"dim": -2})),
    Recipe({"x": T("s c v"), "ids": T("n", domain="masked:v")}, ({"dim": -1},)),
)
_add(
    "gather",
    Recipe({"x": T("r v"), "ids": T("r n", domain="index:v")}),
    Recipe({"x": T("v c*2 s"), "ids": T("n c s", domain="masked:v")}, ({"dim": 0},)),
    Recipe({"x": T("r v c"), "ids": T("r n c", domain="masked:v")}, ({"dim": 1},)),
)


def _written(domain: str) -> tuple[Recipe, ...]:
    """Elements of a target by index: along the last, the first and a middle dimension."""
    ids, same = f"{domain}:v", "=target"
    return (
        Recipe(
            {"target": T("r v"), "ids": T("r n", domain=ids), "source": T("r n", same)},
            sizes={"v": 7, "n": 5},
        ),
        Recipe(
            {"target": T("v c*2"), "ids": T("n c", domain=ids), "source": T("n c", same)},
            ({"dim": 0},),
            sizes={"v": 7, "n": 5},
        ),
        Recipe(
            {"target": T("r v c"), "ids": T("r n c", domain=ids), "source": T("r n c", same)},
            ({"dim": -2},),
            sizes={"v": 7, "n": 5},
        ),
    )


# "masked" repeats indices too: five of seven places, drawn freely.
_SOME = _written("masked")
_add("scatter", _written("distinct")[0], *_SOME)
_add("scatter_add", *_SOME)
_SLICES = {"ids": T("n", domain="masked:v")}
_add(
    "index_add",
    Recipe({"target": T("v s c"), **_SLICES, "source": T("n s c", "=target")}),
    Recipe({"target": T("s v c"), **_SLICES, "source": T("s n c", "=target")}, ({"dim": 1},)),
    Recipe({"target": T("s c v"), **_SLICES, "source": T("s c n", "=target")}, ({"dim": -1},)),
)
_TABLES = {"cos": T("r e", "f32"), "sin": T("r e", "f32")}
_TURNS = {"positions": T("b t", domain="index:r"), **_TABLES}
_add(
    "rope",
    *(
        Recipe({"x": T(f"b t h e*{parts}"), **_TURNS}, ({}, {"interleaved": True}))
        for parts in (2, 3)
    ),
)
_PLACES = {"positions": T("b t", domain="distinct:p")}
_add(
    "kv_append",
    Recipe(
        {"cache": T("b p h d"), "x": T("b t h d", "=cache"), **_PLACES},
        sizes={"p": 7, "t": 3},
    ),
)
_TARGET = {"target": T("r s c")}
_FILLS = (3.0, 0.1, -1e9, float("inf"), float("nan"))
_add("fill", Recipe(_TARGET, tuple({"value": v} for v in _FILLS), overwrites=True))
_ARANGES: _Sets = ({}, {"start": 2.0, "step": 3.0}, {"start": 100, "step": -7})
_add("arange", Recipe(_TARGET, _ARANGES, overwrites=True))
_add(
    "assign",
    Recipe({"target": T("r s c"), "source": T("s c", "=target")}, overwrites=True),
    Recipe({"target": T("r s c"), "source": T("r s c", "=target")}, overwrites=True),
    Recipe({"target": T("r s c"), "source": T("r 1 1", "=target")}, overwrites=True),
)
_SEEDS: _Sets = ({"seed": 7}, {"seed": 2**63, "offset": 5}, {"seed": 1, "offset": 2**64 - 1})
_add(
    "uniform",
    Recipe(_TARGET, (*_SEEDS, {"seed": 3, "low": -2.0, "high": 5.0}), overwrites=True),
)
_add("normal", Recipe(_TARGET, (*_SEEDS, {"seed": 3, "mean": 1.0, "std": 2.5}), overwrites=True))

# -- block formats -------------------------------------------------------------

_OUT = tuple({"dtype": d} for d in dtypes.ALL if d in dtypes.FLOATS)
_add("dequantize", Recipe({"x": T("r c")}, _OUT), Recipe({"x": T("b r c")}))
_BLOCKS = tuple({"dtype": d} for d in dtypes.ALL if d.is_block)
# Of infinities and of what has no inverse, quants are not defined.
_add("quantize", Recipe({"x": T("r c*256")}, _BLOCKS, special=False, denormal=False))

RECIPES: Final = _TABLE
