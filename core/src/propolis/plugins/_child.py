"""What runs in the child process of :mod:`propolis.plugins.vetting`."""

from __future__ import annotations

import json
import os
import sys
from typing import Any


def main() -> None:
    """Import the plugin that standard input names, ask its probe, answer on a pipe."""
    request = json.load(sys.stdin)
    sys.path[:] = request["path"]
    with os.fdopen(request["answer"], "w") as pipe:
        json.dump(ask(request["value"]), pipe)
        pipe.flush()
        # No interpreter shutdown: a native library's exit handlers may crash, and
        # the answer is given.
        os._exit(0)


def ask(value: str) -> dict[str, Any]:
    """The probe's answer for the entry-point value, as JSON fields."""
    from propolis.plugins.loader import load_object  # noqa: PLC0415  (after sys.path is set)

    try:
        plugin = load_object(value)
        probe = getattr(plugin, "propolis_probe", None)
        if probe is None:
            return {"ok": True, "reason": "", "files": []}
        result = probe()
        return {"ok": result.ok, "reason": result.reason, "files": list(result.files)}
    except (Exception, SystemExit) as exc:  # noqa: BLE001  (whatever a stranger's code raises)
        return {"ok": False, "reason": f"{type(exc).__name__}: {exc}", "files": []}


if __name__ == "__main__":
    main()
