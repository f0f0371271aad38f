"""
The process that runs cases, so that a crash ends it and not the suite.

It reads one line of JSON a unit, and answers in lines of JSON on a channel of its
own: what plugins print goes elsewhere.
"""

from __future__ import annotations

import gc
import json
import os
import sys
from typing import Any

from propolis.errors import PropolisError


def main() -> None:
    """Answer requests until there are no more."""
    request = json.loads(sys.stdin.readline())
    sys.path[:] = request["path"]
    channel = os.fdopen(request["answer"], "w", buffering=1)

    def answer(**fields: Any) -> None:
        channel.write(json.dumps(fields) + "\n")

    from propolis.conformance.judge import judge  # noqa: PLC0415  (after sys.path is set)
    from propolis.conformance.subject import Subject  # noqa: PLC0415

    try:
        subject = Subject(request["plugin"], request["device"])
    except PropolisError as exc:
        answer(refused=str(exc), exit_code=exc.exit_code)
        return
    gc.freeze()  # each unit collects garbage, and what is loaded by now is none
    units = {unit.name: unit for unit in subject.units}
    answer(units=[(u.name, u.spec.name) for u in subject.units], facts=subject.facts)
    for line in sys.stdin:
        unit = units[json.loads(line)]
        result = judge(
            subject,
            unit,
            request["seed"],
            quick=request["quick"],
            alive=lambda case: answer(case=case),
            save=request["save"],
        )
        answer(result=result.as_dict())
    channel.flush()
    os._exit(0)  # a native library's exit handlers may crash, and all is answered


if __name__ == "__main__":
    main()
