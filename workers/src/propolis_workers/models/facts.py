"""What a model's file or folder says of it, and what running it here takes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from dataclasses import field
from dataclasses import replace
from typing import TYPE_CHECKING
from typing import Any

from propolis.errors import PropolisError
from propolis_workers.files import read_json
from propolis_workers.llm.chat_template import ChatTemplate
from propolis_workers.llm.conversation import DEFAULT_CONTEXT
from propolis_workers.llm.memory import sequence_bytes
from propolis_workers.llm.memory import weight_bytes
from propolis_workers.llm.models import expect_weights
from propolis_workers.llm.models import names_in
from propolis_workers.llm.models import read_config
from propolis_workers.llm.models import weights_of
from propolis_workers.llm.prompts import open_tokenizer
from propolis_workers.llm.prompts import open_weights
from propolis_workers.llm.session import computed_dtype
from propolis_workers.llm.session import kept_dtype
from propolis_workers.weights import GGUFFile


if TYPE_CHECKING:
    from pathlib import Path

    from propolis import Runtime
    from propolis_workers.llm.config import ModelConfig
    from propolis_workers.weights import SafetensorsFolder


@dataclass(frozen=True, slots=True)
class Need:
    """
    Memory that a model takes on a device.

    Attributes:
        device: its id.
        weights: bytes of the weights once they are there and prepared.
        contexts: tokens of a sequence -> bytes of weights and sequence together.
        free: bytes that can be had now; None where that is not known.
        problem: why nothing is known of this device.
        dtype: what ``--dtype auto`` computes in there.
        kv_dtype: what ``--kv-type auto`` keeps keys and values in.
    """

    device: str
    weights: int = 0
    contexts: dict[int, int] = field(default_factory=dict)
    free: int | None = None
    problem: str | None = None
    dtype: str = ""
    kv_dtype: str = ""


@dataclass(frozen=True, slots=True)
class Facts:
    """
    A model, as its files describe it.

    Attributes:
        path: the file or folder.
        container: ``"GGUF 3"`` or ``"safetensors"``.
        architecture: its name in the file.
        parameters: numbers in all tensors.
        nbytes: bytes of all tensors.
        tensors: how many there are.
        quantisation: element type -> share of the parameters, the largest first.
        config: the numbers; None where no worker here runs it.
        tokenizer: the kind of its vocabulary.
        vocab: tokens in it; None where it cannot be used here.
        template: source of the chat template, where there is one.
        problems: why it does not run here, or not in chats.
        needs: memory, device by device.
    """

    path: Path
    container: str
    architecture: str
    parameters: int
    nbytes: int
    tensors: int
    quantisation: dict[str, float]
    config: ModelConfig | None
    tokenizer: str
    vocab: int | None
    template: str | None
    problems: tuple[str, ...]
    needs: tuple[Need, ...]


def facts_of(path: Path, runtime: Runtime) -> Facts:
    """
    Read what a model says of itself; its weights stay on the disk.

    Args:
        path: a GGUF file or a safetensors folder.
        runtime: whose devices it may run on.

    Raises:
        ModelError: it is neither, or is damaged.
    """
    source = open_weights(path)
    problems: list[str] = []
    config: ModelConfig | None = None
    vocab, template = None, _template(source)
    try:
        config = read_config(source)
        expect_weights(source, config)
    except PropolisError as exc:
        problems.append(str(exc))
    try:
        tokenizer = open_tokenizer(path, source)
        vocab, template = tokenizer.vocab_size, tokenizer.chat_template
    except PropolisError as exc:
        problems.append(str(exc))
    try:
        if template is not None:
            ChatTemplate(template)
    except PropolisError as exc:
        problems.append(f"in chats: {exc}")
    of_type: dict[str, int] = {}
    for info in source.tensors.values():
        count = math.prod(info.shape)
        of_type[info.dtype.name] = of_type.get(info.dtype.name, 0) + count
    total = sum(of_type.values())
    gguf = isinstance(source, GGUFFile)
    return Facts(
        path=path,
        container=f"GGUF {source.version}" if isinstance(source, GGUFFile) else "safetensors",
        architecture=_said(source, "general.architecture", "model_type"),
        parameters=total,
        nbytes=sum(info.nbytes for info in source.tensors.values()),
        tensors=len(source.tensors),
        quantisation={
            kind: count / max(total, 1)
            for kind, count in sorted(of_type.items(), key=lambda one: -one[1])
        },
        config=config,
        tokenizer=_vocabulary(path, source) if gguf else _folder_vocabulary(path),
        vocab=vocab,
        template=template,
        problems=tuple(problems),
        needs=() if config is None else _needs(source, config, runtime),
    )


def as_dict(facts: Facts) -> dict[str, Any]:
    """The same for ``--json``."""
    config = facts.config
    return {
        "path": str(facts.path),
        "format": facts.container,
        "architecture": facts.architecture,
        "parameters": facts.parameters,
        "bytes": facts.nbytes,
        "tensors": facts.tensors,
        "quantisation": facts.quantisation,
        "context": config and config.context_length,
        "layers": config and config.layers,
        "width": config and config.width,
        "heads": config and config.heads,
        "kv_heads": config and config.kv_heads,
        "tokenizer": facts.tokenizer,
        "vocab": facts.vocab,
        "template": facts.template,
        "problems": list(facts.problems),
        "memory": [
            {
                "device": need.device,
                "weights": need.weights,
                "contexts": {str(tokens): nbytes for tokens, nbytes in need.contexts.items()},
                "free": need.free,
                "problem": need.problem,
                "dtype": need.dtype,
                "kv_dtype": need.kv_dtype,
            }
            for need in facts.needs
        ],
    }


def _said(source: GGUFFile | SafetensorsFolder, in_gguf: str, in_folder: str) -> str:
    if isinstance(source, GGUFFile):
        return str(source.metadata.get(in_gguf, ""))
    return str(source.config.get(in_folder, ""))


def _template(source: GGUFFile | SafetensorsFolder) -> str | None:
    """The chat template, where the vocabulary around it cannot be used."""
    found = _said(source, "tokenizer.chat_template", "chat_template")
    return found or None


def _vocabulary(path: Path, source: GGUFFile | SafetensorsFolder) -> str:
    del path
    kind = _said(source, "tokenizer.ggml.model", "")
    rules = _said(source, "tokenizer.ggml.pre", "")
    return f"{kind} ({rules})" if rules else kind


def _folder_vocabulary(path: Path) -> str:
    try:
        model = read_json((path if path.is_dir() else path.parent) / "tokenizer.json").get("model")
    except PropolisError:
        return ""
    return str(model.get("type", "")) if isinstance(model, dict) else ""


def _needs(
    source: GGUFFile | SafetensorsFolder, config: ModelConfig, runtime: Runtime
) -> tuple[Need, ...]:
    """As ``LLM.load`` reckons it before it reads any weights."""
    names = names_in(source, config)
    embedding, output = (f"{names[part]}.weight" for part in ("embedding", "output"))
    longest = config.context_length
    needs = []
    for properties in runtime.devices():
        try:
            device = runtime.device(properties.id)
            dtype = computed_dtype("auto", source, config, device)
            held = weights_of(source, config)
            weights = weight_bytes(held, embedding, output, device, dtype)
            kv_dtype = kept_dtype("auto", device, dtype)
            kept = replace(config, dtype=dtype, kv_dtype=kv_dtype)
            contexts = {
                tokens: weights + sequence_bytes(kept, tokens, device.threads)
                for tokens in sorted({min(DEFAULT_CONTEXT, longest), longest})
            }
            free = device.guarded(device.memory.available)
        except PropolisError as exc:
            needs.append(Need(properties.id, problem=str(exc)))
        else:
            types = {"dtype": dtype.name, "kv_dtype": kv_dtype.name}
            needs.append(Need(properties.id, weights, contexts, free, **types))
    return tuple(needs)


__all__ = ["Facts", "Need", "as_dict", "facts_of"]
