"""
A module's source with what Python declares of it: the numbers in front, the checks behind.

This text, and no file, is what every compiler is given: the builder's, hipRTC on the user's
machine, the simulator's.  So nothing of it is shipped, and it always is of the declarations
that arguments are packed by.  Where a kernel, a parameter, a structure or a number is another
there than here, the build stops with a line that names it.
"""

from __future__ import annotations

import re
import struct
from typing import TYPE_CHECKING
from typing import Final

from propolis_rocm_kernels import _constants
from propolis_rocm_kernels._signature import TYPES
from propolis_rocm_kernels._signature import Structure
from propolis_rocm_kernels._signature import parameters


if TYPE_CHECKING:
    from collections.abc import Iterable
    from collections.abc import Mapping

    from propolis_rocm_kernels._kernels import Module

HEADER: Final = "propolis_declared.h"
"""What the checks are written with."""


def compiled_text(module: Module, files: Mapping[str, str]) -> str:
    """
    What is compiled for a module.

    Args:
        module: with its declarations.
        files: the text of each file that it reaches, headers included, by name.
    """
    words = {word for text in files.values() for word in re.findall(r"\w+", text)}
    # Sorted: declarations come in the order of sets, which no two processes have in common.
    shared = sorted((n, v) for n, v in _constants.constants().items() if n in words)
    own = sorted(module.constants.items())
    declared_in = f"ops_{module.name}.py"
    return "\n".join(
        [
            '#line 1 "_constants.py"',
            *map(_constant, shared),
            f'#line 1 "{declared_in}"',
            *map(_constant, own),
            f'#line 1 "{module.name}.hip"',
            files[f"{module.name}.hip"],
            f'#line 1 "{declared_in}"',
            f'#include "{HEADER}"',
            "namespace declared {",
            *(f"DECLARED_CONSTANT({name}, {_literal(value)})" for name, value in own + shared),
            *_structures(module),
            *_kernels(module),
            "}",
            "",
        ]
    )


def _literal(value: int) -> str:
    return str(value).lower()  # of a bool too


def _constant(named: tuple[str, int]) -> str:
    name, value = named
    kind = "bool" if isinstance(value, bool) else "int"
    return f"[[maybe_unused]] constexpr {kind} {name} = {_literal(value)};"


def _structures(module: Module) -> Iterable[str]:
    """The checks of every structure that a kernel takes, each once."""
    taken = {
        p.name: p
        for signature in module.kernels.values()
        for p in parameters(signature)
        if isinstance(p, Structure)
    }
    for name, structure in sorted(taken.items()):
        for field, start in structure.starts.items():
            letters = structure.fields[field]
            count = letters[:-1] or "1"
            yield f"DECLARED_FIELD({name}, {field}, {TYPES[letters[-1]]}, {count}, {start})"
        yield f"DECLARED_SIZE({name}, {struct.calcsize(structure.letters)})"


def _kernels(module: Module) -> Iterable[str]:
    """The check of every kernel."""
    for name, signature in sorted(module.kernels.items(), key=lambda item: item[0]):
        types = (TYPES[p] if isinstance(p, str) else p.name for p in parameters(signature))
        yield f"DECLARED_KERNEL({', '.join((name, *types))})"
