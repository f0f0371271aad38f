from __future__ import annotations

import inspect
import re

import pytest

from propolis import errors


CLASSES = {n: c for n, c in vars(errors).items() if inspect.isclass(c)}


def test_the_tree_in_the_docstring_is_the_tree_of_classes():
    """Every class is drawn under its base, in the docstring that people read."""
    drawn = {}
    stack = []
    for line in errors.__doc__.splitlines():
        found = re.match(r"^    ([│├└─ ]*)([A-Z]\w+Error)\b", line)
        if found:
            depth = len(found[1]) // 4
            del stack[depth:]
            drawn[found[2]] = stack[-1] if stack else "Exception"
            stack.append(found[2])
    assert drawn == {name: cls.__base__.__name__ for name, cls in CLASSES.items()}


def test_all_is_sorted_and_complete():
    """What is exported is what there is."""
    assert list(errors.__all__) == sorted(CLASSES)


@pytest.mark.parametrize("cls", CLASSES.values(), ids=CLASSES)
def test_every_error_is_documented_and_has_an_exit_code(cls):
    """The command line ends with it: 2 for what was given, 3 for all else."""
    assert cls.__doc__
    given = issubclass(cls, errors.UsageError | errors.DeviceNotFoundError)
    assert cls.exit_code == (2 if given else 3)
