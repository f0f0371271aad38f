"""
Failures that an author knows about, each with its reason.

A TOML file of ``op = "reason"`` or ``"op[dtype]" = "reason"``.  What is expected to
fail and passes is a failure: the list never outlives the bugs.
"""

from __future__ import annotations

import tomllib
from dataclasses import replace
from typing import TYPE_CHECKING

from propolis.errors import UsageError


if TYPE_CHECKING:
    from collections.abc import Iterable
    from collections.abc import Mapping
    from pathlib import Path

    from propolis_conformance.judge import Result


def load(file: Path) -> dict[str, str]:
    """
    The expectations of a file.

    Raises:
        UsageError: it cannot be read, or an entry is not a reason.
    """
    try:
        entries = tomllib.loads(file.read_text())
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as exc:
        msg = f"--expect {file}: {getattr(exc, 'strerror', None) or exc}"
        raise UsageError(msg) from exc
    for name, reason in entries.items():
        if not isinstance(reason, str) or not reason.strip():
            msg = (
                f'--expect {file}: {name} is {reason!r}; it must be the reason, as "{name}" = '
                f'"why it fails"'
            )
            raise UsageError(msg)
    return entries


def apply(results: Iterable[Result], expected: Mapping[str, str]) -> list[Result]:
    """
    The results in the light of what was expected.

    An entry for a whole op holds when at least one of its dtypes fails.

    Raises:
        UsageError: an entry names nothing that was judged.
    """
    judged = list(results)
    failing = {_op(r) for r in judged if r.status == "failed"}
    names = {name for r in judged for name in (r.unit, _op(r))}
    strange = sorted(set(expected) - names)
    if strange:
        msg = (
            f"--expect names {', '.join(strange)}, which were not judged; entries are ops or "
            f"units, as {judged[0].unit if judged else 'add[f32]'}"
        )
        raise UsageError(msg)
    return [_apply(result, expected, failing) for result in judged]


def _apply(result: Result, expected: Mapping[str, str], failing: set[str]) -> Result:
    reason = expected.get(result.unit) or expected.get(_op(result))
    if reason is None:
        return result
    if result.status == "failed":
        return replace(result, status="expected", message=f"{reason} ({result.message})")
    if result.unit in expected or _op(result) not in failing:
        text = f"it is expected to fail ({reason}) and does not: take it out of the list"
        return replace(result, status="failed", check="expected", message=text)
    return result


def _op(result: Result) -> str:
    return result.unit.partition("[")[0]
