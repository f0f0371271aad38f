"""What a model is asked, as tokens: its vocabulary and its chat template, without its weights."""

from __future__ import annotations

from typing import TYPE_CHECKING

from propolis.errors import ModelError
from propolis_workers.arguments import expect_text
from propolis_workers.llm.architecture import config_from_folder
from propolis_workers.llm.architecture import config_from_gguf
from propolis_workers.llm.chat_template import ChatTemplate
from propolis_workers.llm.tokenizer import Tokenizer
from propolis_workers.weights import GGUFFile
from propolis_workers.weights import SafetensorsFolder


if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from propolis_workers.llm.architecture import ModelConfig

Message = dict[str, str]


def open_model(path: Path) -> tuple[GGUFFile | SafetensorsFolder, ModelConfig, Tokenizer]:
    """
    A model's weights, which are not read yet, its numbers and its vocabulary.

    Args:
        path: a GGUF file or a safetensors folder.

    Raises:
        ModelError: the model cannot be used; the message says why and what to do.
    """
    in_folder = path.suffix == ".safetensors" or path.name.endswith(".safetensors.index.json")
    if path.suffix == ".gguf" or (path.is_file() and not in_folder):
        file = GGUFFile.open(path)
        return file, config_from_gguf(file), Tokenizer.from_gguf(file.metadata)
    folder = SafetensorsFolder.open(path)
    where = path if path.is_dir() else path.parent
    return folder, config_from_folder(folder), Tokenizer.from_folder(where)


class Prompts:
    """
    Turns conversations and texts into tokens.

    Attributes:
        tokenizer: text to ids and back.
    """

    def __init__(self, path: Path, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self._path = path
        self._template: ChatTemplate | None = None

    def render(self, messages: Sequence[Message]) -> str:
        """
        The prompt for a conversation, by the model's own chat template.

        Raises:
            ModelError: the model has no template, or it fails on these messages.
            UsageError: the messages are not of the types or roles that it takes.
        """
        if self._template is None:
            source = self.tokenizer.chat_template
            if source is None:
                msg = f"{self._path.name} has no chat template: give it raw text (--raw)"
                raise ModelError(msg)
            special = self.tokenizer.token_bytes
            bos, eos = self.tokenizer.bos_id, self.tokenizer.eos_id
            self._template = ChatTemplate(
                source,
                bos_token="" if bos is None else special(bos).decode(errors="replace"),
                eos_token="" if eos is None else special(eos).decode(errors="replace"),
            )
        return self._template.render(messages, add_generation_prompt=True)

    def chat(self, messages: Sequence[Message]) -> list[int]:
        """The tokens of a conversation, up to where the answer begins; raises as :meth:`render`."""
        return self.tokenizer.encode(self.render(messages))

    def text(self, text: str) -> list[int]:
        """
        The tokens of a raw text that is to go on.

        Raises:
            ArgumentTypeError: the text is a batch of them, or nothing.
            UsageError: it cannot be used.
        """
        expect_text("prompt", text)
        ids = self.tokenizer.encode(text, add_special=True)
        # Some files want an end token after every text; a prompt is to go on.
        end = [self.tokenizer.eos_id]
        if ids[-1:] == end and self.tokenizer.encode(text)[-1:] != end:
            ids.pop()
        return ids


__all__ = ["Message", "Prompts", "open_model"]
