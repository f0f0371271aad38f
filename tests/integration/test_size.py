"""Core stays small, and what explains it can be read in an evening."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from pathlib import Path


ROOT = Path(__file__).parents[2]
CORE = ROOT / "core/src/propolis"
NOTHING = (
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
)


def lines_of_code(path: Path) -> int:
    """Lines that hold code: no blank ones, comments or docstrings."""
    text = path.read_text()
    docs: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        kinds = ast.Module | ast.ClassDef | ast.FunctionDef
        if isinstance(node, kinds) and ast.get_docstring(node, clean=False) is not None:
            docs.update(range(node.body[0].lineno, node.body[0].end_lineno + 1))
    code: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in NOTHING:
            code.update(range(token.start[0], token.end[0] + 1))
    return len(code - docs)


def test_core_is_small() -> None:
    """Without the catalogue of ops, which grows with what models need: at most 7500 lines."""
    files = [path for path in CORE.rglob("*.py") if path.parent != CORE / "ops"]
    assert sum(map(lines_of_code, files)) <= 7500


def test_the_reading_order_is_short() -> None:
    """The files that docs/architecture.md names for it are there, under 3030 lines in all."""
    page = (ROOT / "docs/architecture.md").read_text()
    (order,) = re.findall(r"<!-- reading order -->\n(.*?)<!-- end -->", page, re.DOTALL)
    files = [CORE / name for name in re.findall(r"`([\w/]+\.py)`", order)]
    assert len(files) >= 10
    assert sum(len(path.read_text().splitlines()) for path in files) <= 3030
