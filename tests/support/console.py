"""What a page shows of a console, compared with what a command printed."""

from __future__ import annotations

import doctest
import re


def prints_as_shown(shown: str, printed: str) -> bool:
    """
    Whether a command printed what a page shows; ``...`` stands for anything.

    Spaces at the ends of lines, and how wide a table's columns are, do not count: a column is as
    wide as what stands in it, a CPU's name for one.
    """
    # For lines that may come first, too.
    least = shown.removeprefix("...\n")
    check = doctest.OutputChecker().check_output
    return any(check(_plain(s), _plain(printed), doctest.ELLIPSIS) for s in (shown, least))


def _plain(text: str) -> str:
    return "".join(f"{re.sub(r'(?<=.)  +', '  ', row.rstrip())}\n" for row in text.splitlines())
