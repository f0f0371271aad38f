"""Judge a sample of the calls of a model while it runs."""

from __future__ import annotations

from collections import defaultdict
from contextlib import contextmanager
from dataclasses import dataclass
from dataclasses import field
from typing import TYPE_CHECKING
from typing import Any

import numpy as np

from propolis.dispatch import DispatchTable
from propolis.dispatch import Handler
from propolis_conformance.drift.call import HostTensor
from propolis_conformance.drift.call import SavedCall
from propolis_conformance.drift.facts import facts
from propolis_conformance.drift.facts import served
from propolis_conformance.drift.measure import Errors
from propolis_conformance.drift.measure import compared
from propolis_conformance.drift.measure import expectation
from propolis_conformance.drift.measure import rank
from propolis_conformance.truth import NoTruthError


if TYPE_CHECKING:
    from collections.abc import Callable
    from collections.abc import Iterable
    from collections.abc import Iterator

    from propolis import dispatch
    from propolis.opspec.spec import Key
    from propolis.tensor import Device


@dataclass(slots=True)
class Cell:
    """
    What the calls of one op in one layer came to.

    Attributes:
        calls: how many there were.
        checked: how many were judged.
        unknown: how many nobody has a truth for.
        failed: how many of those judged are beyond tolerance.
        errors: the worst in each measure.
        by: who ran the worst.
        layer: where the worst was.
    """

    calls: int = 0
    checked: int = 0
    unknown: int = 0
    failed: int = 0
    errors: Errors = field(default_factory=Errors)
    by: str = ""
    layer: str = ""

    def add(self, other: Cell) -> None:
        """Count another cell's calls as this one's."""
        if other.checked and (not self.checked or rank(other.errors) > rank(self.errors)):
            self.by, self.layer = other.by, other.layer
        self.calls += other.calls
        self.checked += other.checked
        self.unknown += other.unknown
        self.failed += other.failed
        self.errors = self.errors.worst(other.errors)

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        counts = {name: getattr(self, name) for name in ("calls", "checked", "unknown", "failed")}
        return {**counts, "by": self.by, "layer": self.layer, **self.errors.as_dict()}


class Drift:
    """
    Watches a device, and remembers the worst call of each op.

    The first call of each op in each layer at each combination of shapes is judged
    whatever the sample is, so that no layer goes unseen.

    A call beyond tolerance is given the truth as its result, and from then on every call of
    that op and dtypes is judged: what comes after it gets right inputs, and an op is off
    only for what it did itself.  Parts of a decomposed op end before the whole does.

    Attributes:
        layer: where the model is; whoever runs it says so before each layer.
        cells: by (op, layer).
        worst: the worst call of each op, with its arguments.
    """

    def __init__(
        self, device: Device, oracle: Device, *, sample: float = 1.0, seed: int = 0
    ) -> None:
        """
        Prepare to watch.

        Args:
            device: whose calls to judge.
            oracle: a CPU that the reference alone serves, as this package's ``oracle()`` gives.
            sample: the share of the other calls to judge, from 0 to 1.
            seed: of the choice among them.
        """
        self.device = device
        self.oracle = oracle
        self.sample = sample
        self.layer = ""
        self.cells: dict[tuple[str, str], Cell] = defaultdict(Cell)
        self.worst: dict[str, tuple[Errors, SavedCall]] = {}
        self._seen: set[tuple[Any, ...]] = set()
        self._wrong: set[tuple[str, Key]] = set()
        self._rng = np.random.default_rng(seed)

    @contextmanager
    def watching(self) -> Iterator[Drift]:
        """
        Judge what this thread runs inside the ``with`` block.

        Raises:
            DispatchError: its calls are captured or watched already.
        """
        with DispatchTable.of(self.device).watch(_Judging(self), "drift"):
            yield self

    @property
    def failed(self) -> int:
        """How many calls are beyond tolerance."""
        return sum(cell.failed for cell in self.cells.values())

    def by_op(self) -> dict[str, Cell]:
        """The cells of all layers together, the worst op first."""
        return _joined((op, cell) for (op, _), cell in self.cells.items())

    def by_layer(self) -> dict[str, dict[str, Cell]]:
        """The cells of each layer in the order of running, the worst op of each first."""
        layers: dict[str, list[tuple[str, Cell]]] = defaultdict(list)
        for (op, layer), cell in self.cells.items():
            layers[layer].append((op, cell))
        return {layer: _joined(cells) for layer, cells in layers.items()}

    def judge(self, call: dispatch.Call, proceed: Callable[[], None]) -> None:
        """Run a call, and judge it where it is in the sample."""
        layer, spec, key = self.layer, call.spec, call.key
        cell = self.cells[spec.name, layer]
        cell.calls += 1
        shapes = tuple(value.shape for value in call.args if hasattr(value, "shape"))
        place, op = (spec.name, key, layer, shapes), (spec.name, key)
        known = place in self._seen and op not in self._wrong
        if known and self._rng.random() >= self.sample:
            proceed()
            return
        self._seen.add(place)
        saved = SavedCall.of(spec, call.args, call.attributes)
        proceed()
        self.device.synchronize()
        server = DispatchTable.of(self.device).server(call)
        told = {**facts(self.device, server.provenance), **served(server)}
        saved = saved.ended(call.written, **told, layer=layer)
        try:
            truth = expectation(saved, self.oracle)
        except NoTruthError:
            cell.unknown += 1
            return
        errors = compared(saved, truth, self.oracle)
        self._note(cell, saved, errors)
        if not errors.passed:
            self._wrong.add(op)
            for output, right in zip(call.written, truth.outputs, strict=True):
                HostTensor.of(output).filled(right, self.oracle).copy_into(output)

    def _note(self, cell: Cell, call: SavedCall, errors: Errors) -> None:
        layer, by = str(call.facts["layer"]), str(call.facts["by"])
        cell.add(Cell(0, 1, 0, int(not errors.passed), errors, by, layer))
        known = self.worst.get(call.op)
        if known is None or rank(errors) > rank(known[0]):
            self.worst[call.op] = errors, call


class _Judging(Handler):
    def __init__(self, drift: Drift) -> None:
        self._drift = drift

    def run(self, call: dispatch.Call, proceed: Callable[[], None]) -> None:
        self._drift.judge(call, proceed)


def _joined(cells: Iterable[tuple[str, Cell]]) -> dict[str, Cell]:
    joined: dict[str, Cell] = defaultdict(Cell)
    for op, cell in cells:
        joined[op].add(cell)
    return dict(sorted(joined.items(), key=lambda item: rank(item[1].errors), reverse=True))


__all__ = ["Cell", "Drift"]
