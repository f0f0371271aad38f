"""One text for a parameter that several ops of a family have."""

from __future__ import annotations

from typing import TYPE_CHECKING
from typing import Final


if TYPE_CHECKING:
    from collections.abc import Iterable
    from collections.abc import Mapping

_ARGS: Final = "Args:\n"


def parameter_docs(doc: str) -> dict[str, str]:
    """What the ``Args`` section of a docstring says of each parameter, as it is written."""
    _, _, rest = doc.partition(_ARGS)
    texts: dict[str, str] = {}
    name = ""
    for line in rest.partition("\n\n")[0].splitlines():
        if line.startswith("     "):
            texts[name] += "\n" + line
        else:
            name, _, text = line.strip().partition(": ")
            texts[name] = text
    return texts


def completed(doc: str, parameters: Iterable[str], shared: Mapping[str, str]) -> str:
    """
    A docstring with the shared texts of those parameters that its ``Args`` leaves out.

    Args:
        doc: of an op.
        parameters: the op's, in order.
        shared: texts by parameter; the docstring's own go first.
    """
    if not shared:
        return doc
    texts = {**shared, **parameter_docs(doc)}
    listed = "".join(f"    {name}: {texts[name]}\n" for name in parameters if name in texts)
    head, has_args, rest = doc.partition(_ARGS)
    if not has_args:
        head, _, rest = doc.partition("Returns:\n")
        return f"{head}{_ARGS}{listed}\nReturns:\n{rest}"
    return f"{head}{_ARGS}{listed}\n{rest.partition(chr(10) * 2)[2]}"
