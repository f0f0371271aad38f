"""What a language model takes in memory, known before any of it is taken."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING
from typing import Final

from propolis import dtypes
from propolis import ops
from propolis.dispatch import DispatchTable


if TYPE_CHECKING:
    from collections.abc import Callable

    from propolis import Device
    from propolis import DType
    from propolis_workers.llm.config import ModelConfig
    from propolis_workers.weights import Weights

# Tokens of a prompt at a time: matrices large enough for BLAS, activations small
# enough for the cache.
CHUNK: Final = 512

# Tokens of prompts at a time after which all logits are looked at, as somebody wants to know how
# likely the next ones are: a vocabulary's for each.
SCORED: Final = 64

# Tokens of a page of a layer that keeps its window alone.
PAGE: Final = 64

_F32: Final = 4
_EXPERTS: Final = ("_exps.", ".experts.")  # in the names of tensors that hold all of a layer's
_LANGUAGE: Final = "language_model."  # of a model of images too, in the names of what is read
# Queries whose scores an implementation on the CPU holds at once, in each thread.
_SCORED: Final = 128


def weight_bytes(
    source: Weights,
    embedding: str,
    output: str,
    device: Device,
    dtype: DType = dtypes.f32,
) -> int:
    """
    Bytes of a model's weights once they are on a device and prepared.

    Args:
        source: weights as the network takes them; nothing but their description is read.
        embedding: its name of the embedding, which stays as it is.
        output: its name of the output; where it has none, the embedding is that too.
        device: whose implementations prepare the weights.
        dtype: of activations, and of weights that are no blocks.
    """
    plain = dtype.nbytes(1)
    each: dict[tuple[DType, int], float] = {}
    total = 0.0
    tied = output not in source.tensors
    for name, info in source.tensors.items():
        if _LANGUAGE in embedding and _LANGUAGE not in name and name != output:
            continue  # what looks at images is not read
        numel = math.prod(info.shape)
        if name == embedding:
            if not (tied and is_shared(info.dtype, dtype, device)):
                total += info.nbytes
            if not tied:
                continue
        if not info.dtype.is_block:
            total += numel * plain
            continue
        if len(info.shape) > 2 and not any(experts in name for experts in _EXPERTS):
            # Merged as numbers, not in their format.
            total += numel * plain
            continue
        rank = len(info.shape)
        if (info.dtype, rank) not in each:
            op = ops.moe_qmatmul if rank > 2 else ops.qmatmul
            weights = DispatchTable.of(device).weights
            key = op.key(dtype, info.dtype)
            each[info.dtype, rank] = weights.expected(op, key, info.dtype, rank)
        total += numel * each[info.dtype, rank]
    return int(total)


def is_shared(held: DType, dtype: DType, device: Device) -> bool:
    """
    Whether an embedding is the output too as one tensor.

    Args:
        held: what its file has it in.
        dtype: of activations.
        device: whose implementations may prepare weights, apart from the embedding then, unless
            who looks up rows finds them in that form too.
    """
    if held is not dtype and not held.is_block:
        return False
    op, kinds = (ops.qmatmul, (dtype, held)) if held.is_block else (ops.linear, (dtype,))
    table = DispatchTable.of(device)
    winner = table.trace(op, op.key(*kinds)).winner
    if winner is None or winner.prepare is None:
        return winner is not None
    rows = table.trace(ops.embedding, ops.embedding.key(dtypes.i64, held)).winner
    return rows is not None and rows.prepare == winner.prepare


def rows_of(window: int, capacity: int) -> int:
    """
    Tokens whose keys and values a layer keeps of one sequence.

    Args:
        window: keys that a query sees, its own included; 0 for all.
        capacity: tokens that the sequence may have.

    Returns:
        The capacity, or where that is less a window and the most tokens that are appended at
        once, in whole pages.
    """
    pages = -(-(window + CHUNK) // PAGE)
    return min(pages * PAGE, capacity) if window else capacity


def sequence_bytes(
    config: ModelConfig, capacity: int, threads: int = 1, *, rows: int = CHUNK
) -> int:
    """
    Bytes that a sequence takes beside the weights.

    Keys and values of all its tokens, or of a layer's window, the tables of rotations, and what a
    chunk of the prompt needs in between, in f32.

    Args:
        config: the model's numbers.
        capacity: tokens that the sequence may have.
        threads: that compute attention at once.
        rows: tokens that are computed at once; those of captured steps count by themselves.
    """
    cached = _cached(config, lambda layer: rows_of(config.window(layer), capacity))
    return cached + passing_bytes(config, capacity, rows, threads)


def passing_bytes(
    config: ModelConfig, capacity: int, rows: int, threads: int = 1, *, wanted: int = 1
) -> int:
    """
    Bytes of what is computed of so many tokens in between; as :func:`sequence_bytes`.

    Of one sequence no more than its capacity; ``wanted`` is how many rows' logits there are.
    """
    return _F32 * _passing(config, capacity, rows, wanted, threads)


def captured_bytes(config: ModelConfig, rows: int, wanted: int) -> int:
    """Bytes of what is computed of a step's rows, and of the logits of some, as they are kept."""
    return _F32 * _between(config, rows, wanted)


def batch_bytes(
    config: ModelConfig,
    tokens: int,
    context: int,
    sequences: int,
    threads: int = 1,
    *,
    windows: int | None = None,
    guesses: int = 0,
    budget: int = CHUNK,
) -> int:
    """
    Bytes that many sequences take together beside the weights.

    Args:
        config: the model's numbers.
        tokens: that the cache holds for all of them.
        context: tokens that one of them may have.
        sequences: that run at once.
        threads: that compute attention at once.
        windows: tokens that layers with a window hold for all of them; all tokens when None.
        guesses: tokens that may be guessed for each, whose logits a step has too.
        budget: tokens of a step; those of captured ones count by themselves.
    """
    windows = tokens if windows is None else windows
    rows = max(CHUNK, budget) + 2 * sequences  # each size of a ladder has what passes to itself
    cached = _cached(config, lambda layer: windows if config.window(layer) else tokens)
    wanted = sequences + min(max(sequences * guesses, SCORED), CHUNK)  # no step has more
    return cached + _F32 * _passing(config, context, rows, wanted, threads)


def _cached(config: ModelConfig, tokens: Callable[[int], int]) -> int:
    """
    Bytes of all keys and values, of as many tokens as each layer keeps.

    Where they are kept in blocks a layer's are there in f32 besides: who has no attention of
    blocks makes numbers of them, a layer at a time.
    """
    layers = range(config.layers)
    kept = [
        sum(heads * dim for heads, dim in config.kept(layer)) * tokens(layer) for layer in layers
    ]
    passing = _F32 * max(kept) if config.kv_dtype.is_block else 0
    return passing + sum(config.kept_as(layer).nbytes(kept[layer]) for layer in layers)


def _passing(config: ModelConfig, capacity: int, rows: int, wanted: int, threads: int) -> int:
    """Numbers of the rotations' tables, and of what a step needs in between."""
    turned = sum(rope.dim for rope in config.ropes)
    rope = turned * min(2 * capacity, config.context_length)
    rows = min(rows, capacity) if wanted == 1 else rows
    scores = threads * min(_SCORED, rows) * (config.heads // config.kv_heads) * capacity
    return rope + _between(config, rows, wanted) + scores


def _between(config: ModelConfig, rows: int, wanted: int) -> int:
    """Numbers of rows in between, and of the logits of some of them."""
    heads, kv_width = config.heads * config.head_dim, config.kv_heads * config.head_dim
    widest = max(3 * config.inner_width, 2 * (heads + 2 * kv_width) + 2 * heads)
    if (experts := config.experts) is not None:
        # What a token's experts give, beside what they are given or what is weighted of it.
        widest = max(widest, experts.used * (config.width + max(config.width, experts.width)))
    return rows * (4 * config.width + widest) + 2 * wanted * config.vocab_size


__all__ = [
    "CHUNK",
    "PAGE",
    "SCORED",
    "batch_bytes",
    "captured_bytes",
    "is_shared",
    "passing_bytes",
    "rows_of",
    "sequence_bytes",
    "weight_bytes",
]
