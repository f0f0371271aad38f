"""What the decoder of a tokenizer.json makes of a token's text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from propolis.errors import UnsupportedModelError
from propolis_workers.llm.vocab.parts import SPACE
from propolis_workers.llm.vocab.parts import byte_level
from propolis_workers.llm.vocab.parts import spaced


if TYPE_CHECKING:
    from collections.abc import Callable
    from collections.abc import Iterator
    from collections.abc import Mapping
    from pathlib import Path

    from propolis_workers.llm.vocab.parts import Prefix

_SUPPORTED = (
    "supported: a BPE model with a ByteLevel decoder, and a BPE or Unigram model with a Metaspace "
    f"decoder or a Sequence of Replace ({SPACE!r} by a space), ByteFallback, Fuse and Strip"
)


@dataclass(frozen=True)
class Decoder:
    """
    How tokens become text.

    Attributes:
        read: The bytes that a token's text stands for.
        byte_level: Whether texts are in the alphabet of bytes.
        bytes: Whether "<0x00>" to "<0xFF>" stand for one byte each.
        prefix: Where the encoder puts a space that decoding takes off.
    """

    read: Callable[[str], bytes]
    byte_level: bool
    bytes: bool
    prefix: Prefix


def decoder_of(path: Path, source: Mapping[str, object]) -> Decoder:
    """
    Read the decoder of a tokenizer.json.

    Args:
        path: The file, for the message of an error.
        source: Its content.

    Returns:
        The decoder.

    Raises:
        UnsupportedModelError: It is of a kind not supported, or the model is.
    """
    model = _object(source.get("model"))
    decoder = _object(source.get("decoder"))
    steps = list(_flat(decoder, "decoders"))
    kinds = [step.get("type") for step in steps]
    if model.get("type") == "BPE" and kinds == ["ByteLevel"]:
        return Decoder(byte_level, byte_level=True, bytes=False, prefix="never")
    spaces = any(map(_gives_spaces, steps))
    kind = str(model.get("type"))
    if kind not in {"BPE", "Unigram"} or not spaces or not all(map(_is_known, steps)):
        named = " + ".join(map(str, kinds)) or "None"
        msg = f"{path}: a {kind} model with a {named} decoder is not supported; "
        raise UnsupportedModelError(msg + _SUPPORTED)
    strips = any(map(_strips, steps))
    prefix = _prefix(source) if strips else "never"
    return Decoder(spaced, byte_level=False, bytes="ByteFallback" in kinds, prefix=prefix)


def _object(value: object) -> Mapping[str, object]:
    return value if isinstance(value, dict) else {}


def _flat(step: Mapping[str, object], name: str) -> Iterator[Mapping[str, object]]:
    """Yield a step, or those of a sequence, one level deep as all files have them."""
    inner = step.get(name)
    if step.get("type") == "Sequence" and isinstance(inner, list):
        yield from map(_object, inner)
    elif step:
        yield step


def _gives_spaces(step: Mapping[str, object]) -> bool:
    if step.get("type") == "Metaspace":
        return step.get("replacement") == SPACE
    kind, pattern = step.get("type"), step.get("pattern")
    return kind == "Replace" and pattern == {"String": SPACE} and step.get("content") == " "


def _strips(step: Mapping[str, object]) -> bool:
    if step.get("type") == "Metaspace":
        scheme = step.get("prepend_scheme", "always")
        return scheme != "never" and step.get("add_prefix_space") is not False
    return step.get("type") == "Strip" and step.get("start") == 1


def _is_known(step: Mapping[str, object]) -> bool:
    if step.get("type") == "Strip":
        ends = [step.get("start"), step.get("stop")]
        return step.get("content") == " " and ends in ([0, 0], [1, 0])
    return _gives_spaces(step) or str(step.get("type")) in {"ByteFallback", "Fuse"}


def _prefix(source: Mapping[str, object]) -> Prefix:
    """Return where the encoder puts a space: what goes before each run of text, or the first."""
    for step in _flat(_object(source.get("pre_tokenizer")), "pretokenizers"):
        if step.get("type") == "Metaspace" and step.get("prepend_scheme") == "first":
            return "first"
    return "each"


__all__ = ["Decoder", "decoder_of"]
