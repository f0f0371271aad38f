"""
A chat template's tree, rewritten so that whatever it does is paid for.

Statements and expressions other than a known few are refused; loops, macros and what
Jinja would compile to bare Python become calls of the environment's methods (see
``_sandbox.py``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from typing import Any
from typing import NoReturn

from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension
from jinja2.visitor import NodeTransformer

from propolis.errors import ModelError


if TYPE_CHECKING:
    from collections.abc import Sequence

    from jinja2.parser import Parser

_MAX_NODES = 10_000


def words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_NODES = words(
    "Template Output Const Name NSRef Assign AssignBlock For If Macro CallBlock FilterBlock"
    " With Scope Break Continue ExprStmt Call Keyword Filter Test Getattr Getitem Slice List"
    " Tuple Dict Pair CondExpr Compare Operand Concat And Or Not Neg Pos Add Sub Mul Div"
    " FloorDiv Mod Pow TemplateData"
)


class BudgetError(ModelError):
    """The template asked for more than any chat template needs."""


class GenerationBlock(Extension):
    """The block that marks what a model is trained on; for rendering it is its content."""

    tags = {"generation"}  # noqa: RUF012  jinja2 says a set

    def parse(self, parser: Parser) -> list[nodes.Node]:
        """Replace the block by its body."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class Rewriter(NodeTransformer):
    """
    Puts the payments into a template's tree.

    Attributes:
        roles: those of messages that the template has a case for.
        names: of the variables that it reads.
    """

    def __init__(self) -> None:
        self.roles: set[str] = set()
        self.names: set[str] = set()
        self._count = 0

    def visit(self, node: nodes.Node, *args: Any, **kwargs: Any) -> Any:
        self._count += 1
        kind = type(node).__name__
        if kind not in _NODES:  # include, import, extends, block and autoescape
            msg = f"{kind.lower()} is refused: a chat template stands alone"
            raise SecurityError(msg)
        if self._count > _MAX_NODES:
            exceed(f"more than {_MAX_NODES} expressions")
        return super().visit(node, *args, **kwargs)

    def visit_Name(self, node: nodes.Name) -> nodes.Node:  # noqa: N802
        if node.ctx == "load":
            self.names.add(node.name)
        return node

    def visit_TemplateData(self, node: nodes.TemplateData) -> nodes.Node:  # noqa: N802
        # Bare data is output without being finalised, so that nobody would pay for it.
        return nodes.Const(node.data, lineno=node.lineno)

    def visit_For(self, node: nodes.For) -> nodes.Node:  # noqa: N802
        cost = self._paid(node)
        if node.test is not None:
            node.test = nodes.And(_call("pay", [cost], node), node.test, lineno=node.lineno)
        return node

    def visit_Macro(self, node: nodes.Macro) -> nodes.Node:  # noqa: N802
        self._paid(node)
        return node

    def visit_CallBlock(self, node: nodes.CallBlock) -> nodes.Node:  # noqa: N802
        self._paid(node)
        return node

    def _paid(self, node: Any) -> nodes.Expr:
        before = self._count
        self._count += 4  # loops and macros compile to more code than other nodes
        self.generic_visit(node)
        cost = nodes.Const(2 + (self._count - before) // 8)
        node.body.insert(0, nodes.ExprStmt(_call("pay", [cost], node), lineno=node.lineno))
        return cost

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        return _call("concatenated", node.nodes, node)

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        if not isinstance(node.arg, nodes.Slice):
            return node
        ends = (node.arg.start, node.arg.stop, node.arg.step)
        return _call("sliced", [node.node, *(end or nodes.Const(None) for end in ends)], node)

    def visit_Compare(self, node: nodes.Compare) -> nodes.Node:  # noqa: N802
        sides = [node.expr, *(operand.expr for operand in node.ops)]
        if any(_is_role(side) for side in sides):
            self.roles.update(text for side in sides for text in _texts(side))
        self.generic_visit(node)
        node.expr = _measured(node.expr)
        for operand in node.ops:
            operand.expr = _measured(operand.expr)
        return node

    def visit_Pair(self, node: nodes.Pair) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        node.key = _measured(node.key)  # before it is hashed
        return node

    def visit_List(self, node: nodes.List) -> Any:  # noqa: N802
        self.generic_visit(node)
        return _measured(node)

    def visit_Dict(self, node: nodes.Dict) -> Any:  # noqa: N802
        self.generic_visit(node)
        return _measured(node)

    def visit_Tuple(self, node: nodes.Tuple) -> Any:  # noqa: N802
        self.generic_visit(node)
        return node if node.ctx == "store" else _measured(node)


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


def _call(name: str, arguments: Sequence[nodes.Expr], at: nodes.Node) -> nodes.Call:
    """Return the call of a method of the environment."""
    method = nodes.EnvironmentAttribute(name, lineno=at.lineno)
    return nodes.Call(method, list(arguments), [], None, None, lineno=at.lineno)


def _measured(node: Any) -> Any:
    """Return an expression that pays for the size of its value."""
    return node if isinstance(node, nodes.Const) else _call("measured", [node], node)


def exceed(what: str) -> NoReturn:
    msg = f"the chat template asks for too much: {what}"
    raise BudgetError(msg)


__all__ = ["BudgetError", "GenerationBlock", "Rewriter", "exceed", "words"]
