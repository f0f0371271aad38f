"""
Chat templates: programs in Jinja, in files that strangers made.

They run in a process of their own (``_template_child.py``), with limits of memory and of processor
time: one for all templates of this process, started again where a template brought it down.
"""

from __future__ import annotations

import atexit
import json
import os
import select
import subprocess
import sys
import threading
import time
from collections import abc
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING
from typing import Any
from typing import Final

from propolis.errors import ArgumentTypeError
from propolis.errors import ModelError
from propolis.errors import UsageError
from propolis_workers.arguments import shown


if TYPE_CHECKING:
    from collections.abc import Mapping
    from collections.abc import Sequence

_CHILD: Final = Path(__file__).with_name("_template_child.py")
_MAX_SOURCE: Final = 128 * 1024
_MAX_PROMPT: Final = 4 << 20  # characters, as many as the process writes
_ROLES: Final = ("system", "user", "assistant")
SECONDS: Final = 2.0
"""Of processor time that a rendering may take; longer conversations may take more."""
_PER_CHARACTER: Final = 4e-6
_PATIENCE: Final = 60.0
"""Seconds to wait for an answer, the process having used less than it may: the machine is busy."""
_INHERITED: Final = ("PATH", "LD_LIBRARY_PATH", "PYTHONPATH", "PYTHONHOME", "TZ")


class _Renderer:
    """The process, as far as it runs, and what it knows."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._numbers: dict[str, int] = {}
        self._owner = 0

    def begin(self) -> None:
        """See :func:`begin`."""
        with self._lock, suppress(ModelError):  # whoever asks for a template is told
            if not self._runs():
                self._start()

    def compiled(self, source: str) -> dict[str, Any]:
        """What the process says of a template; raises as :class:`ChatTemplate`."""
        with self._lock:
            return self._compiled(source)

    def text(self, source: str, variables: dict[str, Any], size: int) -> str:
        """A template's text for variables of so many characters; raises as `render`."""
        with self._lock:
            if not self._runs() or source not in self._numbers:
                self._compiled(source)
            seconds = SECONDS + size * _PER_CHARACTER
            asked = {"template": self._numbers[source], "variables": variables}
            return str(self._ask("rendered", asked, seconds)["text"])

    def _compiled(self, source: str) -> dict[str, Any]:
        if not self._runs():
            self._start()
        known = self._ask("compiled", {"source": source}, SECONDS)
        self._numbers[source] = known["number"]
        return known

    def _runs(self) -> bool:
        # A fork's child must not talk to what its parent talks to; and somebody may have killed it.
        own = self._process is not None and self._owner == os.getpid()
        if own and self._process is not None and self._process.poll() is not None:
            self.stop()
            return False
        return own

    def _start(self) -> None:
        self._numbers.clear()
        self._owner = os.getpid()
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-P", str(_CHILD)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env={name: os.environ[name] for name in _INHERITED if name in os.environ},
            )
        except OSError as error:
            msg = f"the process that renders chat templates cannot be started: {error}"
            raise ModelError(msg) from None

    def stop(self) -> None:
        """End the process; the next request starts another."""
        process, self._process = self._process, None
        if process is not None and self._owner == os.getpid():
            process.kill()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    with suppress(BrokenPipeError):  # of what it was told and did not read
                        pipe.close()
            process.wait()

    def _ask(self, what: str, request: dict[str, Any], seconds: float) -> dict[str, Any]:
        assert self._process is not None  # noqa: S101  for the type checker
        line = json.dumps({**request, "seconds": seconds}).encode() + b"\n"
        try:
            answered = _exchanged(self._process, line, time.monotonic() + seconds + _PATIENCE)
        except BaseException:  # of Ctrl-C too: what it answers next is not what is asked next
            self.stop()
            raise
        if answered is None:
            self.stop()
            msg = f"the chat template asks for too much: it cannot be {what} within {seconds:.1f} s"
            msg += " of processor time, or within its memory"
            raise ModelError(msg)
        known: dict[str, Any] = json.loads(answered)
        if "error" not in known:
            return known
        if known.get("much"):
            msg = f"the chat template asks for too much: {known['error']}"
        else:
            msg = f"the chat template cannot be {what}{known.get('line', '')}: {known['error']}"
        raise ModelError(msg)


def _exchanged(process: subprocess.Popen[bytes], line: bytes, until: float) -> bytes | None:
    """What a process answers a line with; None where it ends instead, or takes too long."""
    assert process.stdin is not None  # noqa: S101  for the type checker
    assert process.stdout is not None  # noqa: S101  for the type checker
    try:
        process.stdin.write(line)
        process.stdin.flush()
    except BrokenPipeError:
        return None
    parts: list[bytes] = []
    out = process.stdout.fileno()
    while not parts or not parts[-1].endswith(b"\n"):
        if not select.select([out], [], [], max(0.0, until - time.monotonic()))[0]:
            return None
        parts.append(os.read(out, 1 << 20))
        if not parts[-1]:
            return None
    return b"".join(parts)


_renderer: Final = _Renderer()
atexit.register(_renderer.stop)


def begin() -> None:
    """Start the process that renders, for somebody who is going to ask: it is up meanwhile."""
    _renderer.begin()


class ChatTemplate:
    """
    Renders a conversation as the prompt that a model was trained on.

    It behaves as transformers' apply_chat_template does, within bounds (see the module), save
    that it refuses roles which nothing is known of: many templates put any word into the prompt,
    and a model answers on as if it knew who that is.
    Threads may share one; they render one after the other.

    Attributes:
        roles: that messages may have: system, user, assistant, and what else the template
            has a case for, such as tool.
        names: of the variables that the template reads, such as tools.
    """

    def __init__(self, source: str, *, bos_token: str = "", eos_token: str = "") -> None:
        if len(source) > _MAX_SOURCE:
            msg = f"the chat template has {len(source)} characters, more than {_MAX_SOURCE}"
            raise ModelError(msg)
        self._tokens = {"bos_token": bos_token, "eos_token": eos_token}
        self._source = source
        known = _renderer.compiled(source)
        self.names: frozenset[str] = frozenset(known["names"])
        # Who takes tools knows what these answer, also where the template writes any role alike.
        named = {*known["roles"], *(("tool",) if "tools" in self.names else ())}
        self.roles: tuple[str, ...] = *_ROLES, *sorted(named.difference(_ROLES))

    def render(
        self,
        messages: Sequence[Mapping[str, object]],
        /,
        *,
        add_generation_prompt: bool = True,
        **extra: object,
    ) -> str:
        """
        Render a conversation.

        Args:
            messages: One conversation: each a mapping with role, one of :attr:`roles`, and
                content, both str; what else is in it (tool_calls, name) is passed on.
            add_generation_prompt: Whether the prompt ends where the model is to answer.
            **extra: Further variables of the template, such as tools: JSON values.

        Returns:
            The prompt.

        Raises:
            ArgumentTypeError: The messages are not of the types described.
            UsageError: A role is not one of those, a variable is no JSON value, or the messages
                are too long.
            ModelError: The template fails, refuses the messages, or asks for too much.
        """
        self._check(messages)
        length = sum(len(str(message["content"])) for message in messages)
        if length > _MAX_PROMPT:  # which is no mistake of the template's
            msg = f"the prompt is too long: its messages have {length} characters; supported: "
            msg += f"{_MAX_PROMPT}: shorten them"
            raise UsageError(msg)
        taken = self._tokens.keys() & extra.keys()
        if taken:
            msg = f"{', '.join(sorted(taken))} cannot be given to render: the model decides"
            raise UsageError(msg)
        plain = [dict(message) for message in messages]
        given = {"messages": plain, "tools": None, "documents": None, **extra}
        try:
            size = len(json.dumps(given))
        except (TypeError, ValueError, RecursionError) as error:
            msg = f"the messages and variables of a chat template are JSON values: {error}"
            raise UsageError(msg) from None
        given |= self._tokens | {"add_generation_prompt": add_generation_prompt}
        return _renderer.text(self._source, given, size)

    def _check(self, messages: object) -> None:
        """Check that these are messages of one conversation."""
        if isinstance(messages, str | bytes) or not isinstance(messages, abc.Sequence):
            msg = f"messages is {shown(messages)}; supported: a list of messages: put a text into "
            msg += 'one, [{"role": "user", "content": "..."}], or give it to complete()'
            raise ArgumentTypeError(msg)
        for number, message in enumerate(messages):
            if not isinstance(message, abc.Mapping):
                msg = f"message {number} is {shown(message)}; a message is a mapping with role and "
                msg += "content, both str: give each of several conversations to a call of its own"
                raise ArgumentTypeError(msg)
            for key in ("role", "content"):
                value = message.get(key)
                if not isinstance(value, str):
                    msg = f"message {number} has {shown(value)} as its {key}; "
                    msg += "a message is a mapping with role and content, both str"
                    raise ArgumentTypeError(msg)
            if message["role"] not in self.roles:
                msg = f"message {number} has the role {shown(message['role'])}, which the model's "
                msg += f"chat template says nothing of; supported: {', '.join(self.roles)}"
                raise UsageError(msg)


__all__ = ["ChatTemplate", "begin"]
