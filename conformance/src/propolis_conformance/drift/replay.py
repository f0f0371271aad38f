"""Run one call again, and judge it."""

from __future__ import annotations

from dataclasses import dataclass
from dataclasses import field
from typing import TYPE_CHECKING
from typing import Any
from typing import Final

import numpy as np

from propolis.dispatch import DispatchTable
from propolis.dispatch import Handler
from propolis.dispatch import Server
from propolis.errors import DeviceLostError
from propolis.wording import describe
from propolis_conformance.drift.call import HostTensor
from propolis_conformance.drift.call import SavedCall
from propolis_conformance.drift.facts import facts
from propolis_conformance.drift.facts import oracle
from propolis_conformance.drift.facts import served
from propolis_conformance.drift.measure import judge
from propolis_conformance.drift.measure import rank
from propolis_conformance.subject import Raised
from propolis_conformance.truth import NoTruthError
from propolis_conformance.truth import arranged


if TYPE_CHECKING:
    from collections.abc import Callable

    from propolis import dispatch
    from propolis.ops import OpSpec
    from propolis.runtime import Runtime
    from propolis.tensor import Device
    from propolis.tensor import Tensor
    from propolis_conformance.drift.measure import Errors

# What outputs hold before a run: an element that keeps both was never written.
_POISONS: Final = (0xFF, 0x55)


@dataclass(slots=True)
class Replay:
    """
    How a call went this time.

    Attributes:
        call: it, with this time's results and facts.
        by: who ran it; empty where it did not end.
        errors: how far off the results are; None where nobody knows the truth.
        problems: what is wrong, each check's name and a sentence; none where it passed.
        differing: bytes of the results that differ from those in the file; None where
            the file has none.
    """

    call: SavedCall
    by: str = ""
    errors: Errors | None = None
    problems: list[str] = field(default_factory=list)
    differing: int | None = None

    @property
    def passed(self) -> bool:
        """Whether nothing is wrong."""
        return not self.problems


def replay(
    call: SavedCall,
    runtime: Runtime,
    device: Device,
    *,
    after_run: Callable[[bool], None] | None = None,
) -> Replay:
    """
    Run a call on a device, twice with other bytes in its outputs, and judge it.

    What is quarantined takes part, as long as this process lives: it is what one wants to
    see.  An implementation that raises is a problem, though others could take over.

    Args:
        call: from a file, or from a watched run.
        runtime: whose plugins run it.
        device: where.
        after_run: called after each of the two runs, with whether another comes.

    Raises:
        OpError: the op refuses the arguments.
        DispatchError: nobody runs the op for these dtypes.
    """
    spec, noted = call.spec, Raised()
    for table in map(DispatchTable.of, (device, runtime.cpu)):
        table.quarantine = noted
    found = Replay(call)
    runs: list[SavedCall] = []
    for poison in _POISONS:
        tensors = _placed(call, device)
        before = {name: HostTensor.of(tensor) for name, tensor in tensors.items()}
        seen = _Seen(device, spec)
        try:
            with seen.table.watch(seen, "replay"):
                outputs = _run(call, tensors, device, poison)
            device.synchronize()
        except DeviceLostError:
            raise
        except Exception as exc:
            # The op's own refusals name what is wrong with the file.
            if not seen.reached:
                raise
            found.problems = [f"runs: it raised {describe(exc)}"]
            return found
        if noted.reason_given is not None:
            found.problems = [f"runs: it {noted.reason_given}"]
            return found
        found.by = str(seen.server)
        told = {**facts(device, seen.server.provenance), **served(seen.server)}
        found.call = call.ended(tuple(outputs), **told)
        runs.append(found.call)
        found.problems = _changed(spec, call, tensors, before)
        again = not found.problems and len(runs) < len(_POISONS)
        if after_run is not None:
            after_run(again)
        if not again:
            break
    found.problems += _unwritten(runs[0].results, runs[-1].results)
    _judge(found, runs, oracle(runtime))
    if call.results:
        pairs = zip(call.results, found.call.results, strict=False)
        found.differing = sum(_differing(a.raw, b.raw) for a, b in pairs)
    return found


class _Seen(Handler):
    """Who ran the call itself; what it calls in turn is not asked about."""

    def __init__(self, device: Device, spec: OpSpec) -> None:
        self.table = DispatchTable.of(device)
        self.spec = spec
        self.reached = False
        self.server = Server()

    def run(self, call: dispatch.Call, proceed: Callable[[], None]) -> None:
        """Run it, and ask afterwards."""
        # Before it core may copy an input that is written over.
        itself = call.spec is self.spec and not self.reached
        self.reached = self.reached or itself
        proceed()
        if itself:
            self.server = self.table.server(call)


def _placed(call: SavedCall, device: Device) -> dict[str, Tensor]:
    """The arguments' tensors, aliased and prepared as they were."""
    tensors: dict[str, Tensor] = {}
    key = call.spec.key(*call.kinds)
    for name, tensor in call.tensors.items():
        twin = call.shared.get(name)
        tensors[name] = tensors[twin] if twin else tensor.to(device)
        if name in call.prepared and not twin:
            tensors[name] = DispatchTable.of(device).prepare(call.spec, key, tensors[name])
    return tensors


def _run(call: SavedCall, tensors: dict[str, Tensor], device: Device, poison: int) -> list[Tensor]:
    spec: Any = call.spec
    args, kwargs = arranged(spec, {**tensors, **call.attributes})
    metas = spec.infer(*args, **kwargs)
    target = args[: spec.mutates]
    if not spec.outputs:
        spec(*args, **kwargs)
        return target
    outputs = []
    for i, (shape, dtype) in enumerate([metas] if spec.outputs == 1 else metas):
        out = tensors.get(call.into.get(i, ""))
        if out is None:
            out = device.empty(shape, dtype)
            device.memory.copy_in(out.storage, 0, np.full(out.nbytes, poison, np.uint8))
        outputs.append(out)
    spec.into(outputs[0] if spec.outputs == 1 else tuple(outputs), *args, **kwargs)
    return [*outputs, *target]


def _changed(
    spec: OpSpec, call: SavedCall, tensors: dict[str, Tensor], before: dict[str, HostTensor]
) -> list[str]:
    """Inputs that were written."""
    written = {*call.into.values(), *(list(tensors)[:1] if spec.mutates else ())}
    return [
        f"inputs: {name} was written"
        for name, tensor in tensors.items()
        if call.shared.get(name, name) not in written
        and _differing(HostTensor.of(tensor).raw, before[name].raw)
    ]


def _unwritten(first: tuple[HostTensor, ...], second: tuple[HostTensor, ...]) -> list[str]:
    found = []
    for i, (a, b) in enumerate(zip(first, second, strict=True)):
        kept = (a.raw == _POISONS[0]) & (b.raw == _POISONS[1])
        if kept.any():
            count = np.count_nonzero(kept)
            found.append(f"written: {count} bytes of output {i} keep what was there before")
    return found


def _judge(found: Replay, runs: list[SavedCall], truths: Device) -> None:
    """The worse of the runs: some kernels are wrong now and then."""
    try:
        found.errors = max((judge(run, truths) for run in runs), key=rank)
    except NoTruthError:
        return
    if not found.errors.passed:
        found.problems.append(f"values: {found.errors.message}")


def _differing(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> int:
    if a.shape != b.shape:
        return max(a.size, b.size)
    return int(np.count_nonzero(a != b))


__all__ = ["Replay", "replay"]
