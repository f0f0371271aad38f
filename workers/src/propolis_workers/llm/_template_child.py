"""
What renders chat templates: a process of its own, which may be killed.

A template is a stranger's program. jinja2's sandbox keeps it from Python, but lets it run for ever
and fill the memory, and neither can be stopped from within. So it runs here, with a limit of memory
and of processor time for each request, without a variable of the user's environment, and without
the right to write a file. Run as a script: it imports nothing of Propolis, which would take longer.

Each line of standard input is a request in JSON, each of standard output its answer. ``{"source"}``
compiles a template: its ``number``, ``roles`` and ``names``. ``{"template", "variables",
"seconds"}`` renders the one of that number: its ``text``. Where that fails the answer has
``error``, and ``much`` where it asks for too much.
"""

from __future__ import annotations

import datetime as dt
import json
import re
import resource
import signal
import sys
from typing import TYPE_CHECKING
from typing import Any
from typing import NoReturn

from jinja2 import FunctionLoader
from jinja2 import TemplateError
from jinja2 import TemplateSyntaxError
from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension
from jinja2.sandbox import ImmutableSandboxedEnvironment


if TYPE_CHECKING:
    from jinja2 import Template
    from jinja2 import Undefined
    from jinja2.parser import Parser

MEMORY = 512 << 20  # bytes of addresses, Python's own among them
COMPILING = 2.0  # seconds
MAX_OUTPUT = 4 << 20  # characters


class TooMuchError(Exception):
    """The template asked for more than any chat template needs."""


class GenerationBlock(Extension):
    """The block that marks what a model is trained on; for rendering it is its content."""

    tags = {"generation"}  # noqa: RUF012  jinja2 says a set

    def parse(self, parser: Parser) -> list[nodes.Node]:
        """Replace the block by its body."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class Environment(ImmutableSandboxedEnvironment):
    """As transformers' for chat templates, save that what is unsafe is an error at once."""

    def __init__(self) -> None:
        extensions = ["jinja2.ext.loopcontrols", GenerationBlock]
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=extensions,
            loader=FunctionLoader(_refuse),
        )
        self.filters["tojson"] = _as_json
        self.globals |= {"raise_exception": _raise_exception, "strftime_now": _strftime_now}

    def unsafe_undefined(self, obj: Any, attribute: str) -> Undefined:
        """Refuse it, where the sandbox waits for its use."""
        msg = f"access to attribute {attribute!r} of {type(obj).__name__!r} is unsafe"
        raise SecurityError(msg)


def _as_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """The filter tojson as transformers has it: no HTML escapes."""
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _refuse(name: str) -> NoReturn:
    msg = f"template {name!r:.40} is refused: a chat template stands alone"
    raise TemplateError(msg)


def _raise_exception(message: object) -> NoReturn:
    msg = f"refused by the template itself: {message}"
    raise TemplateError(msg)


def _strftime_now(form: str) -> str:
    if re.search(r"%[-_0^#+]*\d", form):  # glibc takes a width, as in %999999999Y
        msg = "a time format with widths"
        raise TooMuchError(msg)
    return dt.datetime.now().astimezone().strftime(form)


def known(tree: nodes.Template) -> dict[str, Any]:
    """The roles that a template has a case for, and the variables that it reads."""
    roles: set[str] = set()
    for compare in tree.find_all(nodes.Compare):
        sides = [compare.expr, *(operand.expr for operand in compare.ops)]
        if any(map(_is_role, sides)):
            roles.update(text for side in sides for text in _texts(side))
    read = {name.name for name in tree.find_all(nodes.Name) if name.ctx == "load"}
    return {"roles": sorted(roles), "names": sorted(read)}


def _is_role(node: nodes.Expr) -> bool:
    """Whether an expression is the role of a message: m.role, m["role"], or a variable role."""
    match node:
        case nodes.Getitem(arg=nodes.Const(value="role")):
            return True
        case nodes.Getattr(attr="role") | nodes.Name(name="role"):
            return True
    return False


def _texts(node: nodes.Expr) -> list[str]:
    """The text that an expression is, or the texts of the list that it is."""
    among = node.items if isinstance(node, nodes.List | nodes.Tuple) else [node]
    values = [one.value for one in among if isinstance(one, nodes.Const)]
    return [value for value in values if isinstance(value, str)]


def rendered(template: Template, variables: dict[str, Any]) -> str:
    """The text, as long as it is not too long."""
    parts, length = [], 0
    for part in template.generate(variables):
        length += len(part)
        if length > MAX_OUTPUT:
            msg = f"more than {MAX_OUTPUT} characters of output"
            raise TooMuchError(msg)
        parts.append(part)
    return "".join(parts)


def answer(
    request: dict[str, Any], environment: Environment, templates: list[Template]
) -> dict[str, Any]:
    """Do what a request says."""
    try:
        if "source" not in request:
            return {"text": rendered(templates[request["template"]], request["variables"])}
        tree = environment.parse(request["source"])
        found = known(tree)
        code = environment.compile(tree)
        made = environment.template_class.from_code(environment, code, environment.globals)
    except TooMuchError as exc:
        return {"error": str(exc), "much": True}
    except MemoryError:
        return {"error": f"more than {MEMORY >> 20} MiB of memory", "much": True}
    except RecursionError:
        return {"error": "it is nested or recurses too deeply"}
    except Exception as exc:  # noqa: BLE001  a stranger's program may raise anything
        line = f" in line {exc.lineno}" if isinstance(exc, TemplateSyntaxError) else ""
        return {"error": " ".join(str(exc).split())[:300] or type(exc).__name__, "line": line}
    templates.append(made)
    return {**found, "number": len(templates) - 1}


def main() -> None:
    """Answer until nobody asks any more."""
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    memory = MEMORY if hard == resource.RLIM_INFINITY else min(hard, MEMORY)
    limits = {resource.RLIMIT_AS: memory, resource.RLIMIT_FSIZE: 0, resource.RLIMIT_CORE: 0}
    for limit, most in limits.items():
        resource.setrlimit(limit, (most, most))
    # Its default action is the end of the process, which no code of a template can put off.
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's
    environment, templates = Environment(), list[Any]()
    for line in sys.stdin.buffer:
        request = json.loads(line)
        signal.setitimer(signal.ITIMER_PROF, request.get("seconds", COMPILING))
        answered = answer(request, environment, templates)
        signal.setitimer(signal.ITIMER_PROF, 0)
        sys.stdout.buffer.write(json.dumps(answered).encode() + b"\n")
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
