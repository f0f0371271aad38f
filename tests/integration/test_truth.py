"""Tensors are not asked for their truth where it is meant whether there is one."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import TYPE_CHECKING

import pytest


if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
FOLDERS = ("core", "conformance", "workers", "plugins/*", "models/*")
SOURCES = sorted(p for folder in FOLDERS for p in ROOT.glob(f"{folder}/src/**/*.py"))
OPTIONAL = ("Tensor", "Tensor | None")


def asked(node: ast.AST) -> Iterator[ast.expr]:
    """What is asked for its truth in the node: parts of ``and``, ``or`` and ``not`` alone."""
    for n in ast.walk(node):
        if isinstance(n, (ast.If, ast.While, ast.IfExp, ast.Assert)):
            yield n.test
        elif isinstance(n, ast.BoolOp):
            yield from n.values
        elif isinstance(n, ast.UnaryOp) and isinstance(n.op, ast.Not):
            yield n.operand
        elif isinstance(n, ast.comprehension):
            yield from n.ifs


def found(source: str) -> list[str]:
    """Names that are declared as tensors and are asked."""
    names = []
    for function in ast.walk(ast.parse(source)):
        if isinstance(function, ast.FunctionDef):
            args = function.args
            declared = {
                a.arg
                for a in (*args.posonlyargs, *args.args, *args.kwonlyargs)
                if a.annotation and ast.unparse(a.annotation) in OPTIONAL
            }
            names += [n.id for n in asked(function) if isinstance(n, ast.Name) and n.id in declared]
    return names


@pytest.mark.parametrize("asks", ["x or y", "1 if x else 2", "not x", "[n for n in [] if x]"])
def test_it_is_found(asks):
    """What is looked for is found: an element that is 0 is a tensor all the same."""
    assert "x" in found(f"def f(x: Tensor | None, y: Tensor): return {asks}")
    assert not found("def f(x: Tensor | None): return x is None or x.numel == 0")


def test_nobody_asks():
    """In none of the distributions; of more than one element it would be an error."""
    assert len(SOURCES) > 300
    wrong = {str(p.relative_to(ROOT)): names for p in SOURCES if (names := found(p.read_text()))}
    assert not wrong
