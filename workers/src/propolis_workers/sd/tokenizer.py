"""
Prompts to token ids, for CLIP's byte-level vocabularies whose words end in ``</w>``.

The merging is the ``tokenizers`` library's; the rules around it are those of
transformers' ``CLIPTokenizer``, whose ids are the truth.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING
from typing import Any
from typing import Final
from typing import NamedTuple

from propolis.errors import FileFormatError
from propolis.errors import ModelError
from propolis.errors import UnsupportedModelError
from propolis.errors import UsageError
from propolis_workers import events
from propolis_workers.arguments import expect_unicode
from propolis_workers.files import read_json
from propolis_workers.files import read_text
from propolis_workers.files import shielded


if TYPE_CHECKING:
    from collections.abc import Mapping

    from tokenizers import Tokenizer as Library

BOS: Final = "<|startoftext|>"
EOS: Final = "<|endoftext|>"
_WORDS: Final = (
    r"<\|startoftext\|>|<\|endoftext\|>|'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"
)

# Of a text encoder; a larger ``model_max_length`` is none.
_MOST_IDS = 1 << 20


class PromptIds(NamedTuple):
    """
    A prompt as a text encoder takes it.

    Attributes:
        ids: begin, the prompt, end, padding: as many as were asked for.
        cut: what did not fit, as it stands in the prompt; empty where all did.
    """

    ids: list[int]
    cut: str


class CLIPTokenizer:
    """
    The vocabulary of a CLIP text encoder; several threads may use one.

    Attributes:
        bos_id: begins every prompt.
        eos_id: ends every prompt.
        pad_id: fills up to the length.
        vocab_size: all ids are below it.
        longest: ids of a prompt, as the model's ``model_max_length`` says; None where it does not.
    """

    def __init__(
        self,
        library: Library,
        names: dict[str, str],
        longest: int | None = None,
        *,
        pads_left: bool = False,
        cuts_left: bool = False,
    ) -> None:
        vocab = library.get_vocab(with_added_tokens=True)
        self._library = library
        self.bos_id, self.eos_id, self.pad_id = (vocab[names[k]] for k in ("bos", "eos", "pad"))
        self.longest = longest
        self._pads_left = pads_left
        self._cuts_left = cuts_left
        self.vocab_size = library.get_vocab_size(with_added_tokens=True)

    @classmethod
    def from_folder(cls, path: str | Path) -> CLIPTokenizer:
        """
        Read the tokenizer folder of a model.

        Args:
            path: holds ``vocab.json`` and ``merges.txt``, or ``tokenizer.json``; and, where
                the begin, end and padding tokens are others than CLIP's,
                ``special_tokens_map.json`` or ``tokenizer_config.json``.

        Raises:
            ModelError: a file is missing.
            FileFormatError: one is damaged.
            UnsupportedModelError: it is the vocabulary of another kind of model.
        """
        folder = Path(path)
        names = _special_tokens(folder)
        settings = _settings(folder)
        if (folder / "vocab.json").is_file() and (folder / "merges.txt").is_file():
            library = _from_vocab(folder, names)
            _add_tokens(library, folder, settings)
        elif (folder / "tokenizer.json").is_file():
            library = _from_json(folder / "tokenizer.json")
        else:
            msg = f"{folder} has no tokenizer: vocab.json and merges.txt, or tokenizer.json, "
            msg += "must be in it; get the model again, whole"
            raise ModelError(msg)
        for kind, text in names.items():
            if library.token_to_id(text) is None:
                msg = f"{folder}: the {kind}_token {text!r} is not in the vocabulary"
                raise FileFormatError(msg)
        library.no_truncation()
        library.no_padding()
        # In the prompt these are tokens too, the padding token of some models being "!".
        library.add_special_tokens(sorted({*names.values()}))
        left = {key: _side(folder, settings, key) for key in ("padding_side", "truncation_side")}
        return cls(
            library,
            names,
            _longest(settings),
            pads_left=left["padding_side"],
            cuts_left=left["truncation_side"],
        )

    def encode(self, text: str, length: int = 77) -> PromptIds:
        """
        Turn a prompt into ids; what does not fit is cut, with the log event ``prompt.cut``.

        Args:
            text: any text; empty is fine.
            length: ids to give, begin and end included.

        Returns:
            exactly ``length`` ids, and what was cut.

        Raises:
            UsageError: the text holds a lone surrogate, or nothing fits into the length.
        """
        if length < 2:
            msg = f"a prompt of {length} tokens has no room for begin and end; give 2 or more"
            raise UsageError(msg)
        expect_unicode("the prompt", text)
        found = self._library.encode(text, add_special_tokens=False)
        room = length - 2
        cut = ""
        kept, over = found.ids, len(found.ids) - room
        if over > 0:
            if self._cuts_left:
                kept, cut = kept[over:], text[: found.offsets[over - 1][1]]
            else:
                kept, cut = kept[:room], text[found.offsets[room][0] :]
            cut = cut.strip()
            events.PROMPT_CUT.emit(tokens=len(found.ids), limit=room)
        ids = [self.bos_id, *kept, self.eos_id]
        filling = [self.pad_id] * (length - len(ids))
        return PromptIds(filling + ids if self._pads_left else ids + filling, cut)


def _settings(folder: Path) -> dict[str, Any]:
    path = folder / "tokenizer_config.json"
    return read_json(path) if path.is_file() else {}


def _side(folder: Path, settings: Mapping[str, Any], key: str) -> bool:
    """Whether a side is the left one."""
    side = settings.get(key) or "right"
    if side not in ("left", "right"):
        msg = f"{folder / 'tokenizer_config.json'}: {key} is {side!r:.60}; supported: left, right"
        raise UnsupportedModelError(msg)
    return bool(side == "left")


def _add_tokens(library: Library, folder: Path, settings: Mapping[str, Any]) -> None:
    """
    Add what was added to the vocabulary afterwards, such as the words of textual inversion.

    Raises:
        FileFormatError: one has no number.
    """
    from tokenizers import AddedToken  # noqa: PLC0415  (0.2 s to import)

    beside, whole = folder / "added_tokens.json", folder / "tokenizer.json"
    ids: dict[str, Any] = read_json(beside) if beside.is_file() else {}
    told = settings.get("added_tokens_decoder")
    written = list(told.items()) if isinstance(told, dict) else []
    listed = read_json(whole).get("added_tokens") if whole.is_file() else None
    written += [(one.get("id"), one) for one in listed or () if isinstance(one, dict)]
    flags: dict[str, Mapping[str, Any]] = {}
    for index, token in written:
        if isinstance(token, dict) and isinstance(token.get("content"), str):
            ids.setdefault(token["content"], int(index) if str(index).isdecimal() else index)
            flags.setdefault(token["content"], token)
    new = {text: index for text, index in ids.items() if library.token_to_id(text) is None}
    if not all(type(index) is int for index in new.values()):
        msg = f"{folder}: an added token has no number: {new!r:.100}"
        raise FileFormatError(msg)
    for text in sorted(new, key=lambda text: new[text]):  # as transformers numbers them
        own = flags.get(text, {})
        kinds = ("lstrip", "rstrip", "single_word", "normalized")
        library.add_tokens([AddedToken(text, **{k: bool(own[k]) for k in kinds if k in own})])


def _longest(settings: Mapping[str, Any]) -> int | None:
    """What ``model_max_length`` says; transformers writes 1e30 where nothing is known."""
    found = settings.get("model_max_length")
    known = isinstance(found, int) and 2 <= found <= _MOST_IDS
    return found if known else None


def _special_tokens(folder: Path) -> dict[str, str]:
    """The texts of the begin, end and padding tokens."""
    sources = [
        read_json(folder / name)
        for name in ("special_tokens_map.json", "tokenizer_config.json")
        if (folder / name).is_file()
    ]
    names = {"bos": BOS, "eos": EOS, "pad": ""}
    for kind in names:
        for source in sources:
            found: Any = source.get(f"{kind}_token")
            found = found.get("content") if isinstance(found, dict) else found
            if found is not None and (not isinstance(found, str) or not found):
                msg = f"{folder}: {kind}_token is {found!r}, not a text"
                raise FileFormatError(msg)
            if found:
                names[kind] = found
                break
    return names | {"pad": names["pad"] or names["eos"]}


def _expect_whole(path: Path, vocab: Mapping[str, int], merges: list[tuple[str, str]]) -> None:
    """
    Check that merges make the vocabulary, of which added tokens, as ``<cat>``, may be a few.

    Raises:
        FileFormatError: they do not: the file is cut, and prompts would be other tokens.
    """
    made = {first + second for first, second in merges}
    longer = [text for text in vocab if len(text.removesuffix("</w>")) > 1]
    absent = [text for text in longer if text not in made and not text.startswith("<")]
    if len(absent) > len(longer) // 100:
        msg = (
            f"{path}: no merge (of {len(merges)}) makes {absent[0]!r} and {len(absent) - 1} other "
        )
        msg += "tokens of vocab.json: it is cut; get the model again, whole"
        raise FileFormatError(msg)


def _from_vocab(folder: Path, names: dict[str, str]) -> Library:
    # Not at the top: the library takes 0.2 s to import, and images alone need none.
    from tokenizers import Regex  # noqa: PLC0415
    from tokenizers import Tokenizer as Library  # noqa: PLC0415
    from tokenizers import models  # noqa: PLC0415
    from tokenizers import normalizers  # noqa: PLC0415
    from tokenizers import pre_tokenizers  # noqa: PLC0415

    vocab = read_json(folder / "vocab.json")
    wrong = [text for text, index in vocab.items() if type(index) is not int or index < 0]
    if wrong:
        msg = f"{folder / 'vocab.json'}: the id of {wrong[0]!r} is {vocab[wrong[0]]!r}"
        raise FileFormatError(msg)
    path = folder / "merges.txt"
    merges = []
    for number, line in enumerate(read_text(path).splitlines(), 1):
        if not line.strip() or (number == 1 and line.startswith("#version")):
            continue
        pair = line.split()
        if len(pair) != 2:
            msg = f"{path}: line {number} is {line[:40]!r}, not a pair of tokens"
            raise FileFormatError(msg)
        merges.append((pair[0], pair[1]))
    _expect_whole(path, vocab, merges)

    def build() -> Library:
        library = Library(
            models.BPE(
                vocab=vocab,
                merges=merges,
                continuing_subword_prefix="",
                end_of_word_suffix="</w>",
                fuse_unk=False,
                unk_token=names["eos"],
            )
        )
        library.normalizer = normalizers.Sequence(
            [
                normalizers.NFC(),
                normalizers.Replace(Regex(r"\s+"), " "),
                normalizers.Lowercase(),
            ]
        )
        library.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(Regex(_WORDS), behavior="removed", invert=True),
                pre_tokenizers.ByteLevel(add_prefix_space=False),
            ]
        )
        return library

    return shielded(str(folder), build)


def _from_json(path: Path) -> Library:
    from tokenizers import Tokenizer as Library  # noqa: PLC0415

    model = read_json(path).get("model")
    kind, end = (
        model.get(k) if isinstance(model, dict) else None for k in ("type", "end_of_word_suffix")
    )
    if (kind, end) != ("BPE", "</w>"):
        msg = f"{path}: a {kind} vocabulary with the word end {end!r} is not supported; supported: "
        msg += "CLIP's, BPE with '</w>'"
        raise UnsupportedModelError(msg)
    return shielded(str(path), lambda: Library.from_str(read_text(path)))


__all__ = ["CLIPTokenizer", "PromptIds"]
