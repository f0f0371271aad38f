"""
The resolved table of a device as a document: what a deployment runs, to be reviewed.

It holds who wins each op for each combination of dtypes, and who goes first for the sizes at which
another was measured to be faster; what ``supports`` says of a single call is not in it.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING
from typing import Any

from propolis import dtypes
from propolis._version import __version__
from propolis.dispatch.base import Table
from propolis.opspec.spec import catalogue


if TYPE_CHECKING:
    from collections.abc import Iterator
    from collections.abc import Mapping

    from propolis.dispatch.resolve import Server
    from propolis.opspec.spec import Key
    from propolis.opspec.spec import OpSpec
    from propolis.tensor import Device

FORMAT = 1


def lock(device: Device) -> dict[str, Any]:
    """The document for one device, in a fixed order."""
    owner = Table.of(device)
    table: dict[str, dict[str, Any]] = {}
    for name, spec in sorted(catalogue().items()):
        orders = ([d for d in dtypes.ALL if d in kinds] for kinds in spec.dtypes.values())
        table[name] = {
            ",".join(d.name for d in kinds): _entry(owner, spec, spec.key(*kinds))
            for kinds in itertools.product(*orders)
        }
    return {
        "format": FORMAT,
        "propolis": __version__,
        "device": device.id,
        "arch": device.properties.arch,
        "ops": table,
    }


def differences(locked: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    """What has changed since a document was written, a line each."""
    for field in ("format", "propolis", "device", "arch"):
        if locked.get(field) != now[field]:
            yield f"{field}: locked {locked.get(field)}, now {now[field]}"
    then, here = locked["ops"], now["ops"]
    for op in sorted({*then, *here}):
        old, new = then.get(op, {}), here.get(op, {})
        for key in [*new, *(k for k in old if k not in new)]:
            before, after = (side.get(key, "absent") for side in (old, new))
            if before != after:
                yield f"{op} ({key}): locked {describe(before)}, now {describe(after)}"


def describe(server: Any) -> str:
    """Who serves an op, in one phrase."""
    if not isinstance(server, dict):
        return "nobody" if server is None else str(server)
    if "cpu" in server:
        return f"the cpu: {describe(server['cpu'])}"
    if "decomposed" in server:
        return f"decomposed into {', '.join(server['decomposed'])}"
    who = f"{server.get('plugin')} ({server.get('distribution')} {server.get('version')})"
    tuned = (f", for {calls} {taken}" for calls, taken in server.get("tuned", {}).items())
    return f"{who} priority {server.get('priority')}{''.join(tuned)}"


def _entry(owner: Table, spec: OpSpec, key: Key) -> Any:
    trace = owner.trace(spec, key)
    tuned = owner.tuned.of(owner, spec, key, trace.chain)
    measured = {"tuned": {calls: choice.taken for calls, choice in tuned.items()}} if tuned else {}
    facts = _facts(trace.server)
    return {**facts, **measured} if measured else facts


def _facts(server: Server) -> Any:
    if server.impl is not None:
        source = server.impl.provenance
        return {
            "plugin": source.plugin if source else None,
            "distribution": source.distribution if source else None,
            "version": source.version if source else None,
            "priority": server.impl.priority,
        }
    if server.parts is not None:
        return {"decomposed": list(server.parts.names)}
    return {"cpu": _facts(server.cpu)} if server.cpu is not None else None
