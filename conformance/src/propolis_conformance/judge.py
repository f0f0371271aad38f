"""One implementation at one key: all its cases, and the smallest that fails."""

from __future__ import annotations

import importlib.util
import math
import time
from dataclasses import asdict
from dataclasses import dataclass
from dataclasses import field
from typing import TYPE_CHECKING
from typing import Any
from typing import Final

from propolis_conformance.cases import cases
from propolis_conformance.checks import Bench
from propolis_conformance.checks import CheckFailedError
from propolis_conformance.checks import DeclinedError
from propolis_conformance.checks import NotValidError
from propolis_conformance.checks import check_call
from propolis_conformance.families import info_of
from propolis_conformance.keep import keep
from propolis_conformance.keep import path_of
from propolis_conformance.misuse import check_errors
from propolis_conformance.promises import check_capture
from propolis_conformance.promises import check_leak
from propolis_conformance.shrink import shrink
from propolis_conformance.subject import REFERENCE
from propolis_conformance.truth import NoTruthError


if TYPE_CHECKING:
    from collections.abc import Callable

    from propolis_conformance.cases import Case
    from propolis_conformance.subject import Subject
    from propolis_conformance.subject import Unit

    Promise = Callable[[Bench, Case], None]

SHRINKING: Final = 20.0
"""Seconds after which a failing case is small enough."""

RANDOM: Final = importlib.util.find_spec("hypothesis") is not None
"""Whether random cases can be drawn: core works without Hypothesis."""

EXAMPLES: Final = 30
"""Random cases of a unit."""


@dataclass(frozen=True, slots=True)
class Plan:
    """
    How to judge a unit.

    Attributes:
        seed: of all random numbers.
        quick: leave the random cases out.
        scale: of what is large or many; below 1 for slow devices.
        seconds: after which no further case begins.
        save: folder for the case that fails; None keeps none.
    """

    seed: int = 0
    quick: bool = True
    scale: float = 1.0
    seconds: float = math.inf
    save: str | None = None


@dataclass(slots=True)
class Result:
    """
    What became of a unit.

    Attributes:
        unit: its name, ``"add[f32]"``.
        status: ``passed``, ``failed``, ``expected``, ``no recipe``, ``no truth`` or
            ``declined`` (every case was refused by ``supports``).
        cases: how many were judged.
        declined: how many ``supports`` refused.
        check: the check that failed.
        message: in what way, or why it is not judged.
        case: the smallest case that fails, with its seed.
        truth: who computed it.
        seconds: how long it took.
        cut: whether time was up before all cases were judged.
    """

    unit: str
    status: str = "passed"
    cases: int = 0
    declined: int = 0
    check: str = ""
    message: str = ""
    case: str = ""
    truth: list[str] = field(default_factory=list)
    seconds: float = 0.0
    cut: bool = False

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


def judge(subject: Subject, unit: Unit, plan: Plan, alive: Callable[[Case], None]) -> Result:
    """
    Run every case of a unit, until one fails.

    Args:
        subject: the plugin.
        unit: the implementation and its dtypes.
        plan: how.
        alive: told each case before it runs, so that whoever watches knows where a
            crash happened.
    """
    result = Result(unit.name)
    if not info_of(unit.spec.name).recipes:
        result.status = "no recipe"
        result.message = "propolis_conformance cannot draw arguments for this op yet"
        return result
    started = time.monotonic()
    try:
        _run_all(subject, unit, plan, alive, result)
    except NoTruthError as exc:
        # The reference refuses what the op allows: its own fault when it is judged.
        itself = subject.facts["plugin"] == REFERENCE
        result.status = "failed" if itself else "no truth"
        result.check, result.message = "runs" if itself else "", str(exc)
    if result.status == "passed" and not result.cases:
        result.status = "declined" if result.declined else "no recipe"
        result.message = "its supports() took no case" if result.declined else "no case is valid"
    if plan.save is not None and result.status != "failed":
        path_of(plan.save, unit.name).unlink(missing_ok=True)
    result.seconds = time.monotonic() - started
    return result


def _run_all(
    subject: Subject, unit: Unit, plan: Plan, alive: Callable[[Case], None], result: Result
) -> None:
    recipes = info_of(unit.spec.name).drawn_from(quick=plan.quick)
    until = time.monotonic() + plan.seconds
    promises: tuple[Promise, ...] = _PROMISES  # of the first case that is taken

    def attempt(case: Case, *promised: Promise) -> bool:
        alive(case)
        try:
            bench = Bench.set_up(subject, unit, case, subject.use(unit))
            if plan.save is not None:
                keep(plan.save, bench, case)
            source = check_call(bench, case)
        except (NotValidError, DeclinedError) as exc:
            result.declined += isinstance(exc, DeclinedError)
            return False
        result.cases += 1
        if source not in result.truth:
            result.truth.append(source)
        for promise in promised:
            promise(bench, case)
        return True

    def fail(case: Case, failure: CheckFailedError) -> None:
        result.status, result.case = "failed", str(case)
        result.check, result.message = failure.check, failure.message
        if plan.save is not None:
            bench = Bench.set_up(subject, unit, case, subject.use(unit))
            keep(plan.save, bench, case, f"{failure.check}: {failure.message}")

    for case in cases(recipes, plan.seed, scale=plan.scale):
        if result.cases and time.monotonic() > until:
            result.cut = True
            return
        try:
            if attempt(case, *promises):
                promises = ()
        except CheckFailedError as failure:
            result.cases += 1
            fail(*_smallest(attempt, case, promises, failure))
            return
    if not plan.quick and RANDOM and time.monotonic() < until:
        from propolis_conformance.search import search  # noqa: PLC0415  (Hypothesis is large)

        examples = max(5, int(EXAMPLES * plan.scale))
        seconds = min(until - time.monotonic(), 1e6)
        found = search(recipes, plan.seed, examples, seconds, attempt)
        if found is not None:
            fail(*found)


def rerun(subject: Subject, unit: Unit, case: Case, save: str | None) -> None:
    """Run a case as it was, to see whether the process survives it."""
    try:
        bench = Bench.set_up(subject, unit, case, subject.use(unit))
        if save is not None:
            keep(save, bench, case)
        check_call(bench, case)
        for promise in _PROMISES:
            promise(bench, case)
    except (CheckFailedError, NotValidError, DeclinedError, NoTruthError):
        return


def _smallest(
    attempt: Callable[..., bool],
    case: Case,
    promises: tuple[Promise, ...],
    failure: CheckFailedError,
) -> tuple[Case, CheckFailedError]:
    """The smallest case that fails the same check, by itself or with the promise that failed."""

    def failing(*promised: Promise) -> Callable[[Case], CheckFailedError | None]:
        def fails(case: Case) -> CheckFailedError | None:
            try:
                attempt(case, *promised)
            except CheckFailedError as exc:
                return exc if exc.check == failure.check else None
            except NoTruthError:
                return None
            return None

        return fails

    for fails in (failing(), *map(failing, promises)):
        if fails(case) is not None:
            return shrink(case, failure, fails, SHRINKING)
    return case, failure  # it fails once only


def _leak(bench: Bench, case: Case) -> None:
    del case
    check_leak(bench)


def _capture(bench: Bench, case: Case) -> None:
    del case
    check_capture(bench)


_PROMISES: Final = (check_errors, _leak, _capture)
