"""
Weights that implementations prepared for themselves.

A weight is prepared for whoever leads its op's ladder.  When that one is taken out, the
weights it prepared are prepared anew for its successor, in the tensors that layers and
captured graphs hold, and the old form is let go: a decode goes on at the successor's
speed, and in the memory of one preparation.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from dataclasses import replace
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import numpy as np

from propolis.dispatch.quarantine import is_devices_own
from propolis.dispatch.quarantine import is_fault
from propolis.dispatch.quarantine import is_reference
from propolis.errors import DeviceError
from propolis.inflight import named
from propolis.records import Prepared
from propolis.released import release
from propolis.tensor import Tensor
from propolis.wording import describe


if TYPE_CHECKING:
    from collections.abc import Callable

    from propolis.dispatch.base import Table
    from propolis.dtypes import DType
    from propolis.opspec.spec import Key
    from propolis.opspec.spec import OpSpec
    from propolis.records import OpImpl


# Rows and elements of a sample: whole blocks of every format, and whole tiles of rows.
_SAMPLE = (64, 256)


def _same(a: OpImpl, b: OpImpl) -> bool:
    """Whether they are one implementation, which a plugin may yield anew."""
    return (a.op, a.provenance, a.variant) == (b.op, b.provenance, b.variant)


@dataclass(frozen=True, slots=True)
class _Use:
    """An op that a weight was prepared for, by whom, and what that took."""

    spec: OpSpec
    key: Key
    impl: OpImpl
    nbytes: int
    what: str


class Weights:
    """The prepared weights of one device."""

    def __init__(self, table: Table) -> None:
        self._table = table
        self._uses: WeakKeyDictionary[Tensor, list[_Use]] = WeakKeyDictionary()

    def prepare(self, spec: OpSpec, key: Key, weight: Tensor) -> Tensor:
        """See :meth:`propolis.dispatch.DispatchTable.prepare`."""
        uses = self._uses.get(weight, [])
        winner = self._table.trace(spec, key).winner
        for use in uses:
            if winner is not None and use.impl.prepare == winner.prepare:
                uses.append(replace(use, spec=spec, key=key, impl=winner))
                return weight
        made = self._make(spec, key, weight)
        if made is None:
            return weight
        # A copy of a strided weight at every call would be a copy without its form.
        ready = (weight if made[0].strided else weight.contiguous()).with_prepared({})
        self._uses[ready] = list(uses)
        self._attach(ready, spec, key, *made)
        return ready

    def expected(self, spec: OpSpec, key: Key, dtype: DType, rank: int = 2) -> float:
        """
        Bytes that an element of a weight takes once prepared, as a sample of some rows shows.

        Args:
            spec: the op.
            key: its dispatch key.
            dtype: a block format.
            rank: dimensions of the op's weights.
        """
        shape = (1,) * (rank - 2) + _SAMPLE
        raw = np.zeros(_SAMPLE[0] * dtype.nbytes(_SAMPLE[1]), np.uint8)
        sample = Tensor.from_blocks(raw, dtype, shape, self._table.device)
        taken = sample.nbytes
        made = self._make(spec, key, sample)
        if made is not None:
            _, prepared = made
            taken = prepared.nbytes + (0 if prepared.restore else taken)
        return taken / sample.numel

    def replace(self, impl: OpImpl, key: Key) -> None:
        """Prepare anew what an implementation had prepared that no longer serves these dtypes."""
        for weight, uses in list(self._uses.items()):
            stale = [use for use in uses if use.key == key and _same(use.impl, impl)]
            for use in stale:
                uses.remove(use)
                if not any(other.impl.prepare == impl.prepare for other in uses):
                    kept = {by: form for by, form in weight.prepared.items() if by != impl.prepare}
                    weight.prepared = kept
                    self._table.placement.forget_weight(use.impl, weight, use.nbytes, use.what)
                # The call that brought us here has succeeded.  A weight that cannot be
                # prepared now (too little memory) stays as it is, which every fn takes.
                with contextlib.suppress(Exception):
                    made = self._make(use.spec, use.key, weight)
                    if made is not None:
                        self._attach(weight, use.spec, use.key, *made)

    def _make(self, spec: OpSpec, key: Key, weight: Tensor) -> tuple[OpImpl, Prepared] | None:
        """
        What the first of the ladder makes of a weight; None where it takes weights as they are.

        One that raises is taken out, where a lower rung can do with the weight.
        """
        table = self._table
        failed: list[tuple[OpImpl, BaseException]] = []
        made = None
        trace = table.trace(spec, key)
        for impl in trace.chain:
            if impl.prepare is None:
                break
            try:
                made = impl, self._prepared(impl, impl.prepare, key, weight)
                break
            except (Exception, SystemExit) as exc:
                if not is_fault(exc) or is_reference(impl):
                    raise
                failed.append((impl, exc))
        else:
            if failed and not (trace.is_decomposed or (trace.cpu and trace.cpu.on_device)):
                raise failed[0][1]
        for impl, error in failed:
            reason = f"prepare() raised {describe(error)}"
            table.condemn(impl, key, reason, lasting=not is_devices_own(error))
        return made

    def _prepared(
        self, impl: OpImpl, prepare: Callable[[Tensor], Prepared], key: Key, weight: Tensor
    ) -> Prepared:
        """What it makes of a weight; a device that refuses is asked once more."""
        table = self._table
        name = table.quarantine.name(impl, key, table.device)
        shape = "x".join(map(str, weight.shape))
        call = named(prepare, f"{name} prepare(), weight {shape}")
        try:
            prepared = table.device.guarded(call, weight)
        except DeviceError as exc:
            if not is_devices_own(exc):
                raise
            prepared = table.device.guarded(call, weight)
            reason = f"prepare() raised {describe(exc)}"
            table.quarantine.repeated(impl, key, table.device, reason)
        if not isinstance(prepared, Prepared):
            msg = f"it gave a {type(prepared).__name__}, not a Prepared"
            raise TypeError(msg)
        return prepared

    def _attach(
        self, weight: Tensor, spec: OpSpec, key: Key, impl: OpImpl, prepared: Prepared
    ) -> None:
        self._table.placement.add_weight(impl, weight, prepared.nbytes, prepared.what)
        self._uses[weight].append(_Use(spec, key, impl, prepared.nbytes, prepared.what))
        weight.prepared = {**weight.prepared, impl.prepare: prepared.payload}
        if prepared.restore is not None:
            release(weight, prepared.restore)
