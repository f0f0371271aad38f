"""
The sandbox in which chat templates run: every value they read or make is paid for.

Attributes, items, operators, calls, filters and output go through methods of the
environment; ``chat_template.py`` says why, ``_template_tree.py`` does its part at
compile time.
"""

from __future__ import annotations

import datetime as dt
import functools
import json
import re
from collections import abc
from types import BuiltinMethodType
from typing import TYPE_CHECKING
from typing import Any
from typing import NoReturn

from jinja2 import TemplateError
from jinja2 import Undefined
from jinja2 import pass_context
from jinja2.exceptions import SecurityError
from jinja2.runtime import Context
from jinja2.runtime import LoopContext
from jinja2.runtime import Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from propolis_workers.llm._template_tree import GenerationBlock
from propolis_workers.llm._template_tree import exceed
from propolis_workers.llm._template_tree import words


if TYPE_CHECKING:
    from collections.abc import Callable
    from collections.abc import Sequence

MAX_OUTPUT = 4 * 1024 * 1024
_MAX_TEXT = 2 * MAX_OUTPUT
_MAX_RANGE = 100_000
_MAX_BITS = 1024  # of integers
_MAX_PATTERN = 64  # characters, where a method's time is their product with the text's

_METHODS: dict[type, frozenset[str]] = {
    str: words(
        "capitalize casefold count endswith find index isalnum isalpha isascii isdecimal isdigit"
        " islower isnumeric isspace istitle isupper join lower lstrip partition removeprefix"
        " removesuffix replace rfind rindex rpartition rsplit rstrip split splitlines startswith"
        " strip swapcase title upper"
    ),
    dict: words("get items keys values"),
    list: words("count index"),
    tuple: words("count index"),
    LoopContext: words(
        "changed cycle depth depth0 first index index0 last length nextitem previtem"
        " revindex revindex0"
    ),
}
# Methods that look for their argument from the right, or for any of its characters.
_BOUNDED = words("lstrip rstrip strip trim rfind rindex rpartition rsplit")
_FILTERS = words(
    "abs capitalize count d default dictsort first float int items last length list lower map"
    " max min reject rejectattr reverse select selectattr sort string title trim unique upper"
)
# Filters that do not read what is in a container; those of them that go through it once.
_ONE_PASS = words("items list map reject rejectattr reverse select selectattr")
_SHALLOW = _ONE_PASS | words("count d default first last length")
_TESTS = words(
    "divisibleby eq equalto even ge greaterthan gt in le lessthan lower lt ne odd upper"
    " == != > >= < <="
)
_KIND_TESTS = words(
    "boolean defined false float integer iterable mapping none number sameas sequence string"
    " true undefined"
)
_VIEWS = (abc.KeysView, abc.ValuesView, abc.ItemsView)
_SIZED = (list, tuple, range, dict, *_VIEWS)


class Environment(ImmutableSandboxedEnvironment):
    """
    Where one template runs, and pays.

    Templates see none of its methods by name: only the rewritten tree calls them.
    """

    intercepted_binops = frozenset(("+", "-", "*", "/", "//", "%", "**"))

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            optimized=False,
            finalize=_finalize,
            extensions=["jinja2.ext.loopcontrols", GenerationBlock],
        )
        self.left = 0
        own: dict[str, Callable[..., Any]] = {
            "replace": self.replaced,
            "join": self.joined,
            "indent": self.indented,
        }
        own |= {"tojson": self.as_json, "round": _round, "safe": str}
        kept: dict[str, Any] = {name: self.filters[name] for name in _FILTERS} | own
        self.filters = {name: self._paying(name, function) for name, function in kept.items()}
        tests: dict[str, Any] = {name: self.tests[name] for name in _TESTS | _KIND_TESTS}
        self.tests = {name: self._paying(name, function) for name, function in tests.items()}
        self.globals = {"range": _range, "namespace": Namespace, "dict": dict}
        self.globals |= {"raise_exception": _raise_exception, "strftime_now": _strftime_now}
        self._functions = frozenset(self.globals.values())

    def pay(self, units: int) -> bool:
        """Take from the budget; true, so that it can stand in a condition."""
        self.left -= units
        if self.left < 0:
            exceed("its loops, calls and texts exceed the budget")
        return True

    def admit(self, length: int) -> None:
        """Pay for a text before it is made."""
        if length > _MAX_TEXT:
            exceed(f"a text of {length} characters")
        self.pay(1 + length // 16)

    def weigh(self, value: object) -> int:
        """Pay for the size of a value, and return it: characters, and 16 an element."""
        total = 0
        stack = [value]
        while stack:
            item = stack.pop()
            if isinstance(item, str):
                total += len(item)
            elif isinstance(item, _SIZED):
                total += 16 * len(item)
                if total > 16 * self.left:
                    break
                if isinstance(item, dict):
                    stack.extend(item.keys())
                    stack.extend(item.values())
                elif not isinstance(item, range):
                    stack.extend(item)
            elif isinstance(item, int):
                if item.bit_length() > _MAX_BITS:
                    exceed(f"an integer of {item.bit_length()} bits")
            elif isinstance(item, Namespace):
                raise SecurityError("a namespace can be used by its attributes only")
        self.pay(1 + total // 16)
        return total

    def measured(self, value: Any) -> Any:
        """Return a value that has been paid for."""
        self.weigh(value)
        return value

    def made(self, value: Any) -> Any:
        """Pay for what a filter or method made; iterators become lists."""
        if isinstance(value, abc.Iterator):
            return [item for item in value if self.pay(1)]
        if isinstance(value, (list, tuple)):
            self.pay(len(value))
        elif isinstance(value, str):
            self.admit(len(value))
        elif isinstance(value, int):
            self.weigh(value)
        return value

    def concatenated(self, *values: Any) -> str:
        """Do what ~ does."""
        texts = [str(self.measured(value)) for value in values]
        self.admit(sum(map(len, texts)))
        return "".join(texts)

    def sliced(self, value: Any, start: Any, stop: Any, step: Any) -> Any:
        """Do what value[start:stop:step] does."""
        if not isinstance(value, (str, list, tuple)):
            return self.undefined(obj=value, name="a slice")
        self.pay(1 + len(value) // (16 if isinstance(value, str) else 4))
        return value[start:stop:step]

    def joined(self, value: Any, d: str = "", attribute: str | int | None = None) -> str:
        """Do what the filter join does."""
        if attribute is not None:
            value = [self.getitem(item, attribute) for item in value]
        texts = [str(item) for item in value if self.weigh(item) >= 0]
        self.admit(sum(map(len, texts)) + len(d) * len(texts))
        return d.join(texts)

    def replaced(self, value: Any, old: str, new: str, count: int | None = None) -> str:
        """Do what the filter replace does."""
        text = str(value)
        places = text.count(old) if count is None or count < 0 else min(text.count(old), count)
        self.admit(len(text) + places * max(0, len(new) - len(old)))
        return text.replace(old, new, -1 if count is None else count)

    def indented(
        self, value: Any, width: int | str = 4, first: bool = False, blank: bool = False
    ) -> str:
        """Do what the filter indent does, for widths that people use."""
        margin = width if isinstance(width, str) else " " * min(width, _MAX_PATTERN + 1)
        if len(margin) > _MAX_PATTERN:
            exceed(f"an indent of more than {_MAX_PATTERN} characters")
        text = f"{value}\n"
        self.pay(len(text) // 4)
        lines = text.splitlines()
        self.admit(len(text) + len(margin) * len(lines))
        rest = [margin + line if line or blank else line for line in lines[1:]]
        return "\n".join([margin + lines[0] if first else lines[0], *rest])

    def as_json(
        self,
        value: Any,
        ensure_ascii: bool = False,
        indent: int | None = None,
        separators: tuple[str, str] | None = None,
        sort_keys: bool = False,
    ) -> str:
        """Do what the filter tojson does in transformers: no HTML escapes."""
        if indent is not None and not 0 <= indent <= 16:
            exceed(f"JSON indented by {indent}")
        if separators is not None and sum(map(len, separators)) > _MAX_PATTERN:
            exceed("JSON with long separators")
        encoder = json.JSONEncoder(
            ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
        )
        parts = []
        for part in encoder.iterencode(value):
            self.admit(len(part))
            parts.append(part)
        return "".join(parts)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Apply an operator, having paid for its result."""
        if isinstance(left, Undefined) or isinstance(right, Undefined):
            self.pay(1)
        elif operator == "+" and isinstance(left, (str, list, tuple)):
            size = len(left) + len(right)
            self.admit(size if isinstance(left, str) else 16 * size)
        elif operator == "*" and not (_is_number(left) and _is_number(right)):
            text, times = (right, left) if _is_number(left) else (left, right)
            size = len(text) * max(0, times)
            self.admit(size if isinstance(text, str) else 16 * size)
        elif operator == "%" and isinstance(left, str):
            # The conversions without a width: a width is a text of any length.
            if not re.fullmatch(r"(?:[^%]|%[%sdr])*", left):
                exceed("a format with more than %s, %d and %r")
            self.admit(len(left) + 8 * self.weigh(right))
        elif operator == "**" and isinstance(left, int) and isinstance(right, int):
            if abs(right) * left.bit_length() > _MAX_BITS:
                exceed(f"an integer to the power of {right}")
            self.pay(1)
        else:
            self.weigh((left, right))
        result = super().call_binop(context, operator, left, right)
        return self.measured(result) if isinstance(result, int) else result

    def getattr(self, obj: Any, attribute: str) -> Any:
        """Return one of the known methods, or an item."""
        self.pay(1)
        if attribute.startswith("_"):
            msg = f"access to attribute {attribute!r} of {type(obj).__name__!r} is unsafe"
            raise SecurityError(msg)
        if isinstance(obj, (Undefined, Namespace)) or attribute in _METHODS.get(type(obj), ()):
            try:
                return getattr(obj, attribute)
            except AttributeError:
                return self.undefined(obj=obj, name=attribute)
        if isinstance(obj, dict) and attribute in obj:
            return obj[attribute]
        return self.undefined(obj=obj, name=attribute)

    def getitem(self, obj: Any, argument: Any) -> Any:
        """Return an item, or else one of the known methods."""
        self.weigh(argument)
        if isinstance(obj, (str, list, tuple, range, dict, Undefined)):
            try:
                return obj[argument]
            except (LookupError, TypeError):
                pass
        if isinstance(argument, str):
            return self.getattr(obj, argument)
        return self.undefined(obj=obj, name=argument)

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805, PYI063  as in jinja2
        """Call what a template may call."""
        for name in ("_block_vars", "_loop_vars"):  # for functions that take the context
            kwargs.pop(name, None)
        owner = getattr(__obj, "__self__", None)
        if owner is __self:  # from the rewritten tree
            return __obj(*args, **kwargs)
        __self.pay(2 + len(args) + len(kwargs))
        if isinstance(__obj, Macro):  # which may be given a namespace
            return __self.made(__context.call(__obj, *args, **kwargs))
        for value in (*args, *kwargs.values()):
            __self.weigh(value)
        if isinstance(__obj, Undefined) or __obj in __self._functions:
            return __self.made(__obj(*args, **kwargs))
        if isinstance(__obj, LoopContext) or isinstance(owner, LoopContext):
            return __self.made(__context.call(__obj, *args, **kwargs))
        if not isinstance(__obj, BuiltinMethodType) or type(owner) not in _METHODS:
            msg = f"a {type(__obj).__name__} cannot be called"
            raise SecurityError(msg)
        if isinstance(owner, dict):
            return __obj(*args)
        __self.weigh(owner)
        if isinstance(owner, str):
            if __obj.__name__ == "replace":
                return __self.replaced(owner, *args, **kwargs)
            if __obj.__name__ == "join":
                return __self.joined(args[0], owner)
            if "split" in __obj.__name__:
                __self.pay(len(owner) // 4)
            _check_pattern(__obj.__name__, args)
        return __self.made(__obj(*args, **kwargs))

    def _paying(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap a filter or test: its arguments and its result are paid for."""

        @functools.wraps(function)
        def paying(*args: Any, **kwargs: Any) -> Any:
            for value in (*args, *kwargs.values()):
                if name in _KIND_TESTS:
                    self.pay(1)
                elif name not in _SHALLOW or isinstance(value, str):
                    self.weigh(value)
                elif name in _ONE_PASS and isinstance(value, _SIZED):
                    self.pay(1 + len(value))
            if name in _ONE_PASS and args and isinstance(args[0], str):
                self.pay(len(args[0]))
            _check_pattern(name, args[1:])
            return self.made(function(*args, **kwargs))

        return paying


@pass_context
def _finalize(context: Context, value: Any) -> str:
    """Turn what is output into text, and have it paid for."""
    environment = context.environment
    assert isinstance(environment, Environment)  # noqa: S101  for the type checker
    environment.weigh(value)
    text = str(value)
    environment.admit(len(text))
    return text


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float))


def _check_pattern(name: str, args: Sequence[object]) -> None:
    """Bound the arguments of methods whose time is the product of two lengths."""
    if name in _BOUNDED and any(isinstance(x, str) and len(x) > _MAX_PATTERN for x in args):
        exceed(f"{name} with more than {_MAX_PATTERN} characters")


def _round(value: float, precision: int = 0, method: str = "common") -> float:
    """Do what the filter round does, for the digits that a float has."""
    if not -32 <= precision <= 32 or method != "common":
        exceed(f"rounding to {precision} digits by {method!r:.20}")
    return float(round(value, precision))


def _range(*args: int) -> range:
    result = range(*args)
    if len(result) > _MAX_RANGE:
        exceed(f"a range of {len(result)}")
    return result


def _raise_exception(message: object) -> NoReturn:
    msg = f"refused by the template itself: {message}"
    raise TemplateError(msg)


def _strftime_now(form: str) -> str:
    # glibc takes a width, as in %999999999Y.
    if len(form) > _MAX_PATTERN or re.search(r"%[-_0^#+]*\d", form):
        exceed("a time format with widths")
    return dt.datetime.now().astimezone().strftime(form)


__all__ = ["MAX_OUTPUT", "Environment"]
