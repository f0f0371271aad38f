"""What models are called: ``org/name``, ``org/name:Q4_K_M``, ``org/name:file.gguf``, ``phi3.5``."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import PurePosixPath
from typing import TYPE_CHECKING
from typing import Final

from propolis.errors import ModelError
from propolis.errors import UsageError
from propolis.wording import did_you_mean


if TYPE_CHECKING:
    from collections.abc import Callable
    from collections.abc import Iterable
    from collections.abc import Mapping
    from collections.abc import Sequence
    from typing import TypeVar

    _T = TypeVar("_T")

# Which one is meant where several are there and none is named: the first of these.
USUAL: Final = ("Q4_K_M", "Q4_0", "Q4_1", "Q5_K_M", "Q8_0", "BF16", "F16", "F32")

_PART = r"[A-Za-z0-9][A-Za-z0-9._-]*"
_NAME = re.compile(rf"({_PART}/{_PART})(?::([A-Za-z0-9][A-Za-z0-9._/-]*))?")
_LONGEST: Final = 96  # of an organisation and of a name, as on the hub
_FILES: Final = (".gguf", ".safetensors", ".json", ".bin", ".pt", ".pth", ".ckpt")
_QUANTISATION = re.compile(
    r"(?<![A-Z0-9])((?:UD-)?(?:IQ|TQ|Q)\d[A-Z0-9_]*|MXFP4(?:_MOE)?|NVFP4|BF16|FP?16|FP?32)"
    r"(?![A-Z0-9])"
)
SPLIT = re.compile(r"-(\d{5})-of-(\d{5})\.gguf$")


@dataclass(frozen=True, slots=True)
class ModelName:
    """
    A model of a hub.

    Attributes:
        repository: ``org/name``.
        which: of its GGUF files: a quantisation in capitals, a file's name, or None for the usual
            one, or for the safetensors of a repository that has them.
    """

    repository: str
    which: str | None = None

    def __str__(self) -> str:
        return self.repository if self.which is None else f"{self.repository}:{self.which}"


@cache
def short_names() -> Mapping[str, str]:
    """Short names and what they stand for."""
    text = resources.files(__package__).joinpath("short_names.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)


def parse(text: str) -> ModelName | None:
    """What a text names, a short name or a repository's; None where it is neither."""
    text = short_names().get(text.lower(), text)
    found = _NAME.fullmatch(text)
    if found is None:
        return None
    repository, which = found.groups()
    if which is None and repository.lower().endswith(_FILES):
        return None
    if max(map(len, repository.split("/"))) > _LONGEST or ".." in text:
        return None
    if which is not None and not which.lower().endswith(".gguf"):
        which = which.upper()
    return ModelName(repository, which)


def expect(text: str) -> ModelName:
    """
    What a text names.

    Raises:
        UsageError: it is no name of a model.
    """
    name = parse(text)
    if name is None:
        near = did_you_mean(text.lower(), short_names())
        known = near or f"short names are {', '.join(short_names())}"
        msg = f"{text!r} is no model's name; supported: org/name, org/name:Q4_K_M, "
        msg += f"org/name:file.gguf and short names; {known}"
        raise UsageError(msg)
    return name


def quantisation(file: str) -> str | None:
    """The quantisation that the name of a GGUF file says, in capitals."""
    stem = SPLIT.sub("", PurePosixPath(file).name).removesuffix(".gguf").upper()
    found = _QUANTISATION.findall(stem)
    if not found:
        return None
    return f"F{found[-1][2:]}" if found[-1].startswith("FP") else str(found[-1])


def chosen(name: ModelName, files: Sequence[_T], called: Callable[[_T], str], where: str) -> _T:
    """
    The GGUF file that a name means.

    Args:
        name: what was asked for.
        files: what there is, at least one.
        called: the name of each.
        where: they are, for the message.

    Raises:
        ModelError: none is meant, or it is not said which; lists them.
    """
    if name.which is None:
        found = [*files] if len(files) == 1 else _usual(files, called)
    elif name.which.lower().endswith(".gguf"):
        found = [one for one in files if called(one) == name.which]
    else:
        found = [one for one in files if quantisation(called(one)) == name.which]
    if len(found) == 1:
        return found[0]
    shown = ", ".join(_choices([called(one) for one in found or files]))
    asked = "without saying which" if name.which is None else f":{name.which}"
    count = f"{len(found)} files are that" if found else "there is no such file"
    msg = f"{name.repository} was asked for {asked}, and {count} {where}; there are: {shown}"
    raise ModelError(msg)


def _usual(files: Sequence[_T], called: Callable[[_T], str]) -> list[_T]:
    for kind in USUAL:
        found = [one for one in files if quantisation(called(one)) == kind]
        if found:
            return found
    return []


def _choices(files: Iterable[str]) -> list[str]:
    """What may stand behind the colon: quantisations, or files where those do not tell."""
    files = list(files)
    kinds = [quantisation(file) for file in files]
    return [
        f":{kind}" if kind is not None and kinds.count(kind) == 1 else f":{file}"
        for kind, file in zip(kinds, files, strict=True)
    ]


__all__ = [
    "SPLIT",
    "USUAL",
    "ModelName",
    "chosen",
    "expect",
    "parse",
    "quantisation",
    "short_names",
]
