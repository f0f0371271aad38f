"""
Models that were pulled, in a folder: ``org/name/`` holds the files of a repository.

What is there is what the files say: no index can differ from them.  A download that was cut lies
beside as ``.NAME.CHECKSUM.part``, and of a model in safetensors ``config.json`` comes last, so that
a folder that has it is whole.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from propolis.config import data_home
from propolis.errors import ConfigError
from propolis.errors import ModelError
from propolis_workers.models.names import SPLIT
from propolis_workers.models.names import ModelName
from propolis_workers.models.names import chosen
from propolis_workers.models.names import parse
from propolis_workers.models.names import quantisation
from propolis_workers.models.names import short_names
from propolis_workers.models.parts import alone_in
from propolis_workers.models.picking import CONFIG
from propolis_workers.models.picking import is_other
from propolis_workers.models.picking import is_pulled


if TYPE_CHECKING:
    from collections.abc import Collection
    from collections.abc import Iterator

    from propolis.config import Config

_PART = re.compile(r"\.(.+)\.[0-9a-f]{12}\.part")


@dataclass(frozen=True, slots=True)
class Local:
    """
    A model on this machine.

    Attributes:
        name: what ``-m`` takes.
        path: a GGUF file, or a folder.
        files: all that belong to it.
        quantisation: as its file's name says, ``"safetensors"``, or empty where it says nothing.
        complete: whether all of it is there.
        file: its GGUF file's name in the repository.
        problem: why nobody can say what it is; empty where it is known.
    """

    name: str
    path: Path
    files: tuple[Path, ...]
    quantisation: str
    complete: bool = True
    file: str = ""
    problem: str = ""

    @property
    def nbytes(self) -> int:
        """Bytes of its files; of one that is removed meanwhile none."""
        return sum(map(_size, self.files))

    @property
    def short_names(self) -> list[str]:
        """Short names that mean it."""
        return [short for short, full in short_names().items() if full == self.name]


class Store:
    """
    The folder of pulled models.

    Attributes:
        folder: it; need not exist.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @classmethod
    def of(cls, config: Config) -> Store:
        """
        The one that the settings name.

        Raises:
            ConfigError: they name none, and this user has no home folder; or what is no folder.
        """
        folder = config.models_dir or data_home() / "models"
        if folder.exists() and not folder.is_dir():
            msg = f"{folder} is no folder: models cannot be kept there; set models_dir to one"
            raise ConfigError(msg)
        return cls(folder)

    def path(self, repository: str, file: str) -> Path:
        """
        Where a file of a repository lies.

        Args:
            repository: its name, checked.
            file: its name in there, checked to stay below.
        """
        return self.folder.joinpath(*repository.split("/"), *file.split("/"))

    def part(self, target: Path, checksum: str) -> Path:
        """Where what will be a file is kept while it is not whole."""
        return target.with_name(f".{target.name}.{checksum[:12]}.part")

    def models(self) -> list[Local]:
        """
        All that are there, those that are not whole last.

        Raises:
            OSError: the folder cannot be read; where one in it cannot, that is a model's problem.
        """
        found: list[Local] = []
        for org in sorted(_inside(self.folder)):
            # Others' files may lie here; what no pull could have written is left alone.
            if not _is_folder(org) or parse(f"{org.name}/any") is None:
                continue
            try:
                for repository in sorted(one for one in _inside(org) if _is_folder(one)):
                    name = f"{org.name}/{repository.name}"
                    if parse(f"{name}:any") is not None:
                        found += _in_folder(name, repository)
            except PermissionError as exc:
                found.append(_unreadable(f"{org.name}/...", org, exc))
        return sorted(found, key=lambda one: not one.complete)

    def find(self, name: ModelName) -> Local | None:
        """
        The model that a name means, where it was pulled.

        Raises:
            ModelError: several files of the repository are there, and it is not said which.
        """
        here = [
            one
            for one in self.models()
            if one.complete and one.name.partition(":")[0] == name.repository
        ]
        if name.which is None:
            for one in here:
                if not one.file:
                    return one
        files = [one for one in here if one.file and name.which in (None, one.file)]
        if name.which is None or not files:
            files = [one for one in here if one.file and not is_other(one.file)]
        if not files or (name.which is not None and not _has(files, name.which)):
            return None
        return chosen(name, files, lambda one: one.file, "here")

    def named(self, text: str) -> Path | None:
        """
        The path of a model that was pulled.

        Returns:
            None where the text is no name of a model.

        Raises:
            ModelError: it is one, and was not pulled; says how.
        """
        name = parse(text)
        if name is None:
            return None
        found = self.find(name)
        if found is None:
            kind = "model that was pulled" if text in short_names() else "path, nor a pulled model"
            msg = f"{text} is no {kind}: `propolis models pull {text}` gets it, and "
            msg += "`propolis models list` shows what is here"
            raise ModelError(msg)
        return found.path

    def remove(self, model: Local) -> int:
        """
        Delete a model's files, and folders that nothing is left in.

        Returns:
            Bytes that were freed.

        Raises:
            ModelError: another process is pulling it.
            OSError: a file cannot be deleted.
        """
        try:
            with alone_in(self.folder.joinpath(*model.name.partition(":")[0].split("/"))):
                return self._removed(model)
        except BlockingIOError:
            msg = f"{model.name} is being pulled, or another of its folder: end that pull first"
            raise ModelError(msg) from None
        except FileNotFoundError:
            return 0  # another has removed it

    def _removed(self, model: Local) -> int:
        freed = model.nbytes
        for file in model.files:
            file.unlink(missing_ok=True)
            folder = file.parent
            # Another may remove the same, or pull into it: then it is not ours any more.
            with contextlib.suppress(FileNotFoundError):
                while folder != self.folder and not any(folder.iterdir()):
                    folder.rmdir()
                    folder = folder.parent
        return freed

    def others(self, repository: str, names: Collection[str]) -> list[Path]:
        """
        Files of a pulled folder that belong to another version of it, whole or not.

        Args:
            repository: its name.
            names: of the files that belong to this version.
        """
        folder = self.folder.joinpath(*repository.split("/"))
        found = []
        for file in _inside(folder):
            part = _PART.fullmatch(file.name)
            name = file.name if part is None else part[1]
            if is_pulled(name) and name not in names and file.is_file():
                found.append(file)
        return found


def _inside(folder: Path) -> list[Path]:
    """What is in a folder; nothing where it is none, or is none any more."""
    try:
        return list(folder.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []


def _is_folder(path: Path) -> bool:
    """Whether it is a folder, and no link to one; as :func:`_is_plain`."""
    return stat.S_ISDIR(path.lstat().st_mode)


def _is_plain(file: Path) -> bool:
    """Whether it is a file, and no link to one; pathlib hides that nobody may know."""
    try:
        return stat.S_ISREG(file.lstat().st_mode)
    except FileNotFoundError:
        return False


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except FileNotFoundError:
        return 0


def _unreadable(name: str, path: Path, exc: OSError) -> Local:
    return Local(name, path, (), "", complete=False, problem=f"cannot be read ({exc.strerror})")


def _has(files: list[Local], which: str) -> bool:
    return any(which in (one.file, quantisation(one.file)) for one in files)


def _in_folder(name: str, folder: Path) -> Iterator[Local]:
    """The models of one repository."""
    files: list[Path] = []
    barred: dict[Path, OSError] = {}
    walked = os.walk(folder, onerror=lambda exc: barred.setdefault(Path(exc.filename), exc))
    for top, _, names in walked:
        try:
            files += sorted(file for n in names if _is_plain(file := Path(top, n)))
        except PermissionError as exc:  # a folder whose names alone can be read
            barred[Path(top)] = exc
    for path, why in barred.items():
        if isinstance(why, PermissionError):
            yield _unreadable(name, path, why)
    files.sort()
    parts = {file: found for file in files if (found := _PART.fullmatch(file.name))}
    ggufs = [file for file in files if file.suffix == ".gguf" and file not in parts]
    yield from _ggufs(name, folder, ggufs)
    others = [file for file in files if file.parent == folder and is_pulled(file.name)]
    weighty = any(file.suffix == ".safetensors" for file in others)
    if weighty or any(not found[1].endswith(".gguf") for found in parts.values()):
        begun = [file for file, found in parts.items() if not found[1].endswith(".gguf")]
        whole = folder / CONFIG in others and not begun
        yield Local(name, folder, (*others, *begun), "safetensors", whole)
    for file, found in parts.items():
        if found[1].endswith(".gguf"):
            inside = file.with_name(found[1]).relative_to(folder).as_posix()
            kind = quantisation(inside) or ""
            yield Local(f"{name}:{kind or inside}", file, (file,), kind, complete=False)


def _ggufs(name: str, folder: Path, files: list[Path]) -> Iterator[Local]:
    """Each GGUF file, or the parts of a split one together."""
    inside = {file: file.relative_to(folder).as_posix() for file in files}
    heads = {file: SPLIT.sub("", inside[file]) for file in files}
    kinds = {
        head: None if is_other(head) else quantisation(f"{head}.gguf") for head in heads.values()
    }
    for head, kind in kinds.items():
        mine = tuple(file for file in files if heads[file] == head)
        split = SPLIT.search(mine[0].name)
        whole = split is None or (split[1] == "00001" and len(mine) == int(split[2]))
        alone = kind is not None and [*kinds.values()].count(kind) == 1
        which = kind if alone else inside[mine[0]]
        yield Local(f"{name}:{which}", mine[0], mine, kind or "", whole, inside[mine[0]])


__all__ = ["CONFIG", "Local", "Store"]
