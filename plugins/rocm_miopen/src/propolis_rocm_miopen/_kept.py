"""
The solutions that were chosen for shapes, on disk, for as long as MIOpen stays as it is.

Asking MIOpen anew reads its databases and runs its heuristics for each shape; and what `propolis
tune miopen` has measured is to last.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
from typing import TYPE_CHECKING
from typing import Final
from typing import NamedTuple

from propolis.dtypes import parse_dtype
from propolis.errors import PropolisError
from propolis.plugins.vetting import read_json
from propolis.plugins.vetting import replace_json
from propolis.plugins.vetting import stamp
from propolis_rocm_miopen import events
from propolis_rocm_miopen._descriptors import KINDS
from propolis_rocm_miopen._problem import Problem


if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from propolis.layout import Shape

FILE: Final = "miopen.json"
"""Its name in the folder of caches."""

_MACHINES: Final = 8
"""So many libraries, architectures and settings are remembered, those used last."""

MOST: Final = 2048
"""And so many shapes of each; those that were measured go last."""

_ABOUT_SELF: Final = ("MIOPEN_LOG", "MIOPEN_ENABLE_LOGGING")


class Wanted(NamedTuple):
    """
    Which solutions a call may be given.

    Attributes:
        exact: none that round what they compute with on the way, as Winograd's and Fourier's do.
        naive: also those that are slower than anybody else's.
    """

    exact: bool = False
    naive: bool = False

    @property
    def name(self) -> str:
        """Of the variant that asks for them."""
        return "exact" * self.exact + "naive" * self.naive

    @classmethod
    def named(cls, name: str) -> Wanted:
        """The other way round; names that are not known want nothing in particular."""
        return cls(name == "exact", name == "naive")


class Kept(NamedTuple):
    """
    What is remembered of a shape.

    Attributes:
        wanted: which solutions were allowed.
        problem: the shape.
        solution: MIOpen's number of it.
        workspace: bytes that it needs.
        algorithm: ``miopenConvFwdAlgorithm_t``.
        tuned: it was measured to be the fastest, not only expected to be.
    """

    wanted: Wanted
    problem: Problem
    solution: int
    workspace: int
    algorithm: int
    tuned: bool


class Shelf:
    """
    The solutions for one library on one architecture.

    Args:
        folder: of caches.
        library: MIOpen's file.
        version: that it says it is.
        arch: of the device.
    """

    def __init__(self, folder: Path, library: Path, version: str, arch: str) -> None:
        self._path = folder / FILE
        settings = (
            f"{name}={os.environ[name]}"
            for name in sorted(os.environ)
            if name.startswith("MIOPEN_") and not name.startswith(_ABOUT_SELF)
        )
        decides = "\0".join((stamp(str(library)), version, arch, *settings))
        self._key = hashlib.sha256(decides.encode(errors="surrogateescape")).hexdigest()[:16]
        self._about = f"MIOpen {version} on {arch}"
        self._told = False

    def all(self) -> dict[tuple[Wanted, Problem], Kept]:
        """What is remembered, by what was wanted; what cannot be read is forgotten."""
        return {(kept.wanted, kept.problem): kept for kept in self._rows()}

    def _rows(self) -> Iterator[Kept]:
        section = self._sections().get(self._key)
        rows = section.get("solutions") if isinstance(section, dict) else None
        for row in rows if isinstance(rows, list) else ():
            kept = _parsed(row)
            if kept is not None:
                yield kept

    def put(self, kept: Kept) -> None:
        """
        Remember a solution, in place of what was known of that shape.

        What was measured is not forgotten for what is only expected.  Processes take turns.
        """
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with (self._path.parent / f"{FILE}.lock").open("a") as turn:
                fcntl.flock(turn, fcntl.LOCK_EX)
                self._write(kept)
        except OSError as exc:
            if not self._told:
                self._told = True
                events.MIOPEN_NOT_KEPT.emit(path=str(self._path), reason=str(exc))

    def _write(self, kept: Kept) -> None:
        sections, known = self._sections(), self.all()
        before = known.get((kept.wanted, kept.problem))
        if before is not None and before.tuned and not kept.tuned:
            return
        known.pop((kept.wanted, kept.problem), None)
        if len(known) >= MOST:
            del known[next((key for key, old in known.items() if not old.tuned), next(iter(known)))]
        known[kept.wanted, kept.problem] = kept
        rows = [_written(each) for each in known.values()]
        sections.pop(self._key, None)
        sections = dict(list(sections.items())[1 - _MACHINES :])
        sections[self._key] = {"about": self._about, "solutions": rows}
        replace_json(self._path, sections)

    def _sections(self) -> dict[str, object]:
        found = read_json(self._path)
        return dict(found) if isinstance(found, dict) else {}


def _written(kept: Kept) -> list[object]:
    problem = [kept.problem.dtype.name, *kept.problem[1:]]
    return [kept.wanted.name, problem, *kept[2:]]


def _parsed(row: object) -> Kept | None:
    match row:
        case [str(wanting), list(said), int(solution), int(workspace), int(algorithm), bool(tuned)]:
            problem = _problem(said)
            return problem and Kept(
                Wanted.named(wanting), problem, solution, workspace, algorithm, tuned
            )
    return None


def _problem(said: list[object]) -> Problem | None:
    match said:
        case [str(name), x, w, y, stride, padding, dilation, extra, int(groups), bool(transposed)]:
            try:
                dtype = parse_dtype(name)
            except PropolisError:
                return None
            if dtype not in KINDS:
                return None
            shapes = _shape(x), _shape(w), _shape(y)
            attributes = _shape(stride), _shape(padding), _shape(dilation), _shape(extra)
            return Problem(dtype, *shapes, *attributes, groups, transposed)
    return None


def _shape(said: object) -> Shape:
    return tuple(n for n in said if isinstance(n, int)) if isinstance(said, list) else ()


__all__ = ["FILE", "MOST", "Kept", "Shelf", "Wanted"]
