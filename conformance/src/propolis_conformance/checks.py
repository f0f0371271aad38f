"""
What must hold of one call, whatever the op.

Each check has a name, which reports and ``--expect`` readers rely on:

- ``runs``: the call neither raises nor fails later, at synchronize.
- ``values``, ``nan_inf``: the result is the truth, within the op's tolerance.
- ``written``: every element is written, whatever was there before.
- ``beside``: no byte around the output is written, nor between a target's elements.
- ``inputs``: no byte of an input is changed.
- ``contract``: the tensors handed over keep shape, dtype and memory.
- ``determinism``: equal inputs give equal bits, where declared.
- ``in_place``: the output may be any input of its shape, where declared.
- ``capture``: no allocation and no wait, and a replay repeats the call, where declared.
- ``leak``: no memory stays behind, and no tensor is kept.
- ``prepared``: a weight that its ``prepare`` was given serves as one that it was not.
- ``workspace``: it allocates no more on the device than it declares.
- ``errors``: misuse raises the op's OpError, and the device stays usable.
- ``aborted``, ``hung``: the process ended, or gave no sign of life.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING
from typing import Any

import numpy as np

from propolis.dispatch import DispatchTable
from propolis.errors import DispatchError
from propolis.errors import OpError
from propolis.errors import PropolisError
from propolis_conformance.arena import CONTIGUOUS
from propolis_conformance.arena import Placed
from propolis_conformance.arena import place
from propolis_conformance.arena import repeat
from propolis_conformance.compare import difference
from propolis_conformance.op_info import NotValidError
from propolis_conformance.truth import Truth
from propolis_conformance.truth import arranged
from propolis_conformance.truth import truth


if TYPE_CHECKING:
    from collections.abc import Mapping

    from propolis.dispatch.fallback import FallbackLog
    from propolis.dtypes import DType
    from propolis.layout import Shape
    from propolis.tensor import Tensor
    from propolis_conformance.cases import Case
    from propolis_conformance.inputs import Recipe
    from propolis_conformance.inputs import Value
    from propolis_conformance.subject import Subject
    from propolis_conformance.subject import Unit

Array = np.ndarray[Any, Any]
POISONS = (0xFF, 0x55)
WEIGHTS = {"w", "table"}
"""What the catalogue calls arguments that are weights."""


class CheckFailedError(Exception):
    """A check that did not hold: its name and a sentence."""

    def __init__(self, check: str, message: str) -> None:
        super().__init__(f"{check}: {message}")
        self.check = check
        self.message = message


class DeclinedError(Exception):
    """The implementation's ``supports`` refuses this call: no case for it."""


@dataclass(slots=True)
class Bench:
    """
    One case on the device, ready to be called any number of times.

    Attributes:
        subject: the plugin.
        unit: the implementation.
        log: what fell to the CPU; the unit's op must not.
        values: the tensors, in host memory.
        attributes: the other arguments.
        placed: the tensors, on the device.
        metas: shape and dtype of each output.
    """

    subject: Subject
    unit: Unit
    log: FallbackLog
    values: dict[str, Value]
    attributes: dict[str, Any]
    placed: dict[str, Placed]
    metas: list[tuple[Shape, DType]]

    @classmethod
    def set_up(cls, subject: Subject, unit: Unit, case: Case, log: FallbackLog) -> Bench:
        """
        Draw the case's tensors and bring them to the device.

        Raises:
            NotValidError: the op refuses the arguments.
        """
        spec, device = unit.spec, subject.device
        try:
            values = case.draw(spec, unit.key)
        except (KeyError, ValueError) as exc:
            raise NotValidError(str(exc)) from exc
        target = next(iter(values)) if spec.mutates else None
        placed: dict[str, Placed] = {}
        for name, value in values.items():
            pattern = case.pattern(name, len(value.shape), target=name == target)
            if pattern.repeat:
                values[name] = repeat(value)
            twin = next((n for n in placed if _alike(values[n], value) and n != target), None)
            if case.layout == "aliased" and twin is not None:
                values[name], placed[name] = values[twin], placed[twin]
            else:
                placed[name] = place(device, values[name], pattern)
        made = cls(subject, unit, log, values, dict(case.attributes), placed, [])
        args, kwargs = made.arguments()
        try:
            metas = spec.infer(*args, **kwargs)
        except OpError as exc:
            raise NotValidError(str(exc)) from exc
        if spec.outputs:
            made.metas = list(metas) if spec.outputs > 1 else [metas]
        return made

    def arguments(
        self, instead: Mapping[str, Tensor] | None = None
    ) -> tuple[list[Any], dict[str, Any]]:
        """As the op takes them, some tensors replaced."""
        tensors = {name: each.tensor for name, each in self.placed.items()} | dict(instead or {})
        return arranged(self.unit.spec, {**tensors, **self.attributes})

    def expected(self, recipe: Recipe) -> Truth:
        """The truth for this case."""
        given = self.values, self.attributes, self.subject.oracle
        exact = self.unit.impl.exact
        return truth(self.unit.spec, *given, fixed=recipe.fixed, exact=exact)

    def differs(self, expected: Truth, i: int, result: Array, dtype: DType) -> None:
        """
        Judge one output.

        Raises:
            CheckFailedError: it is not the truth.
        """
        spec, impl = self.unit.spec, self.unit.impl
        given = expected.outputs[i], dtype, expected.magnitudes[i]
        finite = all(np.isfinite(value.wide).all() for value in self.values.values())
        spreads = impl.spreads_nan and not finite
        off = difference(spec, result, *given, exact=impl.exact, spreads=spreads)
        if off is not None:
            raise CheckFailedError(*off)

    def outputs(self, fill: int) -> list[Placed]:
        """Fresh outputs full of one byte, guarded."""
        made = [
            Placed(self.subject.device, dtype, shape, CONTIGUOUS, fill)
            for shape, dtype in self.metas
        ]
        for out in made:
            out.write()
        return made

    @property
    def target(self) -> Placed | None:
        """The argument that the op mutates, if there is one."""
        return next(iter(self.placed.values())) if self.unit.spec.mutates else None

    def written(self, outs: list[Placed]) -> list[Placed]:
        """What a call into ``outs`` writes, in the order of the truth's."""
        return outs if self.target is None else [*outs, self.target]

    def reset(self) -> None:
        """Give the target, if there is one, its first values again."""
        if self.target is not None:
            self.target.write(next(iter(self.values.values())))

    def call(self, outs: list[Placed], instead: Mapping[str, Tensor] | None = None) -> None:
        """
        Run the op into ``outs``, some tensors replaced, and wait for it.

        Raises:
            CheckFailedError: it raises.
            DeclinedError: it was not this implementation that ran.
        """
        self.begin(outs, instead)
        try:
            self.subject.device.synchronize()
        except Exception as exc:
            raise CheckFailedError("runs", f"synchronize raised {_said(exc)}") from exc

    def begin(self, outs: list[Placed], instead: Mapping[str, Tensor] | None = None) -> None:
        """Run the op; do not wait."""
        args, kwargs = self.arguments(instead)
        spec: Any = self.unit.spec
        targets = [out.tensor for out in outs]
        try:
            self._expect_taken(args, kwargs)
            with np.errstate(all="ignore"):  # what NumPy would warn of is judged by the result
                if spec.outputs == 0:
                    spec(*args, **kwargs)
                else:
                    spec.into(targets[0] if spec.outputs == 1 else tuple(targets), *args, **kwargs)
        except DeclinedError:
            raise
        except DispatchError as exc:
            raise DeclinedError(str(exc)) from exc
        except Exception as exc:
            raise CheckFailedError("runs", f"it raised {_said(exc)}") from exc
        raised, self.subject.raised.reason_given = self.subject.raised.reason_given, None
        if raised is not None:
            self.log.tallies.clear()
            raise CheckFailedError(
                "runs", raised if raised.startswith("prepare") else f"it {raised}"
            )
        fell = next((why for op, why in self.log.tallies if op == spec.name), None)
        if fell is not None:
            self.log.tallies.clear()
            raise DeclinedError(fell)

    def _expect_taken(self, args: list[Any], kwargs: dict[str, Any]) -> None:
        """Where ``supports`` declines the op's decomposition may take the call: no case either."""
        supports = self.unit.impl.supports
        reason = supports(*args, **kwargs) if supports is not None else None
        if isinstance(reason, str):
            raise DeclinedError(reason)


def check_call(bench: Bench, case: Case) -> str:
    """
    Judge one case: values, and all that must hold of memory.

    Returns:
        Who computed the truth.

    Raises:
        CheckFailedError: something does not hold.
        DeclinedError: the implementation takes no such call.
    """
    expected = bench.expected(case.recipe)
    _check_workspace(bench)
    _check_results(bench, case, expected)
    if bench.unit.impl.prepare is not None:
        _check_prepared(bench, case, expected)
    if (
        bench.unit.impl.in_place
        and bench.target is None
        and case.layout == "contiguous"
        and not case.strides
    ):
        _check_in_place(bench, expected)
    return expected.source


def _check_workspace(bench: Bench) -> None:
    """
    What the implementation allocates through the device, at once, beside its outputs.

    Temporaries that it has on the host (numpy's) are not seen: Python's own allocations
    cannot be told from them.
    """
    outs = bench.outputs(POISONS[0])
    meter = bench.subject.meter
    with meter.measuring():
        bench.call(outs)
    bench.reset()
    declared: Any = bench.unit.impl.workspace
    if callable(declared):
        args, kwargs = bench.arguments()
        bound = declared(*args, **kwargs)
        if not isinstance(bound, int) or bound < 0:
            text = f"workspace() returned {bound!r}; it must be a number of bytes"
            raise CheckFailedError("contract", text)
    else:
        bound = declared or 0
    if meter.peak > bound:
        text = f"it allocates {meter.peak} bytes on {bench.subject.device.id}; it declares {bound}"
        raise CheckFailedError("workspace", text)


def _check_results(bench: Bench, case: Case, expected: Truth) -> None:
    runs: list[list[Array]] = []
    target, value = bench.target, next(iter(bench.values.values()))
    for poison in POISONS:
        outs = bench.outputs(poison)
        if target is not None:
            start = value
            if case.recipe.overwrites:
                raw = np.full(value.array.nbytes, poison, np.uint8).view(value.array.dtype)
                start = type(value)(raw.reshape(value.array.shape), value.dtype, value.shape)
            target.write(start)
        bench.call(outs)
        runs.append([_result(each) for each in bench.written(outs)])
        _check_inputs(bench)
    for i, each in enumerate(bench.written(outs)):
        dtype, shape = each.tensor.dtype, each.tensor.shape
        what = "the target" if each is target else f"an output {dtype} {shape}"
        first, second = _bits(runs[0][i]), _bits(runs[1][i])
        differs = first != second
        unwritten = differs & (first == POISONS[0]) & (second == POISONS[1])
        if unwritten.any():
            text = f"{np.count_nonzero(unwritten)} bytes of {what} keep what was there before"
            raise CheckFailedError("written", text)
        bench.differs(expected, i, runs[0][i], dtype)
        if bench.unit.impl.deterministic and differs.any():
            text = f"{np.count_nonzero(differs)} bytes of {what} differ between two runs; it is "
            raise CheckFailedError("determinism", f"{text}declared deterministic")
        if not bench.unit.impl.deterministic:
            bench.differs(expected, i, runs[1][i], dtype)


def _check_in_place(bench: Bench, expected: Truth) -> None:
    for name, placed in bench.placed.items():
        if [(placed.tensor.shape, placed.tensor.dtype)] != bench.metas:
            continue
        bench.call([placed])
        result, intact = placed.read()
        placed.write(bench.values[name])
        try:
            bench.differs(expected, 0, result, bench.metas[0][1])
        except CheckFailedError as failure:
            raise CheckFailedError("in_place", f"over {name}: {failure.message}") from None
        if not intact:
            raise CheckFailedError("in_place", f"over {name}: wrote beside the tensor")


def _check_prepared(bench: Bench, case: Case, expected: Truth) -> None:
    for name in bench.placed.keys() & WEIGHTS:
        value, device = bench.values[name], bench.subject.device
        pattern = case.pattern(name, len(value.shape), target=False)
        plain = place(device, value, pattern)  # one of its own: preparing may let its memory go
        key = bench.unit.spec.key(*bench.unit.key)
        try:
            ready = DispatchTable.of(device).prepare(bench.unit.spec, key, plain.tensor)
            outs = bench.outputs(POISONS[0])
            bench.reset()
            bench.call(outs, {name: ready})
            for i, out in enumerate(bench.written(outs)):
                bench.differs(expected, i, _result(out), out.tensor.dtype)
        except (CheckFailedError, MemoryError, PropolisError) as exc:
            said = exc.message if isinstance(exc, CheckFailedError) else _said(exc)
            raise CheckFailedError("prepared", f"with {name} prepared: {said}") from exc


def _check_inputs(bench: Bench) -> None:
    for name, placed in bench.placed.items():
        if placed is bench.target:
            continue
        if not placed.intact:
            raise CheckFailedError("contract", f"{name} is now {placed.tensor!r}")
        if not placed.unchanged:
            raise CheckFailedError("inputs", f"{name} was written")


def _result(out: Placed) -> Array:
    if not out.intact:
        raise CheckFailedError("contract", f"the output handed over is now {out.tensor!r}")
    elements, untouched = out.read()
    if not untouched:
        raise CheckFailedError("beside", "bytes outside the output's elements were written")
    return elements


def _bits(array: Array) -> Array:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def _alike(a: Value, b: Value) -> bool:
    return a.shape == b.shape and a.dtype is b.dtype


def _said(exc: BaseException) -> str:
    return f"{type(exc).__name__}: {exc}"


__all__ = ["Bench", "CheckFailedError", "DeclinedError", "NotValidError", "check_call"]
