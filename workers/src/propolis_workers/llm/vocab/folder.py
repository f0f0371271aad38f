"""The vocabulary of a folder in the Hugging Face layout: the `tokenizers` library's."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING
from typing import Any

from propolis.errors import FileFormatError
from propolis.errors import ModelError
from propolis_workers.files import read_json
from propolis_workers.files import read_text
from propolis_workers.files import shielded
from propolis_workers.llm.vocab.decoders import decoder_of
from propolis_workers.llm.vocab.library import ids_of
from propolis_workers.llm.vocab.parts import BYTE_TEXTS
from propolis_workers.llm.vocab.parts import SPACE
from propolis_workers.llm.vocab.parts import Parts
from propolis_workers.llm.vocab.special import ends_among


if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_MOST = 1 << 22  # the largest vocabularies have 2**18 tokens
_ANEW = ": the files are damaged, of two models, or of a kind not supported; get them again"
# What may lie beside tokenizer.json.
_EXTRAS = ("tokenizer_config.json", "special_tokens_map.json", "generation_config.json")


def folder_parts(folder: Path) -> Parts:
    """
    Read a folder's tokenizer files and assemble its tokenizer.

    Args:
        folder: The folder.

    Returns:
        What a `Tokenizer` is made of.

    Raises:
        ModelError: A file is missing, damaged or of a kind not supported.
    """
    from tokenizers import Tokenizer as Library  # noqa: PLC0415  as for GGUF files

    path = folder / "tokenizer.json"
    if not path.is_file():
        found = [name for name in _EXTRAS if (folder / name).is_file()]
        msg = f"{folder} has no tokenizer.json; looked for it, {', '.join(_EXTRAS)}; "
        msg += f"found: {', '.join(found) or 'none of them'}: get the whole model again"
        raise ModelError(msg)
    decoder = decoder_of(path, read_json(path))
    library = shielded(str(path), lambda: Library.from_str(path.read_text(encoding="utf-8")))
    library.no_truncation()
    library.no_padding()
    added = library.get_added_tokens_decoder()
    vocab = library.get_vocab(with_added_tokens=True)
    texts = {index: text for text, index in vocab.items()}

    config, names, generation = (
        read_json(folder / name) if (folder / name).is_file() else {} for name in _EXTRAS
    )
    beside = folder / "config.json"
    model = read_json(beside) if beside.is_file() else {}
    ends = ends_among({token.content: index for index, token in added.items()})
    ids: dict[str, int | None] = {}
    for name in ("bos", "eos"):
        text = names.get(f"{name}_token") or config.get(f"{name}_token")
        text = text.get("content") if isinstance(text, dict) else text
        if text is not None and (not isinstance(text, str) or text not in vocab):
            msg = f"{folder}: the {name}_token {text!r} is not in the vocabulary{_ANEW}"
            raise FileFormatError(msg)
        listed = _listed(generation.get(f"{name}_token_id"))
        wrong = [x for x in listed if type(x) is not int or x not in texts]
        if wrong:
            msg = f"{folder / _EXTRAS[2]}: {name}_token_id {wrong[0]!r} is not in the vocabulary"
            msg += _ANEW
            raise FileFormatError(msg)
        # Where that file does not say, transformers asks the model's, which often has another's.
        said = _listed(model.get(f"{name}_token_id"))
        listed = listed or [x for x in said if type(x) is int and x in texts]
        ids[name] = vocab[text] if text is not None else next(iter(listed), None)
        ends.update(listed if name == "eos" else ())
    ends.update(index for index in (ids["eos"],) if index is not None)

    spaced = any(token.lstrip or token.rstrip for token in added.values())
    # What rewrites a text, or eats the spaces around a token, may make it short.
    rewritten = library.normalizer is not None or spaced or decoder.prefix != "never"
    # Whether special tokens are matched is the library object's state, not an argument.
    lock = threading.Lock()

    def encode(text: str, parse_special: bool, add_special: bool) -> list[int]:
        with lock:
            library.encode_special_tokens = not parse_special
            return ids_of(library, [text], str(path), add_special=add_special)[0]

    return Parts(
        encode=encode,
        texts=texts,
        vocab_size=_size(path, texts),
        cut_ids=frozenset(added),
        # What was added for its white space is read like other tokens.
        verbatim_ids=frozenset(
            index
            for index, token in added.items()
            if token.special or decoder.byte_level or SPACE not in token.content
        ),
        special_ids=frozenset(i for i, token in added.items() if token.special) | ends,
        end_ids=frozenset(ends),
        bos_id=ids["bos"],
        eos_id=ids["eos"],
        chat_template=_folder_template(folder, config, "default"),
        tool_template=_folder_template(folder, config, "tool_use"),
        longest=0 if rewritten else max(map(len, vocab), default=0),
        read=decoder.read,
        prefix=decoder.prefix,
        pieces={vocab[text]: byte for text, byte in BYTE_TEXTS.items() if text in vocab}
        if decoder.bytes
        else {},
    )


def _listed(value: Any) -> list[Any]:
    """An id, or a list of some, or nothing."""
    return value if isinstance(value, list) else [] if value is None else [value]


def _size(path: Path, texts: Mapping[int, str]) -> int:
    """How many ids there are: one more than the largest, which lists are made for."""
    size = max(texts, default=-1) + 1
    if size > _MOST:
        msg = f"{path}: a token has the id {size - 1}; supported: below {_MOST}"
        raise FileFormatError(msg)
    return size


def _folder_template(folder: Path, config: Mapping[str, object], name: str) -> str | None:
    """Return a chat template of a folder: its own file, else the configuration's."""
    default = name == "default"
    path = folder / "chat_template.jinja"
    if not default:
        path = folder / "additional_chat_templates" / f"{name}.jinja"
    if path.is_file():
        return read_text(path)
    found = config.get("chat_template")
    if isinstance(found, list):  # several, each with a name
        items = [item for item in found if isinstance(item, dict)]
        found = next((item.get("template") for item in items if item.get("name") == name), None)
    elif not default:
        found = None
    if found is not None and not isinstance(found, str):
        msg = f"{folder / _EXTRAS[0]}: chat_template is of type {type(found).__name__}, not str"
        raise FileFormatError(msg)
    return found


__all__ = ["folder_parts"]
