"""Llama files of real shapes with random weights: all that speed depends on."""

from __future__ import annotations

from typing import TYPE_CHECKING
from typing import Any
from typing import Final

import gguf
import numpy as np


if TYPE_CHECKING:
    from pathlib import Path

Q4_1: Final = gguf.GGMLQuantizationType.Q4_1
Q4_K: Final = gguf.GGMLQuantizationType.Q4_K
# Width, feed-forward width, layers, query heads, key heads, vocabulary: those of SmolLM2-135M,
# Llama 3.2 1B and Llama 3.1 8B, Qwen3-30B-A3B with fewer layers and heads of half, one to try with.
SHAPES: Final = {
    "tiny": (256, 512, 2, 4, 2, 1024),
    "135m": (576, 1536, 30, 9, 3, 49152),
    "1b": (2048, 8192, 16, 32, 8, 128256),
    "8b": (4096, 14336, 32, 32, 8, 128256),
    "a3b": (2048, 768, 4, 32, 4, 151936),
}
# Of mixtures: experts of a layer, and those of a token.
EXPERTS: Final = {"a3b": (128, 8)}


def quantized(columns: int) -> gguf.GGMLQuantizationType:
    """Q4_K, or Q4_1 where rows are not made of its blocks."""
    return Q4_K if columns % 256 == 0 else Q4_1


def random_blocks(rng: np.random.Generator, rows: int, columns: int) -> np.ndarray:
    """
    A matrix of blocks: random, of zero mean, no layer making more of its input.

    Returns:
        (rows, bytes of a row) u8.
    """
    in_super = quantized(columns) is Q4_K
    block, size = (256, 144) if in_super else (32, 20)
    blocks = np.frombuffer(rng.bytes(rows * columns // block * size), np.uint8).copy()
    blocks = blocks.reshape(-1, size)
    # A quant is 7.5 on average, so 7.5 times as much of the minimum, which Q4_1 adds, balances it.
    step = 1 / ((256 if in_super else 8) * columns**0.5)
    blocks[:, 0:2] = np.array([step], np.float16).view(np.uint8)
    least = 7.5 * step * (1 if in_super else -1)
    blocks[:, 2:4] = np.array([least], np.float16).view(np.uint8)
    return blocks.reshape(rows, -1)


def random_halves(rng: np.random.Generator, rows: int, columns: int, stored: str) -> np.ndarray:
    """
    A matrix of F16 or BF16: as :func:`random_blocks`.

    Returns:
        (rows, columns) f16, or (rows, 2 * columns) u8 of bf16.
    """
    values = rng.standard_normal((rows, columns), np.float32)
    values *= columns**-0.5
    return gguf.quantize(values, gguf.GGMLQuantizationType[stored])


def write_random_llama(path: Path, shape: str, stored: str = "Q4_K") -> Path:
    """
    Write a Llama of one of :data:`SHAPES`; every layer has the same weights.

    Args:
        path: where.
        shape: which.
        stored: Q4_K (Q4_1 where rows are not made of its blocks), F16 or BF16.
    """

    def matrix(rows: int, columns: int) -> np.ndarray:
        if stored == "Q4_K":
            return random_blocks(rng, rows, columns)
        return random_halves(rng, rows, columns, stored)

    def kind_of(columns: int) -> gguf.GGMLQuantizationType:
        return quantized(columns) if stored == "Q4_K" else gguf.GGMLQuantizationType[stored]

    width, inner, layers, heads, kv_heads, vocab = SHAPES[shape]
    head = width // heads
    writer = gguf.GGUFWriter(path, "llama")
    for name, value in _metadata(shape).items():
        if isinstance(value, list):
            writer.add_array(name, value)
        else:
            kinds = {str: "STRING", int: "UINT32", float: "FLOAT32"}
            writer.add_key_value(name, value, gguf.GGUFValueType[kinds[type(value)]])
    rng = np.random.default_rng(1)
    layer = {
        "attn_q": matrix(width, width),
        "attn_k": matrix(kv_heads * head, width),
        "attn_v": matrix(kv_heads * head, width),
        "attn_output": matrix(width, width),
    }
    count, _ = EXPERTS.get(shape, (0, 0))
    parts = {"ffn_gate": (inner, width), "ffn_up": (inner, width), "ffn_down": (width, inner)}
    for name, (rows, columns) in parts.items():
        if count:
            all_rows = matrix(count * rows, columns)
            layer[f"{name}_exps"] = all_rows.reshape(count, rows, -1)
        else:
            layer[name] = matrix(rows, columns)
    router = rng.standard_normal((count, width), np.float32)
    ones = np.ones(width, np.float32)
    for index in range(layers):
        for name, blocks in layer.items():
            kind = kind_of(inner if name.startswith("ffn_down") else width)
            writer.add_tensor(f"blk.{index}.{name}.weight", blocks, raw_dtype=kind)
        writer.add_tensor(f"blk.{index}.attn_norm.weight", ones)
        writer.add_tensor(f"blk.{index}.ffn_norm.weight", ones)
        if count:
            writer.add_tensor(f"blk.{index}.ffn_gate_inp.weight", router)
    for name in ("token_embd", "output"):
        writer.add_tensor(f"{name}.weight", matrix(vocab, width), raw_dtype=kind_of(width))
    writer.add_tensor("output_norm.weight", ones)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _metadata(shape: str) -> dict[str, Any]:
    width, inner, layers, heads, kv_heads, vocab = SHAPES[shape]
    own = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = iter(range(256, 512))
    tokens = [chr(byte if byte in own else next(rest)) for byte in range(256)]  # GPT-2's table
    tokens += ["th", "an"]
    tokens += [f"<{n}>" for n in range(vocab - len(tokens))]
    numbers = ("llama.expert_count", "llama.expert_used_count")
    return {
        **dict(zip(numbers, EXPERTS.get(shape, ()), strict=False)),
        "llama.context_length": 16384,
        "llama.embedding_length": width,
        "llama.feed_forward_length": inner,
        "llama.block_count": layers,
        "llama.attention.head_count": heads,
        "llama.attention.head_count_kv": kv_heads,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.rope.freq_base": 500000.0,
        "llama.rope.dimension_count": width // heads,
        "llama.vocab_size": vocab,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.merges": ["t h", "a n"],
        "tokenizer.ggml.token_type": [1] * vocab,
        "tokenizer.ggml.bos_token_id": vocab - 2,
        "tokenizer.ggml.eos_token_id": vocab - 1,
    }
