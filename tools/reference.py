"""Docstrings as Markdown, for the generated pages of docs/."""

from __future__ import annotations

import dataclasses
import inspect
import re
from typing import TYPE_CHECKING
from typing import Any


if TYPE_CHECKING:
    from collections.abc import Callable
    from collections.abc import Iterator

_SECTION = re.compile(r"^(Args|Attributes|Raises|Returns):$", re.MULTILINE)
_ENTRY = re.compile(r"^    (\w+): ((?:.+\n?(?:        .+\n?)*))", re.MULTILINE)
_EXAMPLE = re.compile(r"(?:^ *>>> .*\n?(?:^ *\S.*\n?)*)", re.MULTILINE)


def hook(function: Callable[..., Any]) -> str:
    """One hook: its signature, what it is for, and its example."""
    return f"### `{function.__name__}{_signature(function)}`\n\n{_prose(_doc(function))}\n"


def record(cls: type) -> str:
    """One class: what it is for; fields, constants and methods in a table or list each."""
    text, entries = _sections(cls)
    parts = [f"### `{cls.__name__}`", _prose(text)]
    if dataclasses.is_dataclass(cls):
        rows = [_row(field, entries[field.name]) for field in dataclasses.fields(cls)]
        parts.append("\n".join(["| field | type | default | |", "|---|---|---|---|", *rows]))
    elif entries:
        parts.append("\n".join(f"- `{name}`: {_line(what)}" for name, what in entries.items()))
    parts += ["\n".join(_constants(cls)), "\n".join(_methods(cls))]
    return "\n\n".join(part for part in parts if part) + "\n"


def _row(field: dataclasses.Field[Any], meaning: str) -> str:
    kind = str(field.type).replace("|", "\\|")
    default = "" if field.default is dataclasses.MISSING else f"`{field.default!r}`"
    if field.default_factory is not dataclasses.MISSING:
        default = f"`{field.default_factory()!r}`"
    return f"| `{field.name}` | `{kind}` | {default or 'required'} | {_line(meaning)} |"


def _constants(cls: type) -> Iterator[str]:
    for name, value in vars(cls).items():
        if name.isupper():
            yield f"- `{name}` = {value!r}"


def _methods(cls: type) -> Iterator[str]:
    for name, member in vars(cls).items():
        if name.startswith("_"):
            continue
        if isinstance(member, property) and member.fget is not None:
            yield f"- `{name}`: {_summary(member.fget)}"
        elif inspect.isfunction(member):
            yield f"- `{name}{_signature(member)}`: {_summary(member)}"


def _summary(function: Callable[..., Any]) -> str:
    """What a method does, and what it raises, in one line."""
    text, _ = _sections(function)
    raises = _doc(function).partition("\nRaises:\n")[2]
    told = [f" Raises `{name}`: {_line(why)}" for name, why in _ENTRY.findall(raises + "\n")]
    return _line(text.split("\n\n")[0]) + "".join(told)


def _sections(thing: Any) -> tuple[str, dict[str, str]]:
    """The text before the first section, and the entries of Attributes."""
    parts = _SECTION.split(_doc(thing))
    sections = dict(zip(parts[1::2], parts[2::2], strict=True))
    entries = _ENTRY.findall(sections.get("Attributes", "") + "\n")
    return parts[0].rstrip(), dict(entries)


def _signature(function: Callable[..., Any]) -> str:
    signature = inspect.signature(function)
    kept = [p for p in signature.parameters.values() if p.name != "self"]
    return str(signature.replace(parameters=kept)).replace("'", "")


def _prose(text: str) -> str:
    """Paragraphs and examples."""
    text = _markup(text).replace("::\n", ":\n")
    return _EXAMPLE.sub(lambda m: f"```pycon\n{inspect.cleandoc(m[0])}\n```\n", text).strip()


def _line(text: str) -> str:
    return " ".join(_markup(text).split())


def _markup(text: str) -> str:
    text = re.sub(r":\w+:`~?([^`]+)`", r"`\1`", text)
    return text.replace("``", "`")


def _doc(thing: Any) -> str:
    return inspect.getdoc(thing) or ""
