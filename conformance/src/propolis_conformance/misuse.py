"""What a wrong call must do: raise the op's own error, and leave the device as it was."""

from __future__ import annotations

from typing import TYPE_CHECKING
from typing import Any

import numpy as np

from propolis import dtypes
from propolis.cpu import CpuDevice
from propolis.errors import DeviceError
from propolis.errors import OpError
from propolis_conformance.arena import CONTIGUOUS
from propolis_conformance.arena import Placed
from propolis_conformance.arena import place
from propolis_conformance.checks import CheckFailedError
from propolis_conformance.checks import check_call
from propolis_conformance.inputs import Value
from propolis_conformance.inputs import size_of
from propolis_conformance.testing import FakeDevice


if TYPE_CHECKING:
    from collections.abc import Iterator

    from propolis.dtypes import DType
    from propolis.layout import Shape
    from propolis.tensor import Device
    from propolis_conformance.cases import Case
    from propolis_conformance.checks import Bench


def check_errors(bench: Bench, case: Case) -> None:
    """
    Shapes, dtypes, devices and destinations that do not fit never reach the implementation.

    Indices out of range do, as they are data: on the CPU they are an error, elsewhere at
    least nothing beside the output is written.  Afterwards the same device computes right.
    """
    for name, wrong, what in _wrong_tensors(bench):
        _must_refuse(bench, {name: place(bench.subject.device, wrong)}, what)
    for name in list(bench.placed)[1:]:
        elsewhere = place(_another(bench.subject.device), bench.values[name])
        _must_refuse(bench, {name: elsewhere}, f"{name} on {elsewhere.tensor.device.id}")
    _check_outputs(bench)
    for name, wrong in _out_of_range(bench, case):
        _check_index(bench, name, wrong)
    try:
        check_call(bench, case)
    except CheckFailedError as failure:
        text = f"after wrong calls the right one fails: {failure.check}: {failure.message}"
        raise CheckFailedError("errors", text) from failure


def _another(device: Device) -> Device:
    return FakeDevice("elsewhere") if device.kind == "cpu" else CpuDevice()


def _wrong_tensors(bench: Bench) -> Iterator[tuple[str, Value, str]]:
    """Each tensor with another dtype, and with other shapes."""
    for name, value in bench.values.items():
        for foreign in (dtypes.u8, dtypes.f16, dtypes.f64, dtypes.i64):
            if foreign is not value.dtype and not value.dtype.is_block:
                yield name, _zeros(value.shape, foreign), f"{name} of {foreign}"
        shape, block = value.shape, value.dtype.block_size
        others: list[Shape] = [(3, *shape), *([shape[:-1]] if len(shape) > 1 else [])]
        others += [
            (*shape[:d], shape[d] + (block if d == len(shape) - 1 else 1), *shape[d + 1 :])
            for d in range(len(shape))
        ]
        for other in others:
            if block == 1 or other[-1] % block == 0:
                yield name, _zeros(other, value.dtype), f"{name} of shape {other}"


def _zeros(shape: Shape, dtype: DType) -> Value:
    stored = (*shape[:-1], dtype.nbytes(shape[-1])) if dtype.is_block else shape
    return Value(np.zeros(stored, dtype.numpy), dtype, shape)


def _must_refuse(bench: Bench, wrong: dict[str, Placed], what: str) -> None:
    """The spec decides what is wrong; what it refuses must be refused before anything runs."""
    spec: Any = bench.unit.spec
    args, kwargs = bench.arguments({name: p.tensor for name, p in wrong.items()})
    try:
        spec.infer(*args, **kwargs)
        spec.key(*(args[i].dtype for i in spec._key_index))  # noqa: SLF001  (one project)
        if all(p.tensor.device is bench.subject.device for p in wrong.values()):
            return  # broadcast, or a dtype that the op takes: no misuse
    except OpError:
        pass
    calls = bench.subject.meter.calls
    try:
        spec(*args, **kwargs)
        bench.subject.device.synchronize()
    except OpError as exc:
        if bench.subject.meter.calls != calls:
            text = f"{what} reached the implementation, which raised {exc}"
            raise CheckFailedError("errors", text) from exc
    except Exception as exc:
        text = f"{what} raised {type(exc).__name__}: {exc}; it must be an OpError"
        raise CheckFailedError("errors", text) from exc
    else:
        raise CheckFailedError("errors", f"{what} was accepted; it must raise an OpError")


def _check_outputs(bench: Bench) -> None:
    """A destination of another shape or dtype, or a strided one, is refused."""
    if not bench.metas:
        return
    spec: Any = bench.unit.spec
    shape, dtype = bench.metas[0]
    other = dtypes.f64 if dtype is dtypes.f32 else dtypes.f32
    device = bench.subject.device
    wrong = [Placed(device, dtype, (3, *shape), CONTIGUOUS, 0)]
    if not dtype.is_block:
        wrong.append(Placed(device, other, shape, CONTIGUOUS, 0))
    right = bench.outputs(0)
    args, kwargs = bench.arguments()
    calls = bench.subject.meter.calls
    for out in wrong:
        outs = [out.tensor, *(o.tensor for o in right[1:])]
        try:
            spec.into(outs[0] if spec.outputs == 1 else tuple(outs), *args, **kwargs)
        except OpError:
            if bench.subject.meter.calls == calls:
                continue
        text = f"an out {out.tensor!r} was accepted for a result {dtype} of shape {shape}"
        raise CheckFailedError("errors", text)


def _out_of_range(bench: Bench, case: Case) -> Iterator[tuple[str, Value]]:
    """Indices one beyond the end, far beyond it, and below 0."""
    for name, tensor in case.recipe.tensors.items():
        domain, _, bound = tensor.domain.partition(":")
        if domain not in ("index", "distinct", "masked", "length") or name not in bench.values:
            continue
        value = bench.values[name]
        info = np.iinfo(value.dtype.numpy)
        first = size_of(bound, case.sizes) + (domain == "length")
        # The largest number of its dtype may mean "masked".  A mask of 0 and 1 has no range.
        beyond = [first, info.max - 1] if first < info.max - 1 else []
        for wrong in (*beyond, -1) if info.min else beyond:
            if value.array.size and not bound.isdigit() and _is_read(bench, name):
                array = value.array.copy()
                array.reshape(-1)[-1] = wrong
                yield name, Value(array, value.dtype, value.shape)


def _is_read(bench: Bench, name: str) -> bool:
    """Pages beyond a sequence's length are never looked at."""
    return name != "block_table" or bool(
        bench.values["kv_len"].array[-1] > (bench.values[name].shape[1] - 1) * _page(bench)
    )


def _page(bench: Bench) -> int:
    return bench.values["k"].shape[1]


def _check_index(bench: Bench, name: str, wrong: Value) -> None:
    device, spec = bench.subject.device, bench.unit.spec
    replaced = place(device, wrong)
    args, kwargs = bench.arguments({name: replaced.tensor})
    outs = bench.outputs(0)
    what = f"{name} {wrong.array.reshape(-1)[-1]} out of range"
    run: Any = spec
    try:
        if not outs:
            run(*args, **kwargs)
        else:
            tensors = tuple(o.tensor for o in outs)
            run.into(tensors[0] if len(tensors) == 1 else tensors, *args, **kwargs)
        device.synchronize()
    except OpError:
        raised = True
    except DeviceError as exc:  # what a GPU in debug mode may say, at synchronize
        raised = True
        if device.kind == "cpu":
            text = f"{what} raised {type(exc).__name__}: {exc}; it must be an OpError"
            raise CheckFailedError("errors", text) from exc
    except Exception as exc:
        text = f"{what} raised {type(exc).__name__}: {exc}; it must be an OpError"
        raise CheckFailedError("errors", text) from exc
    else:
        raised = False
    for placed in bench.written(outs):
        if not placed.read()[1]:
            raise CheckFailedError("errors", f"{what} writes beside the output")
    bench.reset()
    if device.kind == "cpu" and not raised:
        raise CheckFailedError("errors", f"{what} was accepted; it must raise an OpError")
