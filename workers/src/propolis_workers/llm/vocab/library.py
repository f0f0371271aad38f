"""The `tokenizers` library, asked for ids: what it fails at is the file's."""

from __future__ import annotations

from typing import TYPE_CHECKING

from propolis_workers.files import shielded


if TYPE_CHECKING:
    from collections.abc import Sequence

    from tokenizers import Tokenizer as Library


def ids_of(
    library: Library, texts: Sequence[str], what: str, *, add_special: bool = False
) -> list[list[int]]:
    """
    Return the ids of each text.

    Args:
        library: The library's tokenizer.
        texts: Texts of Unicode.
        what: The file or the key that it was made of, for messages.
        add_special: Whether to add the beginning and end tokens that it knows of.

    Raises:
        FileFormatError: It fails at one, as its content does not fit together.
    """
    # Unlike encode, a batch lets other threads run meanwhile.
    found = shielded(what, lambda: library.encode_batch_fast(texts, add_special_tokens=add_special))
    return [one.ids for one in found]


__all__ = ["ids_of"]
