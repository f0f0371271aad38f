"""
A model ready to answer: file, tokenizer, weights on a device.

from propolis_workers.llm import LLM, SamplingParams
    >>> llm = LLM.load()
    >>> answer = llm.chat([{"role": "user", "content": "Name the capital of France."}])
    >>> "".join(answer)
    'The capital of France is Paris.'
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING

from propolis import default_runtime
from propolis import dtypes
from propolis import ops
from propolis.dispatch import DispatchTable
from propolis.dtypes import parse_dtype
from propolis.errors import UsageError
from propolis_workers import events
from propolis_workers.arguments import expect_whole
from propolis_workers.llm.answer import expect_params
from propolis_workers.llm.default_model import asked_for
from propolis_workers.llm.engine import SHORTER
from propolis_workers.llm.engine import Engine
from propolis_workers.llm.generation import Generation
from propolis_workers.llm.layers import has_kernel
from propolis_workers.llm.memory import sequence_bytes
from propolis_workers.llm.memory import weight_bytes
from propolis_workers.llm.models import architectures
from propolis_workers.llm.models import build
from propolis_workers.llm.models import expect_weights
from propolis_workers.llm.models import names_in
from propolis_workers.llm.models import weights_of
from propolis_workers.llm.prompts import Prompts
from propolis_workers.llm.prompts import open_model
from propolis_workers.llm.sampling import SamplingParams
from propolis_workers.llm.stopping import StopStrings


if TYPE_CHECKING:
    from collections.abc import Callable
    from collections.abc import Mapping
    from collections.abc import Sequence
    from pathlib import Path

    from propolis import Device
    from propolis import DType
    from propolis import Runtime
    from propolis.opspec.spec import OpSpec
    from propolis_workers.llm.config import ModelConfig
    from propolis_workers.llm.network.decoder import Decoder
    from propolis_workers.llm.prompts import Message
    from propolis_workers.llm.tokenizer import Tokenizer
    from propolis_workers.weights import GGUFFile
    from propolis_workers.weights import SafetensorsFolder

GREEDY = SamplingParams()
DTYPES = (dtypes.f32, dtypes.f16, dtypes.bf16)
KV_DTYPES = (dtypes.f32, dtypes.f16, dtypes.bf16, dtypes.q8_0)


class LLM:
    """
    A language model on a device.

    The memory of the last answer's sequence is kept for the next one, which may need no more.

    Attributes:
        path: its file or folder.
        source: the weights, memory-mapped.
        config: its numbers.
        tokenizer: text to ids and back.
        model: the network.
        prompts: what it is asked, as tokens.
        load_seconds: how long loading took.
    """

    def __init__(
        self,
        path: Path,
        source: GGUFFile | SafetensorsFolder,
        config: ModelConfig,
        tokenizer: Tokenizer,
        model: Decoder,
        load_seconds: float = 0.0,
    ) -> None:
        self.path = path
        self.source = source
        self.config = config
        self.tokenizer = tokenizer
        self.model = model
        self.load_seconds = load_seconds
        self.prompts = Prompts(path, tokenizer)
        # The last answer's sequence, for the next: it has a step that was captured.
        self._free: deque[Engine] = deque(maxlen=1)

    @classmethod
    def load(
        cls,
        path: str | Path | None = None,
        *,
        runtime: Runtime | None = None,
        device: Device | str | None = None,
        progress: Callable[[int, int], None] | None = None,
        tokens: int = 1,
        kv_type: str | DType = "auto",
        dtype: str | DType = "auto",
        before_weights: Callable[[Prompts, ModelConfig], None] | None = None,
    ) -> LLM:
        """
        Read a model and put its weights on a device.

        Args:
            path: a GGUF file or a safetensors folder, or what a pulled model is called; the
                default model when None.
            runtime: whose plugins serve it; the process's own when None.
            device: where it runs, open or by its id (``"cpu"``, ``"rocm:0"``); the configured one
                when None.
            progress: called with (bytes loaded, bytes in all) after each tensor.
            tokens: what a sequence on it will have at least: that they fit is checked with
                the weights, before these are read.
            kv_type: what keys and values are kept in: f32; f16 or bf16, at half of the memory; or
                q8_0, at 34 bytes for 32 numbers; sums are in f32 of numbers rounded so.  ``"auto"``
                is as activations where these are not f32; else f16 where the device has kernels for
                it and numerics are not exact, and f32 elsewhere.
            dtype: what activations are in, and weights that are not in block formats: f32; or f16
                or bf16, each result of an op rounded so, sums in f32.  ``"auto"`` is what the
                file's matrices are in, where all are in one of these, the device has kernels for
                it and numerics are not exact; and f32 elsewhere, and in place of f16 for
                architectures whose activations are known to exceed it (Gemma, GLM-4).
            before_weights: called before any are read with what makes tokens of prompts and with
                the model's numbers; what it raises ends the loading.

        Raises:
            ModelError: the model cannot be used; the message says why and what to do.
            ArgumentTypeError: the path is none.
            UsageError: its heads cannot be kept so; names the layer.
            DeviceNotFoundError: there is no such device; lists those there are.
            OutOfMemoryError: it takes more memory than is free.
        """
        start = time.perf_counter()
        runtime = runtime or default_runtime()
        device = runtime.device(device)
        path = asked_for(path, runtime.config)
        source, config, tokenizer = open_model(path)
        computed = computed_dtype(dtype, source, config, device)
        kept = kept_dtype(kv_type, device, computed)
        config = replace(config, kv_dtype=kept, dtype=computed)
        _expect_whole_blocks(path.name, config)
        if before_weights is not None:
            before_weights(Prompts(path, tokenizer), config)
        _expect_room(path.name, source, config, device, tokens)
        expect_weights(source, config)
        model = build(source, config, device, _counter(source, progress))
        source.release()
        seconds = time.perf_counter() - start
        events.MODEL_LOADED.emit(model=path.name, device=device.id, seconds=round(seconds, 3))
        return cls(path, source, config, tokenizer, model, seconds)

    def render(self, messages: Sequence[Message]) -> str:
        """As :meth:`Prompts.render`."""
        return self.prompts.render(messages)

    def chat(
        self,
        messages: Sequence[Message],
        *,
        variables: Mapping[str, object] | None = None,
        params: SamplingParams = GREEDY,
        max_tokens: int = 512,
        stops: Sequence[str] = (),
        context: int | None = None,
    ) -> Generation:
        """
        Answer a conversation.

        Args:
            messages: one conversation: each with ``role`` (system, user, assistant, and what else
                the model's template has a case for, such as tool) and ``content``.
            variables: of the model's template beside these, such as ``enable_thinking``.
            params: how tokens are drawn.
            max_tokens: the most tokens to draw.
            stops: strings that end the answer.
            context: tokens of prompt and answer together; the model's own when None.

        Returns:
            Iterate over it for pieces of text; its ``finish`` says how it went.

        Raises:
            ArgumentTypeError: the messages are a batch, a text, or nothing.
            UsageError: a message has a role that the template does not know, or an option
                cannot be used.
            ModelError: the model has no template, or it fails on these messages.
        """
        ids = self.prompts.chat(messages, variables=variables)
        return self.answer(ids, params=params, max_tokens=max_tokens, stops=stops, context=context)

    def complete(
        self,
        text: str,
        *,
        params: SamplingParams = GREEDY,
        max_tokens: int = 512,
        stops: Sequence[str] = (),
        context: int | None = None,
    ) -> Generation:
        """
        Continue one raw text; arguments as :meth:`chat`.

        Raises:
            ArgumentTypeError: the text is a batch of them, or nothing.
            UsageError: the text or an option cannot be used.
        """
        ids = self.prompts.text(text)
        return self.answer(ids, params=params, max_tokens=max_tokens, stops=stops, context=context)

    def answer(
        self,
        ids: list[int],
        *,
        params: SamplingParams = GREEDY,
        max_tokens: int = 512,
        stops: Sequence[str] = (),
        context: int | None = None,
    ) -> Generation:
        """
        Continue tokens, as :attr:`prompts` makes them; other arguments as :meth:`chat`.

        Raises:
            ArgumentTypeError: ``params`` are something else.
            UsageError: an option cannot be used.
            ModelError: there are none, or too many, or one that the model does not know.
        """
        expect_params(params)
        max_tokens = expect_whole("max_tokens", max_tokens, least=1)
        StopStrings(stops)  # refuses them before a sequence is taken
        # No more memory than this answer may need, or the one before it needed.
        capacity = min(self._limit(context), len(ids) + max_tokens)
        return Generation(
            self._free_engine(capacity) or self.engine(capacity),
            self.tokenizer,
            ids,
            params=params,
            max_tokens=max_tokens,
            stops=stops,
            path=self.path,
            ended=self._free.append,
        )

    def engine(self, context: int | None = None) -> Engine:
        """An empty sequence on this model, as long as the model's context when None."""
        self._free.clear()  # its memory first: both may not fit
        return Engine(self.model, self._limit(context))

    def _limit(self, context: int | None) -> int:
        """Tokens that a sequence may have; says so where the model was made for fewer."""
        longest = self.config.context_length
        asked = longest if context is None else expect_whole("context", context, least=1)
        if asked > longest:
            reason = f"{self.path.name} was trained for no more"
            events.CONTEXT_CUT.emit(asked=asked, used=longest, reason=reason)
        return min(asked, longest)

    def _free_engine(self, capacity: int) -> Engine | None:
        """The sequence of an answer that is complete, where it is long enough."""
        try:
            engine = self._free.pop()  # at once: another thread finds none
        except IndexError:
            return None
        return engine if engine.begin(capacity) else None


def computed_dtype(
    name: str | DType,
    source: GGUFFile | SafetensorsFolder,
    config: ModelConfig,
    device: Device,
) -> DType:
    """
    What activations are in on a device; see :meth:`LLM.load`.

    Raises:
        UsageError: they cannot be.
    """
    if name == "auto":
        held = _matrices_in(source)
        if held is None or not _computes_in(device, held, config):
            return dtypes.f32
        exceeded = held is dtypes.f16 and architectures()[config.architecture].exceeds_f16
        return dtypes.f32 if exceeded else held
    return _among(DTYPES, name, "activations")


def _matrices_in(source: GGUFFile | SafetensorsFolder) -> DType | None:
    """The one dtype of a file's matrices; None where there are several."""
    found = {info.dtype for info in source.tensors.values() if len(info.shape) > 1}
    return found.pop() if len(found) == 1 else None


def _computes_in(device: Device, dtype: DType, config: ModelConfig) -> bool:
    """Whether a device has kernels for 16 bits, and rounding is allowed."""
    if dtype not in DTYPES or DispatchTable.of(device).rules.exact:
        return False
    most_work: list[OpSpec] = [ops.linear, ops.attention, ops.rms_norm]
    if config.experts is not None:
        most_work.append(ops.moe_linear)
    return all(has_kernel(device, op, dtype) for op in most_work)


def kept_dtype(name: str | DType, device: Device, computed: DType = dtypes.f32) -> DType:
    """
    What keys and values are kept in on a device; see :meth:`LLM.load`.

    Args:
        name: what was asked for.
        device: where.
        computed: what activations are in.

    Raises:
        UsageError: they cannot be kept so.
    """
    if name == "auto":
        if computed is not dtypes.f32:
            return computed
        return dtypes.f16 if _gains_by_halves(device) else dtypes.f32
    return _among(KV_DTYPES, name, "keys and values")


def _among(known: Sequence[DType], name: str | DType, what: str) -> DType:
    dtype = parse_dtype(name)
    if dtype not in known:
        supported = ", ".join(["auto", *(one.name for one in known)])
        msg = f"{what} in {dtype}; supported: {supported}"
        raise UsageError(msg)
    return dtype


def _gains_by_halves(device: Device) -> bool:
    """Whether keys and values in 16 bits are read faster, and rounding them is allowed."""
    if DispatchTable.of(device).rules.exact:
        return False
    if not has_kernel(device, ops.qattention, dtypes.f32, dtypes.f16):
        return False
    # A GPU rounds the queries of prompts.
    return device.kind == "cpu" or has_kernel(device, ops.attention, dtypes.f16)


def _expect_whole_blocks(name: str, config: ModelConfig) -> None:
    """Check that a head's keys and values are whole blocks of what they are kept in."""
    for layer in range(config.layers):
        kept, size = config.kept_as(layer), config.kept_as(layer).block_size
        for what, (_, dim) in zip(("keys", "values"), config.kept(layer), strict=False):
            if dim % size:
                others = ", ".join(one.name for one in KV_DTYPES if not one.is_block)
                msg = (
                    f"{name}: {what} of layer {layer} have heads of {dim} numbers, which are no "
                    f"whole blocks of {size}, so that they cannot be kept in {kept}; supported "
                    f"for this model: {others}"
                )
                raise UsageError(msg)


def _expect_room(
    name: str,
    source: GGUFFile | SafetensorsFolder,
    config: ModelConfig,
    device: Device,
    tokens: int,
) -> None:
    """Check that weights and a sequence of so many tokens fit, before any are read."""
    names = names_in(source, config)
    embedding, output = (f"{names[part]}.weight" for part in ("embedding", "output"))
    weights = weight_bytes(weights_of(source, config), embedding, output, device, config.dtype)
    device.expect_room(weights, name, "take a smaller model, or one with fewer bits a weight")
    tokens = min(tokens, config.context_length)
    needed = weights + sequence_bytes(config, tokens, device.threads)
    device.expect_room(needed, f"{name} with a context of {tokens} tokens", SHORTER)


def _counter(
    source: GGUFFile | SafetensorsFolder,
    progress: Callable[[int, int], None] | None,
) -> Callable[[int], None] | None:
    if progress is None:
        return None
    tensors = dict(source.tensors)
    total, done = sum(tensor.nbytes for tensor in tensors.values()), 0

    def count(nbytes: int) -> None:
        nonlocal done
        done = min(done + nbytes, total)
        progress(done, total)

    return count
