"""
Turn the lines of standard input into JSON objects; those that are objects stay as they are.

A script that runs in a process of its own, so that the last words of a process that aborts
arrive too.  It imports nothing of ours, to be there at once.  Arguments: event and level.
"""

from __future__ import annotations

import json
import os
import sys
from datetime import UTC
from datetime import datetime


def is_object(line: str) -> bool:
    """Whether a line is a JSON object."""
    if not line.startswith("{"):
        return False
    try:
        return isinstance(json.loads(line), dict)
    except ValueError:
        return False


def main(event: str, level: str) -> None:
    """Pump until there is no writer left."""
    rest = b""
    while more := os.read(0, 65536):
        *lines, rest = (rest + more).split(b"\n")
        for line in lines:
            _put(line, event, level)
    _put(rest, event, level)


def _put(raw: bytes, event: str, level: str) -> None:
    line = raw.decode(errors="replace")
    if line.strip() and not is_object(line):
        now = datetime.now(UTC).isoformat().replace("+00:00", "Z")
        said = {"text": line.rstrip(), "event": event, "level": level, "timestamp": now}
        line = json.dumps(said)
    if line.strip():
        os.write(1, f"{line}\n".encode())


if __name__ == "__main__":
    main(*sys.argv[1:])
