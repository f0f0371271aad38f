"""Checks of what an implementation promises beside values: capture, no leaks, errors."""

from __future__ import annotations

import gc
import tracemalloc
from contextlib import contextmanager
from typing import TYPE_CHECKING
from typing import Any

import numpy as np

from propolis.conformance.arena import place
from propolis.conformance.checks import POISONS
from propolis.conformance.checks import CheckFailedError
from propolis.conformance.inputs import Value
from propolis.errors import DTypeError
from propolis.errors import OpError
from propolis.graph import capture


if TYPE_CHECKING:
    from collections.abc import Iterator

    from propolis.conformance.arena import Placed
    from propolis.conformance.cases import Case
    from propolis.conformance.checks import Bench
    from propolis.device import Device

_REPEATS = 8
_ROUNDS = 4
_WATCHED = ("allocate", "synchronize", "copy_in", "copy_out")


def check_capture(bench: Bench) -> None:
    """A captured call neither allocates nor waits, and its replay gives the same bits."""
    if not bench.unit.impl.capture_safe:
        return
    device = bench.subject.device
    outs = bench.outputs(POISONS[0])
    bench.call(outs)  # what is made once, on the first call, is made now
    _reset(bench, outs)
    with _watched(device) as calls, capture(device) as graph:
        bench.begin(outs)
    _refuse(calls, "while it is captured")
    device.synchronize()
    before = _results(bench, outs)
    _reset(bench, outs)
    with _watched(device) as calls:
        graph.replay()
    _refuse(calls, "while it is replayed")
    device.synchronize()
    after = _results(bench, outs)
    _reset(bench, outs)
    if before != after:
        raise CheckFailedError("capture", "a replay gives other bits than the call")


def _reset(bench: Bench, outs: list[Placed]) -> None:
    """Poison outputs again, and give a target its first values."""
    for out in outs:
        out.write()
    if bench.unit.spec.mutates:
        name, target = next(iter(bench.placed.items()))
        target.write(bench.values[name])


def _results(bench: Bench, outs: list[Placed]) -> list[bytes]:
    results = outs or [next(iter(bench.placed.values()))]
    return [result.read()[0].tobytes() for result in results]


def check_leak(bench: Bench) -> None:
    """Repeated calls leave no more memory behind than one."""
    outs = bench.outputs(POISONS[0]) if bench.metas else []
    live = getattr(bench.subject.device.memory, "live", None)
    for _ in range(2):
        bench.call(outs)
    size = sum(out.tensor.nbytes for out in outs) or 64
    limit = max(_REPEATS * size * 3 // 4, 512)
    # Caches, and tools that watch the process (coverage), grow once; a leak every time.
    for _ in range(_ROUNDS):
        allocations = len(live) if live is not None else 0
        grown = _growth(bench, outs)
        if live is not None and len(live) > allocations:
            text = f"{len(live) - allocations} allocations stay after {_REPEATS} calls"
            raise CheckFailedError("leak", text)
        if grown < limit:
            return
    raise CheckFailedError("leak", f"{grown} bytes stay after {_REPEATS} calls, every time")


def _growth(bench: Bench, outs: list[Placed]) -> int:
    """Bytes of Python's memory that some calls leave behind."""
    gc.collect()
    started = not tracemalloc.is_tracing()
    if started:
        tracemalloc.start(1)
    try:
        held = tracemalloc.get_traced_memory()[0]
        for _ in range(_REPEATS):
            bench.call(outs)
        gc.collect()
        return tracemalloc.get_traced_memory()[0] - held
    finally:
        if started:
            tracemalloc.stop()


def check_errors(bench: Bench, case: Case) -> None:
    """Misuse raises an OpError: a foreign dtype, and indices out of range on the CPU."""
    spec, device = bench.unit.spec, bench.subject.device
    first = next(iter(spec.dtypes))
    from propolis import dtypes  # noqa: PLC0415  (a name of the loop)

    foreign = next((d for d in dtypes.ALL if d not in spec.dtypes[first] and not d.is_block), None)
    if foreign is not None and first in bench.values:
        value = bench.values[first]
        if not value.dtype.is_block:
            wrong = Value(np.zeros(value.shape, foreign.numpy), foreign, value.shape)
            _must_raise(bench, {first: wrong}, DTypeError, f"{first} of {foreign}")
    if device.kind != "cpu":
        return
    for name, tensor in case.recipe.tensors.items():
        domain, _, bound = tensor.domain.partition(":")
        if domain not in ("index", "distinct") or name not in bench.values or bound.isdigit():
            continue
        value = bench.values[name]
        if value.array.size and name != "kv_len":
            beyond = np.full_like(value.array, case.sizes[bound] + 1)
            wrong = Value(beyond, value.dtype, value.shape)
            _must_raise(bench, {name: wrong}, OpError, f"{name} out of range")


def _must_raise(bench: Bench, wrong: dict[str, Value], error: type[OpError], what: str) -> None:
    good = dict(bench.placed)
    bench.placed.update({n: place(bench.subject.device, v) for n, v in wrong.items()})
    args, kwargs = bench.arguments()
    bench.placed.update(good)
    spec: Any = bench.unit.spec
    try:
        spec(*args, **kwargs)
        bench.subject.device.synchronize()
    except error:
        return
    except Exception as exc:
        text = f"{what} raised {type(exc).__name__}: {exc}; it must be a {error.__name__}"
        raise CheckFailedError("errors", text) from exc
    raise CheckFailedError("errors", f"{what} was accepted; it must raise {error.__name__}")


def _refuse(calls: list[str], when: str) -> None:
    if calls:
        text = f"it calls {', '.join(sorted(set(calls)))} {when}; it is declared capture-safe"
        raise CheckFailedError("capture", text)


@contextmanager
def _watched(device: Device) -> Iterator[list[str]]:
    """What is asked of the device's memory inside the block, by name."""
    calls: list[str] = []
    memory = device.memory

    def watch(name: str) -> Any:
        plain = getattr(memory, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            calls.append(name)
            return plain(*args, **kwargs)

        return call

    try:
        for name in _WATCHED:
            setattr(memory, name, watch(name))
    except AttributeError:  # memory with slots cannot be watched
        yield calls
        return
    try:
        yield calls
    finally:
        for name in _WATCHED:
            delattr(memory, name)
