"""Checks of what an implementation promises beside values: capture, and no leaks."""

from __future__ import annotations

import gc
import tracemalloc
from contextlib import ExitStack
from contextlib import contextmanager
from typing import TYPE_CHECKING
from typing import Any
from weakref import ref

from propolis.dispatch.capture import capture
from propolis_conformance.checks import POISONS
from propolis_conformance.checks import CheckFailedError
from propolis_conformance.meter import replaced


if TYPE_CHECKING:
    from collections.abc import Iterator
    from weakref import ReferenceType

    from propolis.tensor import Device
    from propolis.tensor import Tensor
    from propolis_conformance.arena import Placed
    from propolis_conformance.checks import Bench

_FEW, _MANY = 4, 16
_ROUNDS = 4
_WATCHED = ("allocate", "synchronize", "copy_in", "copy_out", "copy_out_later")


def check_capture(bench: Bench) -> None:
    """
    A captured call neither allocates nor waits, and its replay gives the same bits.

    On the CPU it may allocate its workspace: a replay is the call again, or a plan that keeps it.
    """
    impl, device = bench.unit.impl, bench.subject.device
    if not impl.capture_safe:
        return
    allowed = {"allocate"} if device.kind == "cpu" and impl.workspace is not None else set()
    outs = bench.outputs(POISONS[0])
    bench.call(outs)  # what is made once, on the first call, is made now
    _reset(bench, outs)
    with _watched(device) as calls, capture(device) as graph:
        bench.begin(outs)
    _refuse({*calls} - allowed, "while it is captured")
    device.synchronize()
    before = _results(bench, outs)
    _reset(bench, outs)
    with _watched(device) as calls:
        graph.replay()
    _refuse({*calls} - allowed, "while it is replayed")
    device.synchronize()
    after = _results(bench, outs)
    _reset(bench, outs)
    if before != after:
        raise CheckFailedError("capture", "a replay gives other bits than the call")


def _reset(bench: Bench, outs: list[Placed]) -> None:
    """Poison outputs again, and give a target its first values."""
    for out in outs:
        out.write()
    bench.reset()


def _results(bench: Bench, outs: list[Placed]) -> list[bytes]:
    return [result.read()[0].tobytes() for result in bench.written(outs)]


def check_leak(bench: Bench) -> None:
    """Repeated calls leave no more memory behind than one, and keep no tensor."""
    _expect_let_go(bench)
    outs = bench.outputs(POISONS[0]) if bench.metas else []
    live = getattr(bench.subject.device.memory, "live", None)
    for _ in range(2):
        bench.call(outs)
    size = sum(out.tensor.nbytes for out in outs) or 64
    more = _MANY - _FEW
    # Python keeps small objects for reuse, some bytes a call; an array is larger than that.
    limit = more * max(size * 3 // 4, 128)
    # Caches, and tools that watch the process (coverage), grow once; a leak with every call.
    for tried in range(_ROUNDS):
        allocations = len(live) if live is not None else 0
        # What numpy keeps of small arrays no longer grows once all are made while it is traced.
        before = _MANY if tried else 0
        few = _growth(bench, outs, _FEW, before)
        if live is not None and len(live) > allocations:
            text = f"{len(live) - allocations} allocations stay after {_FEW} calls"
            raise CheckFailedError("leak", text)
        grown = _growth(bench, outs, _MANY, before) - few
        if grown < limit:
            return
    raise CheckFailedError("leak", f"{grown} bytes stay after {more} calls, every time")


def _expect_let_go(bench: Bench) -> None:
    """Tensors of a call before the last are gone with those who asked for them, and gave them."""
    asked: list[dict[str, ReferenceType[Tensor]]] = []
    for _ in range(2):
        outs = bench.outputs(POISONS[0])
        given = {name: _same(each.tensor) for name, each in bench.placed.items()}
        bench.call(outs, given)
        tensors = [*given.items(), *(("an output", out.tensor) for out in outs)]
        asked.append({name: ref(tensor) for name, tensor in tensors})
        del tensors
        del outs, given
    gc.collect()
    kept = ", ".join(name for name, tensor in asked[0].items() if tensor() is not None)
    if kept:
        raise CheckFailedError("leak", f"{kept} is kept after its call, by nobody who asked")


def _same(tensor: Tensor) -> Tensor:
    """The same elements, in a tensor of its own."""
    return type(tensor)(tensor.storage, tensor.layout, tensor.dtype, tensor.device)


def _growth(bench: Bench, outs: list[Placed], calls: int, before: int) -> int:
    """Bytes of Python's memory that some calls leave behind, after others."""
    gc.collect()
    started = not tracemalloc.is_tracing()
    if started:
        tracemalloc.start(1)
    try:
        for _ in range(before):
            bench.call(outs)
        gc.collect()
        held = tracemalloc.get_traced_memory()[0]
        for _ in range(calls):
            bench.call(outs)
        gc.collect()
        return tracemalloc.get_traced_memory()[0] - held
    finally:
        if started:
            tracemalloc.stop()


def _refuse(calls: set[str], when: str) -> None:
    if calls:
        text = f"it calls {', '.join(sorted(calls))} {when}; it is declared capture-safe"
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

    with ExitStack() as stack:
        for name in _WATCHED:
            stack.enter_context(replaced(memory, name, watch(name)))
        yield calls
