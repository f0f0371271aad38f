"""Attention: each sequence by itself, the rules in their order."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING
from typing import Any
from typing import Final

import numpy as np

from propolis_conformance.inputs import Recipe
from propolis_conformance.inputs import T
from propolis_conformance.op_info import OpInfo


if TYPE_CHECKING:
    from collections.abc import Mapping

    from propolis_conformance.inputs import AttributeSets
    from propolis_conformance.op_info import Array

OPS: Final[dict[str, OpInfo]] = {}


def _attention(*args: Any, **kwargs: Any) -> Array:
    return _attention_lse(*args, **kwargs)[0]


def _attention_lse(
    q: Array,
    k: Array,
    v: Array,
    kv_len: Array | None = None,
    *,
    bias: Array | None = None,
    q_start: Array | None = None,
    block_table: Array | None = None,
    **rules: Any,
) -> tuple[Array, Array]:
    """Each sequence by itself."""
    y = np.zeros((*q.shape[:3], v.shape[3]))
    lse = np.full((q.shape[0], q.shape[2], q.shape[1]), -np.inf)
    count = q.shape[0] if q_start is None else len(q_start) - 1
    for s in range(count):
        if block_table is None:
            keys, values = k[s], v[s]
        else:  # page after page
            keys, values = (np.concatenate([*pool[block_table[s]], pool[0][:0]]) for pool in (k, v))
        valid = len(keys) if kv_len is None else int(kv_len[s])
        row, tokens = s, slice(None)
        if q_start is not None:
            row, tokens = 0, slice(int(q_start[s]), int(q_start[s + 1]))
        full = (count, q.shape[2], q.shape[1], k.shape[1])
        own = None if bias is None else np.broadcast_to(bias, full)[s, :, :, :valid]
        given = q[row, tokens], keys[:valid], values[:valid]
        y[row, tokens], lse[row, :, tokens] = _attend(*given, own, **rules)
    return y, lse


def _attend(
    q: Array,
    k: Array,
    v: Array,
    bias: Array | None,
    *,
    scale: float | None = None,
    causal: bool = False,
    window: tuple[int, int] | None = None,
    softcap: float = 0.0,
    alibi: Array | None = None,
) -> tuple[Array, Array]:
    """One sequence: (tokens, heads, dim), (keys, kv_heads, dim): the rules in their order."""
    (t, heads, dim), n = q.shape, len(k)
    k, v = (np.repeat(a, heads // a.shape[1], 1) for a in (k, v))
    scores = q.transpose(1, 0, 2) @ k.transpose(1, 2, 0)  # (heads, tokens, keys)
    scores = scores * (dim**-0.5 if scale is None else scale)
    if softcap:
        scores = softcap * np.tanh(scores / softcap)
    if bias is not None:
        scores = scores + bias
    position, key = n - t + np.arange(t)[:, None], np.arange(n)
    if alibi is not None:
        scores = scores - alibi[:, None, None] * np.abs(position - key)
    hidden = np.zeros((t, n), bool)
    if causal:
        hidden |= key > position
    left, right = window or (-1, -1)
    if left >= 0:
        hidden |= key < position - left
    if right >= 0:
        hidden |= key > position + right
    scores = np.where(hidden, -np.inf, scores)
    top = scores.max(-1, keepdims=True, initial=-np.inf)
    shift = np.where(top == -np.inf, 0, top)
    weights = np.exp(scores - shift)
    total = weights.sum(-1, keepdims=True)
    v = v.transpose(1, 0, 2)
    if np.isfinite(v).all():
        y = weights @ v
    else:  # a hidden key adds nothing, not even 0 * NaN
        terms = weights[..., None] * v[:, None]
        y = np.where(hidden[None, :, :, None], 0, terms).sum(2)
    y = y / np.where(total == 0, 1, total)
    lse = np.log(total) + shift
    return y.transpose(1, 0, 2), lse[..., 0]


_SIZES = {"t": 3, "s": 5, "b": 2}
_PREFILL = {"t": 37, "s": 45, "d": 16, "e": 8}
_WIDE = {"t": 19, "s": 21, "h": 1, "d": 200, "e": 136}
_Q = {"q": T("b t h*2 d")}
_KV = {"k": T("b s h d", domain="cache"), "v": T("b s h e", domain="cache")}
_LENGTHS = {"kv_len": T("b", "i32", "length:s")}
_PAGES = {
    "k": T("p g h d", domain="cache"),
    "v": T("p g h e", domain="cache"),
    "kv_len": T("b", "i32", "length:n*g"),
}
_RULES: AttributeSets = (
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
_BIASED: AttributeSets = ({}, {"causal": True}, {"softcap": 2.0}, {"window": (1, 1)})
_WHOLE = {"q": T("b t h*2 d"), "k": T("b s h d"), "v": T("b s h e")}


def _recipe(tensors: Mapping[str, T], rules: AttributeSets, sizes: Mapping[str, int]) -> Recipe:
    return Recipe(tensors, rules, {**_SIZES, **sizes}, special=False, nonempty="dhg")


_RECIPES = (
    _recipe({**_Q, **_KV, **_LENGTHS}, (*_RULES, {"kv_len": None}), {}),
    # More queries than keys, and heads of keys shared by all.
    _recipe({**_Q, **_KV, **_LENGTHS}, _RULES[:4], {"t": 7, "s": 4, "h": 1}),
    _recipe({**_WHOLE, "bias": T("b h*2 t s")}, _BIASED, {}),
    _recipe({**_WHOLE, "bias": T("h*2 1 s", domain="mask")}, _BIASED, {}),
    _recipe({**_WHOLE, "bias": T("h*2 t s", "f32")}, _BIASED[:2], {"t": 6}),
    _recipe({**_WHOLE, "alibi": T("h*2", "f32", "positive")}, _BIASED, {"t": 4}),
    _recipe(
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
    _recipe(
        {**_Q, **_PAGES, "block_table": T("b n", "i32", "index:p")},
        (*_RULES[:5], _RULES[7]),
        {"g": 4, "n": 3, "p": 5},
    ),
    _recipe(
        {
            "q": T("1 t h*2 d"),
            **_PAGES,
            "q_start": T("b+1", "i32", "starts:t"),
            "block_table": T("b n", "i32", "distinct:p"),
        },
        _RULES[:3],
        {"g": 2, "n": 3, "p": 7, "t": 5},
    ),
    # Queries and heads enough for matrix instructions, which may leave smaller ones to others.
    _recipe({**_Q, **_KV, **_LENGTHS}, _RULES, _PREFILL),
    _recipe(
        {"q": T("1 t h*2 d"), **_KV, **_LENGTHS, "q_start": T("b+1", "i32", "starts:t")},
        _RULES[:3],
        {**_PREFILL, "t": 150, "b": 3},
    ),
    # NaN and infinities: in what is compared, and in what is weighted.
    *(
        Recipe(
            {
                name: replace(t, domain="values" if name in odd else "finite")
                for name, t in _WHOLE.items()
            },
            _RULES[:6],
            _SIZES,
            nonempty="dh",
        )
        for odd in ("qk", "v")
    ),
    # Wide heads, which kernels may divide, and values wider or narrower than keys.
    _recipe({**_Q, **_KV, **_LENGTHS}, (_RULES[1], _RULES[6]), _WIDE),
    _recipe({**_Q, **_KV, **_LENGTHS}, (_RULES[0], _RULES[7]), {**_WIDE, "d": 120, "e": 248}),
    # Those of image models' decoders are wider still.
    _recipe({**_Q, **_KV, **_LENGTHS}, _RULES[1:2], {**_WIDE, "d": 512, "e": 512}),
)
OPS["attention"] = OpInfo(_attention, _RECIPES)
# Lengths, ragged sequences in pages, and tiles: what is seen by whom is the same as above.
OPS["attention_lse"] = OpInfo(_attention_lse, _RECIPES, brief=(0, 8, 10, 11))

# Keys and values in blocks, or of fewer bits than queries, are the numbers that they stand for.
# Sizes of heads are counted in blocks of 32, where there are any.
_IN_BLOCKS = {"d": 2, "e": 3}
_BLOCKS = {
    "k": T("b s h d", "=k", domain="cache"),
    "v": T("b s h e", "=k", domain="cache"),
}
_BLOCK_PAGES = {
    "k": T("p g h d", "=k", domain="cache"),
    "v": T("p g h e", "=k", domain="cache"),
    "kv_len": T("b", "i32", "length:n*g"),
}
_QUANTIZED = (
    _recipe({**_Q, **_BLOCKS, **_LENGTHS}, (*_RULES, {"kv_len": None}), _IN_BLOCKS),
    _recipe({**_Q, **_BLOCKS, **_LENGTHS}, _RULES[:4], {"t": 7, "s": 4, "h": 1, "d": 1, "e": 1}),
    _recipe(
        {**_Q, "k": T("b s h d", "=k"), "v": T("b s h e", "=k"), "bias": T("b h*2 t s")},
        _BIASED,
        _IN_BLOCKS,
    ),
    _recipe(
        {
            "q": T("1 t h*2 d"),
            **_BLOCKS,
            **_LENGTHS,
            "q_start": T("b+1", "i32", "starts:t"),
            "alibi": T("h*2", "f32", "positive"),
        },
        (*({"alibi": None, **rules} for rules in _RULES[:3]), {"causal": True}),
        {**_IN_BLOCKS, "t": 7, "b": 3},
    ),
    _recipe(
        {**_Q, **_BLOCK_PAGES, "block_table": T("b n", "i32", "index:p")},
        (*_RULES[:3], _RULES[7]),
        {**_IN_BLOCKS, "g": 4, "n": 3, "p": 5},
    ),
    _recipe(
        {
            "q": T("1 t h*2 d"),
            **_BLOCK_PAGES,
            "q_start": T("b+1", "i32", "starts:t"),
            "block_table": T("b n", "i32", "distinct:p"),
        },
        _RULES[:2],
        {**_IN_BLOCKS, "g": 2, "n": 3, "p": 7, "t": 19},
    ),
    _recipe({**_Q, **_BLOCKS, **_LENGTHS}, _RULES[:5], {**_PREFILL, "d": 4, "e": 2}),
    # As many elements as kernels load at once also where they are no blocks.
    _recipe({**_Q, **_BLOCKS, **_LENGTHS}, _RULES[:4], {"t": 1, "s": 150, "d": 8, "e": 8, "h": 2}),
    _recipe({**_Q, **_BLOCKS, **_LENGTHS}, _RULES[:5], {**_PREFILL, "d": 8, "e": 8}),
    _recipe(
        {"q": T("1 t h*2 d"), **_BLOCKS, **_LENGTHS, "q_start": T("b+1", "i32", "starts:t")},
        _RULES[:2],
        {**_PREFILL, "t": 150, "b": 3, "d": 8, "e": 8},
    ),
    # NaN and infinities in what is compared; in blocks, scales of rows that nobody wrote have them.
    Recipe(
        {"q": T("b t h*2 d"), "k": T("b s h d", "=k"), "v": T("b s h e", "=k")},
        _RULES[:3],
        {**_SIZES, **_IN_BLOCKS},
        nonempty="dh",
    ),
)
OPS["qattention"] = OpInfo(_attention, _QUANTIZED)
OPS["qattention_lse"] = OpInfo(_attention_lse, _QUANTIZED, brief=(1, 5, 7))
