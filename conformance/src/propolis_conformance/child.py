"""
The process that runs cases, so that a crash ends it and not the suite.

It reads one line of JSON a unit, or a single case of one, and answers in lines of JSON on
a channel of its own: what plugins print goes elsewhere.
"""

from __future__ import annotations

import gc
import json
import os
import sys
from typing import TYPE_CHECKING
from typing import Any

from propolis.errors import PropolisError


if TYPE_CHECKING:
    from propolis_conformance.cases import Case


def main() -> None:
    """Answer requests until there are no more."""
    hello = json.loads(sys.stdin.readline())
    sys.path[:] = hello["path"]
    channel = os.fdopen(hello["answer"], "w", buffering=1)
    request = json.loads(sys.stdin.readline())

    def answer(**fields: Any) -> None:
        channel.write(json.dumps(fields) + "\n")

    from propolis_conformance.judge import RANDOM  # noqa: PLC0415  (after sys.path is set)
    from propolis_conformance.keep import NotKeptError  # noqa: PLC0415  (likewise)
    from propolis_conformance.subject import Subject  # noqa: PLC0415

    try:
        subject = Subject(request["plugin"], request["device"], quick=request["quick"])
    except PropolisError as exc:
        answer(refused=str(exc), exit_code=exc.exit_code)
        return
    if not request["quick"] and RANDOM:
        import propolis_conformance.search  # noqa: F401, PLC0415  (large, and to be frozen)
    gc.freeze()  # each unit collects garbage, and what is loaded by now is none
    units = {unit.name: unit for unit in subject.units}
    answer(units=[(u.name, u.spec.name) for u in subject.units], facts=subject.facts)
    for line in sys.stdin:
        try:
            serve(subject, units, json.loads(line), answer)
        except NotKeptError as exc:
            answer(refused=str(exc))
    channel.flush()
    os._exit(0)  # a native library's exit handlers may crash, and all is answered


def serve(subject: Any, units: Any, wanted: dict[str, Any], answer: Any) -> None:
    """
    Judge a unit, or run one case of it.

    Args:
        subject: the plugin.
        units: all of its units by name.
        wanted: the unit's name, its plan and, where that is all, the case.
        answer: takes the fields of a line.
    """
    from propolis_conformance.cases import decode  # noqa: PLC0415
    from propolis_conformance.cases import encode  # noqa: PLC0415
    from propolis_conformance.judge import Plan  # noqa: PLC0415
    from propolis_conformance.judge import judge  # noqa: PLC0415
    from propolis_conformance.judge import rerun  # noqa: PLC0415

    unit = units[wanted["unit"]]

    def alive(case: Case) -> None:
        answer(case=str(case), encoded=encode(case, unit.spec.name), busy=True)

    if "case" in wanted:
        rerun(subject, unit, decode(wanted["case"], unit.spec.name), wanted["save"])
        answer(survived=True)
        return
    result = judge(subject, unit, Plan(**wanted["plan"]), alive)
    answer(result=result.as_dict())


if __name__ == "__main__":
    main()
