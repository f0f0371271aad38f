"""The process in which ``propolis replay`` runs a call that may end it."""

from __future__ import annotations

import json
import os
import sys
import traceback
from pathlib import Path
from typing import Any


def main() -> None:
    """Answer one request: what to run, and with which settings."""
    hello = json.loads(sys.stdin.readline())
    sys.path[:] = hello["path"]
    channel = os.fdopen(hello["answer"], "w", buffering=1)
    request = json.loads(sys.stdin.readline())

    def answer(**fields: Any) -> None:
        channel.write(json.dumps(fields, default=str) + "\n")

    def alive(**fields: Any) -> None:
        answer(busy=True, **fields)

    # After sys.path is set.
    from propolis import log  # noqa: PLC0415
    from propolis.config import Config  # noqa: PLC0415
    from propolis.errors import PropolisError  # noqa: PLC0415
    from propolis_conformance.cli.replay import judged  # noqa: PLC0415
    from propolis_conformance.drift import load  # noqa: PLC0415

    try:
        config = Config.load(**request["settings"])
        log.configure(config)
        answer(found=judged(load(Path(request["file"])), config, request["device"], alive))
    except PropolisError as exc:
        answer(refused=str(exc), exit_code=exc.exit_code)
    except Exception:  # noqa: BLE001  (a bug of ours is not the plugin's fault)
        answer(bug=traceback.format_exc())
    sys.stdout.flush()
    sys.stderr.flush()
    channel.flush()
    os._exit(0)  # a native library's exit handlers may crash, and all is answered


if __name__ == "__main__":
    main()
