"""What a model is asked, as tokens: its vocabulary and its chat template, without its weights."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING

from propolis.errors import ArgumentTypeError
from propolis.errors import ModelError
from propolis.errors import UsageError
from propolis_workers.arguments import expect_text
from propolis_workers.llm.chat_template import ChatTemplate
from propolis_workers.llm.models import read_config
from propolis_workers.llm.pooling import pooling
from propolis_workers.llm.reading import about
from propolis_workers.llm.tokenizer import Tokenizer
from propolis_workers.llm.tools.families import FAMILIES
from propolis_workers.llm.tools.families import family_of
from propolis_workers.weights import GGUFFile
from propolis_workers.weights import SafetensorsFolder


if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from propolis_workers.llm.config import ModelConfig
    from propolis_workers.llm.tools.families import Family

Message = Mapping[str, object]

# Arguments of their own say these.
_OWN = {"messages", "tools", "add_generation_prompt"}

DECIDED = frozenset({*_OWN, "bos_token", "eos_token"})
"""Variables of a chat template that nobody gives."""

RAW = "give it raw text (--raw)"
"""What whoever runs a command can do with a model that has no chat template."""


def open_model(path: Path) -> tuple[GGUFFile | SafetensorsFolder, ModelConfig, Tokenizer]:
    """
    A model's weights, which are not read yet, its numbers and its vocabulary.

    Args:
        path: a GGUF file or a safetensors folder.

    Raises:
        ModelError: the model cannot be used; the message says why and what to do.
    """
    source = open_weights(path)
    config = replace(read_config(source), pooling=pooling(source))
    return source, config, open_tokenizer(path, source)


def open_weights(path: Path) -> GGUFFile | SafetensorsFolder:
    """
    A model's weights, which are not read yet.

    Args:
        path: a GGUF file or a safetensors folder.

    Raises:
        ModelError: it is neither, or is damaged.
    """
    in_folder = path.suffix == ".safetensors" or path.name.endswith(".safetensors.index.json")
    is_file = False
    with suppress(OSError):  # what cannot be told, as of too long a name, is when it is opened
        is_file = path.is_file()
    if path.suffix == ".gguf" or (is_file and not in_folder):
        return GGUFFile.open(path)
    return SafetensorsFolder.open(path)


def open_tokenizer(path: Path, source: GGUFFile | SafetensorsFolder) -> Tokenizer:
    """
    A model's vocabulary.

    Args:
        path: of the model.
        source: its weights, as :func:`open_weights` opened them.

    Raises:
        ModelError: it is missing, damaged, or of a kind that is not supported.
    """
    if isinstance(source, GGUFFile):
        with about(path):
            return Tokenizer.from_gguf(source.metadata)
    return Tokenizer.from_folder(path if path.is_dir() else path.parent)


class Prompts:
    """
    Turns conversations and texts into tokens.

    Attributes:
        tokenizer: text to ids and back.
    """

    def __init__(self, path: Path, tokenizer: Tokenizer, template: str | None = None) -> None:
        """
        Take what is asked.

        Args:
            path: of the model.
            tokenizer: text to ids and back.
            template: a chat template in place of the model's own.
        """
        self.tokenizer = tokenizer
        self._path = path
        own = template or tokenizer.chat_template
        self._sources = {False: own, True: template or tokenizer.tool_template or own}
        self._templates: dict[str, ChatTemplate] = {}

    @property
    def template(self) -> str | None:
        """The source of the chat template, where there is one."""
        return self._sources[False]

    @cached_property
    def family(self) -> Family:
        """
        How the model writes calls of tools, as its chat template shows.

        Raises:
            ModelError: there is no template, or it cannot be used.
            UsageError: it takes no tools, or its calls are not read here.
        """
        if "tools" not in self._template(tools=True).names:
            msg = f"the chat template of {self._path.name} takes no tools: leave them out, or give "
            msg += "another template (--chat-template)"
            raise UsageError(msg)
        family = family_of(self._sources[True] or "")
        if family is None:
            known = ", ".join(one.name for one in FAMILIES)
            msg = (
                f"the chat template of {self._path.name} has calls of tools written in a way that "
                f"is not read here; supported: {known}: ask without tools"
            )
            raise UsageError(msg)
        return family

    def render(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, object]] | None = None,
        variables: Mapping[str, object] | None = None,
        continued: bool = False,
    ) -> str:
        """
        The prompt for a conversation, by the model's own chat template.

        Args:
            messages: each with its role and its content.
            tools: what the model may call, as OpenAI's API describes it.
            variables: of the template, beside these: ``documents``, ``enable_thinking`` and what
                else it reads; what it does not read changes nothing.
            continued: whether the answer goes on with the last message, as transformers'
                ``continue_final_message`` has it, and is no message of its own.

        Raises:
            ModelError: the model has no template, or it fails on these messages.
            UsageError: the messages are not of the types or roles that it takes, a variable is
                one that the model decides, or no JSON value, or the template does not put the last
                message into the prompt as it is.
        """
        given = dict(variables or {})
        for name in _OWN & given.keys():
            msg = f"the chat template's {name} is not given as a variable; supported: others"
            raise UsageError(msg)
        template = self._template(tools=tools is not None)
        if continued and not str(messages[-1]["content"]).strip():  # nothing was said yet
            messages, continued = messages[:-1], False
        if not continued:
            return template.render(messages, add_generation_prompt=True, **given, tools=tools)
        # Nobody knows the mark, and so no text has it; a template that trims takes its space.
        mark = f"<{secrets.token_hex(16)}>"
        *before, last = messages
        last = {**last, "content": f"{last['content']}{mark} "}
        text = template.render([*before, last], add_generation_prompt=False, **given, tools=tools)
        said, found, after = text.rpartition(mark)
        if not found:
            msg = "the last message cannot be continued: the model's chat template leaves it out; "
            msg += "end with a message of the user"
            raise UsageError(msg)
        return said if after.startswith(" ") else said.rstrip()

    def chat(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, object]] | None = None,
        variables: Mapping[str, object] | None = None,
        begun: str = "",
        continued: bool = False,
        most: int | None = None,
    ) -> list[int]:
        """
        The tokens of a conversation, up to where the answer begins.

        Args:
            messages: as for :meth:`render`, whose errors it raises too.
            tools: likewise.
            variables: likewise.
            begun: what the answer begins with.
            continued: as for :meth:`render`.
            most: as for :meth:`text`.

        Raises:
            ArgumentTypeError: there is no message.
        """
        if isinstance(messages, list | tuple) and not messages:
            msg = "messages is empty: there is nothing to answer; give one with role and content"
            raise ArgumentTypeError(msg)
        text = self.render(messages, tools=tools, variables=variables, continued=continued) + begun
        self._expect_short(text, most)
        return self.tokenizer.encode(text)

    def text(self, text: str, *, most: int | None = None) -> list[int]:
        """
        The tokens of a raw text that is to go on.

        Args:
            text: that goes on.
            most: tokens that there is room for. A text that is longer for certain is refused
                before time is spent on it; one that is not may still be.

        Raises:
            ArgumentTypeError: the text is a batch of them, or nothing.
            UsageError: it cannot be used.
            ModelError: it is too long.
        """
        expect_text("prompt", text)
        self._expect_short(text, most)
        ids = self.tokenizer.encode(text, add_special=True)
        # Some files want an end token after every text; a prompt is to go on.
        end = [self.tokenizer.eos_id]
        if ids[-1:] == end and self.tokenizer.encode(text)[-1:] != end:
            ids.pop()
        return ids

    def _expect_short(self, text: str, most: int | None) -> None:
        fewest = self.tokenizer.fewest(text)
        if most is not None and fewest >= most:
            msg = (
                f"the prompt has {len(text)} characters, which are at least {fewest} tokens; the "
                f"context is {most}: no room for an answer; shorten it, or raise the context"
            )
            raise ModelError(msg)

    def _template(self, *, tools: bool) -> ChatTemplate:
        source = self._sources[tools]
        if source is None:
            msg = f"{self._path.name} has no chat template: {RAW}"
            raise ModelError(msg)
        if source not in self._templates:
            special = self.tokenizer.token_bytes
            bos, eos = self.tokenizer.bos_id, self.tokenizer.eos_id
            self._templates[source] = ChatTemplate(
                source,
                bos_token="" if bos is None else special(bos).decode(errors="replace"),
                eos_token="" if eos is None else special(eos).decode(errors="replace"),
            )
        return self._templates[source]


__all__ = ["DECIDED", "RAW", "Message", "Prompts", "open_model", "open_tokenizer", "open_weights"]
