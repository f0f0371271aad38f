"""A tiny model with random weights, as a GGUF file and as a safetensors folder."""

from __future__ import annotations

import json
from functools import cached_property
from typing import TYPE_CHECKING
from typing import Any

import gguf
import numpy as np


if TYPE_CHECKING:
    from pathlib import Path

WIDTH, FFN, LAYERS, HEADS, KV_HEADS, HEAD_DIM, CONTEXT = 32, 64, 2, 4, 2, 8, 96
EPS, ROPE_BASE = 1e-5, 10_000.0
MERGES = ["t h", "th e", "Ġ the", "a n", "Ġ an", "l l", "o n"]
CONTROL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def alphabet() -> list[str]:
    """The characters of a byte-level vocabulary, by the byte they stand for (GPT-2's table)."""
    own = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = iter(range(256, 512))
    return [chr(byte if byte in own else next(rest)) for byte in range(256)]


class Tiny:
    """The tiny model: what its files hold, and its logits by other means than ours."""

    config: dict[str, Any] = {  # noqa: RUF012  as config.json has it
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": WIDTH,
        "intermediate_size": FFN,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "max_position_embeddings": CONTEXT,
        "rms_norm_eps": EPS,
        "rope_theta": ROPE_BASE,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
    }

    @cached_property
    def tokens(self) -> list[str]:
        """The vocabulary; token ``n`` below 256 is the byte ``n``."""
        return [*alphabet(), *(merge.replace(" ", "") for merge in MERGES), *CONTROL]

    @cached_property
    def weights(self) -> dict[str, np.ndarray]:
        """Random f32 weights under their Hugging Face names; the output is not tied."""
        random = np.random.default_rng(7)

        def matrix(rows: int, columns: int, scale: float = 1.0) -> np.ndarray:
            return random.normal(0, scale / columns**0.5, (rows, columns)).astype(np.float32)

        vocab = len(self.tokens)
        weights = {
            "model.embed_tokens.weight": matrix(vocab, WIDTH, 3),
            "model.norm.weight": random.uniform(0.5, 1.5, WIDTH).astype(np.float32),
            "lm_head.weight": matrix(vocab, WIDTH, 2),
        }
        for layer in range(LAYERS):
            name = f"model.layers.{layer}."
            weights |= {
                name + "input_layernorm.weight": random.uniform(0.5, 1.5, WIDTH).astype("f4"),
                name + "self_attn.q_proj.weight": matrix(HEADS * HEAD_DIM, WIDTH, 2),
                name + "self_attn.k_proj.weight": matrix(KV_HEADS * HEAD_DIM, WIDTH, 2),
                name + "self_attn.v_proj.weight": matrix(KV_HEADS * HEAD_DIM, WIDTH),
                name + "self_attn.o_proj.weight": matrix(WIDTH, HEADS * HEAD_DIM),
                name + "post_attention_layernorm.weight": np.ones(WIDTH, np.float32),
                name + "mlp.gate_proj.weight": matrix(FFN, WIDTH),
                name + "mlp.up_proj.weight": matrix(FFN, WIDTH),
                name + "mlp.down_proj.weight": matrix(WIDTH, FFN),
            }
        return weights

    @cached_property
    def metadata(self) -> dict[str, Any]:
        """What the GGUF file says, all but its architecture."""
        types = [1] * len(self.tokens)
        types[-len(CONTROL) :] = [3] * len(CONTROL)
        return {
            "llama.context_length": CONTEXT,
            "llama.embedding_length": WIDTH,
            "llama.feed_forward_length": FFN,
            "llama.block_count": LAYERS,
            "llama.attention.head_count": HEADS,
            "llama.attention.head_count_kv": KV_HEADS,
            "llama.attention.layer_norm_rms_epsilon": EPS,
            "llama.rope.freq_base": ROPE_BASE,
            "tokenizer.ggml.model": "gpt2",
            "tokenizer.ggml.pre": "gpt-2",
            "tokenizer.ggml.tokens": self.tokens,
            "tokenizer.ggml.merges": MERGES,
            "tokenizer.ggml.token_type": types,
            "tokenizer.ggml.bos_token_id": self.tokens.index("<|im_start|>"),
            "tokenizer.ggml.eos_token_id": self.tokens.index("<|im_end|>"),
            "tokenizer.chat_template": CHATML,
        }

    @property
    def gguf_tensors(self) -> dict[str, np.ndarray]:
        """The weights under their GGUF names, q and k with neighbours paired."""
        names = {"model.embed_tokens": "token_embd", "model.norm": "output_norm"}
        names |= {"lm_head": "output", "input_layernorm": "attn_norm"}
        names |= {f"self_attn.{x}_proj": f"attn_{x}" for x in "qkv"}
        names |= {f"mlp.{x}_proj": f"ffn_{x}" for x in ("gate", "up", "down")}
        names |= {"self_attn.o_proj": "attn_output", "post_attention_layernorm": "ffn_norm"}
        tensors = {}
        for name, values in self.weights.items():
            heads = {"q_proj": HEADS, "k_proj": KV_HEADS}.get(name.split(".")[-2], 0)
            if heads:  # as llama.cpp's converter permutes them
                halves = values.reshape(heads, 2, HEAD_DIM // 2, WIDTH)
                values = halves.swapaxes(1, 2).reshape(values.shape)  # noqa: PLW2901
            ours = name.replace("model.layers.", "blk.")
            for theirs, short in names.items():
                ours = ours.replace(theirs, short)
            tensors[ours] = values
        return tensors

    def gguf(
        self,
        path: Path,
        *,
        metadata: dict[str, Any] | None = None,
        tensors: dict[str, np.ndarray | None] | None = None,
        architecture: str = "llama",
        stored: gguf.GGMLQuantizationType = gguf.GGMLQuantizationType.F32,
    ) -> Path:
        """Write the GGUF file; ``metadata`` and ``tensors`` are changed, None removes."""
        writer = gguf.GGUFWriter(path, architecture)
        for key, value in (self.metadata | (metadata or {})).items():
            if isinstance(value, list):
                writer.add_array(key, value)
            elif value is not None:
                kinds = {str: "STRING", bool: "BOOL", int: "UINT32", float: "FLOAT32"}
                writer.add_key_value(key, value, gguf.GGUFValueType[kinds[type(value)]])
        for name, values in (self.gguf_tensors | (tensors or {})).items():
            if (
                values is not None
                and values.ndim == 2
                and stored is not gguf.GGMLQuantizationType.F32
            ):
                writer.add_tensor(name, gguf.quants.quantize(values, stored), raw_dtype=stored)
            elif values is not None:
                writer.add_tensor(name, values)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path

    def folder(
        self,
        path: Path,
        *,
        config: dict[str, Any] | None = None,
        tensors: dict[str, np.ndarray | None] | None = None,
    ) -> Path:
        """Write the safetensors folder; ``config`` and ``tensors`` are changed, None removes."""
        from safetensors.numpy import save_file

        path.mkdir(exist_ok=True)
        kept = {k: v for k, v in (self.weights | (tensors or {})).items() if v is not None}
        save_file(kept, path / "model.safetensors")
        settings = self.config | {"vocab_size": len(self.tokens)} | (config or {})
        settings = {key: value for key, value in settings.items() if value is not None}
        (path / "config.json").write_text(json.dumps(settings), encoding="utf-8")
        level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
        level["use_regex"] = True
        off = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
        vocab = {text: index for index, text in enumerate(self.tokens)}
        added = [{"id": vocab[x], "content": x, "special": True, **off} for x in CONTROL]
        tokenizer = {
            "version": "1.0",
            "added_tokens": added,
            "pre_tokenizer": level,
            "decoder": level,
            "model": {"type": "BPE", "vocab": vocab, "merges": MERGES},
        }
        extras = {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>", "chat_template": CHATML}
        (path / "tokenizer.json").write_text(json.dumps(tokenizer), encoding="utf-8")
        (path / "tokenizer_config.json").write_text(json.dumps(extras), encoding="utf-8")
        return path

    def reference(self, ids: list[int], frequencies: np.ndarray | None = None) -> np.ndarray:
        """The logits after each token, in f64, the whole sequence at once, head by head."""
        w = {name: values.astype(np.float64) for name, values in self.weights.items()}
        half = HEAD_DIM // 2
        if frequencies is None:
            frequencies = np.array([ROPE_BASE ** (-2 * i / HEAD_DIM) for i in range(half)])
        turn = np.exp(1j * np.arange(len(ids))[:, None] * frequencies)

        def norm(x: np.ndarray, name: str) -> np.ndarray:
            return x / np.sqrt((x * x).mean(-1, keepdims=True) + EPS) * w[name + ".weight"]

        def rotated(x: np.ndarray) -> np.ndarray:
            y = (x[:, :half] + 1j * x[:, half:]) * turn
            return np.concatenate([y.real, y.imag], 1)

        x = w["model.embed_tokens.weight"][ids]
        mask = np.triu(np.full((len(ids), len(ids)), -np.inf), 1)
        for layer in range(LAYERS):
            name = f"model.layers.{layer}."
            y = norm(x, name + "input_layernorm")
            q, k, v = (
                (y @ w[f"{name}self_attn.{p}_proj.weight"].T).reshape(len(ids), -1, HEAD_DIM)
                for p in "qkv"
            )
            heads = []
            for head in range(HEADS):
                group = head // (HEADS // KV_HEADS)
                scores = rotated(q[:, head]) @ rotated(k[:, group]).T / HEAD_DIM**0.5 + mask
                shares = np.exp(scores - scores.max(1, keepdims=True))
                heads.append(shares / shares.sum(1, keepdims=True) @ v[:, group])
            x = x + np.concatenate(heads, 1) @ w[name + "self_attn.o_proj.weight"].T
            y = norm(x, name + "post_attention_layernorm")
            gate, up = (y @ w[f"{name}mlp.{p}_proj.weight"].T for p in ("gate", "up"))
            x = x + (gate / (1 + np.exp(-gate)) * up) @ w[name + "mlp.down_proj.weight"].T
        return norm(x, "model.norm") @ w["lm_head.weight"].T
