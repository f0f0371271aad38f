"""What runs in the child process of :mod:`propolis.plugins.vetting`."""

from __future__ import annotations

import json
import os
import sys
from typing import Any


def main() -> None:
    """Import each plugin that standard input names, ask its probe, answer in a file."""
    request = json.load(sys.stdin)
    sys.path[:] = request["path"]
    with os.fdopen(request["answer"], "w") as file:
        for value in request["values"]:
            file.write(json.dumps(ask(value)) + "\n")
            file.flush()  # the next one may end this process
        # No interpreter shutdown: a native library's exit handlers may crash, and
        # the answer is given.
        os._exit(0)


def ask(value: str) -> dict[str, Any]:
    """The probe's answer for the entry-point value, as JSON fields."""
    # After sys.path is set.
    from propolis.plugins import vetting  # noqa: PLC0415
    from propolis.plugins.loader import load_object  # noqa: PLC0415
    from propolis.records import ProbeResult  # noqa: PLC0415
    from propolis.wording import describe  # noqa: PLC0415

    vetting.in_child = True
    try:
        plugin = load_object(value)
        probe = getattr(plugin, "propolis_probe", None)
        if probe is None:
            return {"ok": True, "reason": "", "files": [], "answered": True}
        result = probe()
        if not isinstance(result, ProbeResult):
            kind = type(result).__name__
            return _no(f"propolis_probe() returned a {kind}, not a ProbeResult")
        files = [_absolute(os.fsdecode(file)) for file in result.files]
        return {
            "ok": bool(result.ok),
            "reason": str(result.reason) or ("" if result.ok else "it gave no reason"),
            "files": files,
            "answered": True,
        }
    except (Exception, SystemExit) as exc:  # noqa: BLE001  (whatever a stranger's code raises)
        return _no(describe(exc))


def _no(reason: str) -> dict[str, Any]:
    return {"ok": False, "reason": reason, "files": [], "answered": False}


def _absolute(library: str) -> str:
    """Where a library lies that is named as the linker names it (``libhipblas.so.2``)."""
    if "/" in library:
        return library
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:  # noqa: PTH123  (procfs)
        loaded = {line.split(maxsplit=5)[-1].rstrip("\n") for line in maps}
    return next((path for path in sorted(loaded) if path.endswith(f"/{library}")), library)


if __name__ == "__main__":
    main()
