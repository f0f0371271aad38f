"""
Chat templates: programs in Jinja, in files that strangers made.

jinja2's sandbox keeps a template from touching Python, but lets it run for ever and fill
the memory, and neither can be stopped from outside without killing the process.  So here
everything a template does is paid for from a budget, which bounds time and memory alike:

- The tree is rewritten before it is compiled.  Statements and expressions other than a
  known few are refused.  Every turn of a loop and every call of a macro begins with a
  payment for the statements in its body, and what Jinja would compile to bare Python (~,
  comparisons, slices, literals of lists and dicts) becomes a call of the sandbox.
- Attributes, items, operators, calls, filters and output go through methods of the
  environment.  Each pays for the size of what it reads, and *before* it makes something
  large pays for that: a template that cannot pay ends, with the memory not yet taken.
- A list can hold another twice, and so be small in memory yet endless to print or to
  compare: values are measured by a walk that pays as it goes.
- Filters, methods and globals are lists of those that templates use.  Those that pad to a
  given width or are quadratic are not among them, or have bounds on their arguments.
- Jinja's optimizer, which runs expressions at compile time and unpaid, is off.

One unit is about a microsecond, or 16 characters.  The budget grows with the messages, so
that an honest template works on a conversation of any length.
"""

from __future__ import annotations

import json
import threading
from collections import abc
from typing import TYPE_CHECKING
from typing import Any
from typing import TypeVar

from jinja2 import TemplateSyntaxError

from propolis.errors import ArgumentTypeError
from propolis.errors import ModelError
from propolis.errors import UsageError
from propolis_workers.arguments import shown
from propolis_workers.llm._sandbox import MAX_OUTPUT
from propolis_workers.llm._sandbox import Environment
from propolis_workers.llm._template_tree import BudgetError
from propolis_workers.llm._template_tree import Rewriter
from propolis_workers.llm._template_tree import exceed


if TYPE_CHECKING:
    from collections.abc import Callable
    from collections.abc import Mapping
    from collections.abc import Sequence

    from jinja2.environment import Template

_T = TypeVar("_T")

_BUDGET = 400_000
_MAX_SOURCE = 128 * 1024
_ROLES = ("system", "user", "assistant")


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
        self._environment = Environment()
        self._lock = threading.Lock()
        self.roles: tuple[str, ...] = _ROLES
        self.names: frozenset[str] = frozenset()
        self._template = _shielded("cannot be compiled", lambda: self._compiled(source))

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
            UsageError: A role is not one of those, or a variable is no JSON value.
            ModelError: The template fails, refuses the messages, or asks for too much.
        """
        self._check(messages)
        taken = self._tokens.keys() & extra.keys()
        if taken:
            msg = f"{', '.join(sorted(taken))} cannot be given to render: the model decides"
            raise UsageError(msg)
        plain = [dict(message) for message in messages]
        given = {"messages": plain, "tools": None, "documents": None, **extra}
        try:
            # A copy of plain types: nothing that the template is given has other methods.
            size = len(encoded := json.dumps(given, ensure_ascii=False))
            variables = json.loads(encoded)
        except (TypeError, ValueError, RecursionError) as error:
            msg = f"the messages and variables of a chat template are JSON values: {error}"
            raise UsageError(msg) from None
        variables |= self._tokens | {"add_generation_prompt": add_generation_prompt}
        with self._lock:
            self._environment.left = _BUDGET + 4 * size
            return _shielded("cannot be rendered", lambda: self._rendered(variables))

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
                msg = f"message {number} has the unknown role {shown(message['role'])}; supported "
                msg += f"by the model's chat template: {', '.join(self.roles)}: use one of them"
                raise UsageError(msg)

    def _compiled(self, source: str) -> Template:
        environment = self._environment
        rewriter = Rewriter()
        tree = rewriter.visit(environment.parse(source))
        self.roles = *_ROLES, *sorted(rewriter.roles.difference(_ROLES))
        self.names = frozenset(rewriter.names)
        tree.set_environment(environment)
        code = environment.compile(tree)
        return environment.template_class.from_code(environment, code, environment.globals)

    def _rendered(self, variables: dict[str, Any]) -> str:
        parts = []
        length = 0
        for part in self._template.generate(variables):
            length += len(part)
            if length > MAX_OUTPUT:
                exceed(f"more than {MAX_OUTPUT} characters of output")
            parts.append(part)
        return "".join(parts)


def _shielded(what: str, run: Callable[[], _T]) -> _T:
    """Run a template; whatever it raises becomes an error of one line."""
    try:
        return run()
    except BudgetError as error:
        msg = str(error)
    except RecursionError:
        msg = f"the chat template {what}: it is nested or recurses too deeply"
    except Exception as error:  # noqa: BLE001  a stranger's program may raise anything
        reason = " ".join(str(error).split())[:300]
        line = f" in line {error.lineno}" if isinstance(error, TemplateSyntaxError) else ""
        msg = f"the chat template {what}{line}: {reason or type(error).__name__}"
    raise ModelError(msg)
