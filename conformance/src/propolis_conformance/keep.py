"""Keep the cases that fail in files: each is on disk before it runs, as it may be the last."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from propolis.errors import UsageError


if TYPE_CHECKING:
    from propolis_conformance.cases import Case
    from propolis_conformance.checks import Bench


class NotKeptError(UsageError):
    """A case cannot be written, which is no fault of the plugin's."""


def path_of(folder: str, unit: str) -> Path:
    """The file of a unit's failing case: ``qmatmul-f16-q4_0.npz``."""
    return Path(folder) / (re.sub(r"[^A-Za-z0-9_#]+", "-", unit).strip("-") + ".npz")


def keep(folder: str, bench: Bench, case: Case, failure: str = "") -> None:
    """
    Write a case of a unit in the place of the one before.

    Raises:
        NotKeptError: the file cannot be written.
    """
    from propolis_conformance.drift.call import SavedCall  # noqa: PLC0415  (drift imports conformance)
    from propolis_conformance.drift.facts import facts  # noqa: PLC0415
    from propolis_conformance.drift.file import save  # noqa: PLC0415

    spec, device = bench.unit.spec, bench.subject.device
    source = bench.unit.impl.provenance
    args, kwargs = bench.arguments()
    found = {
        **facts(device, source),
        "by": str(source),
        "unit": bench.unit.name,
        "case": str(case),
        "seed": case.seed,
        "failure": failure or "ended the process, or gave no sign of life",
    }
    call = SavedCall.given(spec, args, kwargs)
    try:
        save(replace(call, facts=found), path_of(folder, bench.unit.name))
    except UsageError as exc:
        raise NotKeptError(str(exc)) from exc


__all__ = ["NotKeptError", "keep", "path_of"]
