"""One implementation at one key: all its cases, and the smallest that fails."""

from __future__ import annotations

import time
from dataclasses import asdict
from dataclasses import dataclass
from dataclasses import field
from dataclasses import replace
from typing import TYPE_CHECKING
from typing import Any

from propolis.conformance.cases import cases
from propolis.conformance.checks import Bench
from propolis.conformance.checks import CheckFailedError
from propolis.conformance.checks import DeclinedError
from propolis.conformance.checks import NotValidError
from propolis.conformance.checks import check_call
from propolis.conformance.keep import keep
from propolis.conformance.keep import path_of
from propolis.conformance.promises import check_capture
from propolis.conformance.promises import check_errors
from propolis.conformance.promises import check_leak
from propolis.conformance.recipes import RECIPES
from propolis.conformance.subject import REFERENCE
from propolis.conformance.truth import NoTruthError


if TYPE_CHECKING:
    from collections.abc import Callable

    from propolis.conformance.cases import Case
    from propolis.conformance.subject import Subject
    from propolis.conformance.subject import Unit


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

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


def judge(
    subject: Subject,
    unit: Unit,
    seed: int,
    *,
    quick: bool,
    alive: Callable[[str], None],
    save: str | None = None,
) -> Result:
    """
    Run every case of a unit, until one fails.

    Args:
        subject: the plugin.
        unit: the implementation and its dtypes.
        seed: of all random numbers.
        quick: leave the random cases out.
        alive: told each case before it runs, so that whoever watches knows where a
            crash happened.
        save: folder for the case that fails; None keeps none.
    """
    result = Result(unit.name)
    started = time.perf_counter()
    recipes = RECIPES.get(unit.spec.name)
    if recipes is None:
        result.status = "no recipe"
        result.message = "propolis.conformance cannot draw arguments for this op yet"
        return result
    promised = False
    for case in cases(recipes, seed, quick=quick):
        alive(str(case))
        try:
            check, source, bench = _run(subject, unit, case, save)
            if bench is None:
                result.declined += check is DeclinedError
                continue
            result.cases += 1
            if source not in result.truth:
                result.truth.append(source)
            if not promised:
                promised = True
                check_errors(bench, case)
                check_leak(bench)
                check_capture(bench)
        except NoTruthError as exc:
            # The reference refuses what the op allows: its own fault when it is judged.
            itself = subject.facts["plugin"] == REFERENCE
            result.status = "failed" if itself else "no truth"
            result.check, result.message = "runs" if itself else "", str(exc)
            result.case = str(case)
        except CheckFailedError as failure:
            smallest, failure = _shrink(subject, unit, case, failure, alive)
            if save is not None:
                bench = Bench.set_up(subject, unit, smallest, subject.use(unit))
                keep(save, bench, smallest, f"{failure.check}: {failure.message}")
            result.status = "failed"
            result.cases += 1
            result.check, result.message = failure.check, failure.message
            result.case = str(smallest)
            break
    if result.status == "passed" and not result.cases:
        result.status = "declined" if result.declined else "no recipe"
        result.message = "its supports() took no case" if result.declined else "no case is valid"
    if save is not None and result.status != "failed":
        path_of(save, unit.name).unlink(missing_ok=True)
    result.seconds = time.perf_counter() - started
    return result


def _run(
    subject: Subject, unit: Unit, case: Case, save: str | None = None
) -> tuple[type[Exception] | None, str, Bench | None]:
    try:
        bench = Bench.set_up(subject, unit, case, subject.use(unit))
        if save is not None:
            keep(save, bench, case)
        return None, check_call(bench, case), bench
    except (NotValidError, DeclinedError) as exc:
        return type(exc), "", None


def _shrink(
    subject: Subject,
    unit: Unit,
    case: Case,
    failure: CheckFailedError,
    alive: Callable[[str], None],
) -> tuple[Case, CheckFailedError]:
    """Halve sizes, and drop what is special, while the same check fails."""

    def fails(smaller: Case) -> CheckFailedError | None:
        alive(str(smaller))
        try:
            _run(subject, unit, smaller)
        except CheckFailedError as exc:
            return exc if exc.check == failure.check else None
        except NoTruthError:
            return None
        return None

    progress = fails(case) is not None  # what only fails once, or in a promise, stays as it is
    while progress:
        progress = False
        for smaller in _smaller(case):
            found = fails(smaller)
            if found is not None:
                case, failure, progress = smaller, found, True
                break
    return case, failure


def _smaller(case: Case) -> list[Case]:
    simpler = []
    if case.layout != "contiguous":
        simpler.append(replace(case, layout="contiguous"))
    if case.values != "normal":
        simpler.append(replace(case, values="normal"))
    for name, size in case.sizes.items():
        simpler += [
            replace(case, sizes={**case.sizes, name: less})
            for less in dict.fromkeys((size // 2, size - 1))
            if 0 < less < size
        ]
    return simpler
