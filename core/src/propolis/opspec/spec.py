"""
What an op means, apart from how anyone does it.

An op is declared by its inference function: the signature is the op's, the
docstring its semantics, and the body validates the arguments and returns the
output's shape and dtype.  ``@op`` turns it into an :class:`OpSpec`, which is what
callers see: ``ops.add(a, b)`` infers, allocates the output, and runs whatever the
device's dispatch table bound for these dtypes.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING
from typing import Any
from typing import Final
from typing import Generic
from typing import NamedTuple
from typing import ParamSpec
from typing import TypeVar
from typing import Unpack

from propolis import dtypes
from propolis.dtypes import DType
from propolis.errors import DTypeError
from propolis.errors import OpError
from propolis.layout import Shape
from propolis.opspec.check import check_rest
from propolis.opspec.check import check_tensors
from propolis.opspec.check import expect_apart
from propolis.opspec.check import expect_writable
from propolis.opspec.check import in_place
from propolis.opspec.check import is_clear
from propolis.opspec.check import may_share
from propolis.opspec.check import mixed_devices
from propolis.opspec.check import overlapping
from propolis.opspec.check import plain_attributes
from propolis.opspec.docstrings import completed
from propolis.opspec.infer import converts
from propolis.opspec.tolerance import DEFAULT_TOLERANCE
from propolis.opspec.tolerance import EXACT
from propolis.opspec.tolerance import Judged
from propolis.opspec.tolerance import allowed_error
from propolis.tensor import Tensor


if TYPE_CHECKING:
    from collections.abc import Callable
    from collections.abc import Collection
    from collections.abc import Mapping

    import numpy as np

    from propolis.tensor import Device

P = ParamSpec("P")
F = TypeVar("F", bound="Callable[..., Any]")

Key = DType | tuple[DType, ...]
"""What an implementation is chosen by: the dtypes of the dispatch parameters."""

Meta = tuple[Shape, DType]
"""Shape and dtype of an output."""


class Decomposition(NamedTuple):
    """
    How an op is done with other ops.

    Attributes:
        fn: ``fn(out, *args)``, as an implementation's; it calls ops, the last one into ``out``.
        parts: given the dtypes of the dispatch parameters, every op that ``fn`` may
            call, with the dtypes that this op dispatches on.
    """

    fn: Callable[..., None]
    parts: Callable[..., Mapping[OpSpec, tuple[DType, ...]]]


class OpSpec:
    """
    One op: name, signature, inference, allowed dtypes, tolerance.

    Attributes:
        name: what users and plugins call it.
        family: the module of the catalogue it stands in.
        infer: validates arguments; gives shape and dtype of the output.
        dtypes: the allowed dtypes of each dispatch parameter, in signature order.
        elementwise: whether each element of the output comes from the same one of each
            input of its shape alone: then ``into`` may write over one of them.
        outputs: how many tensors it gives beside what it mutates.
        mutates: whether the first argument is a destination; where it is the only one, the op
            allocates nothing and returns that argument.
        tolerance: per output dtype; exact where a dtype is missing.
        magnitude: how large the terms of a result were, for ops whose terms may cancel;
            None for others (see :data:`Magnitude`).
        rounded: the same where an implementation rounds its inputs further, if it is other.
        loss: per output dtype, how much of that a result may lose; where a dtype is missing,
            64 half units of the dtype that terms are summed in.
        signature: the op's parameters, which implementations repeat.
        taken: names of an implementation's parameters, destinations first, and how many of
            the first ones are tensors in every call.
        decomposition: how it is done with other ops; None where it is not.
    """

    decomposition: Decomposition | None = None

    def __init__(
        self,
        infer: Callable[..., Any],
        *,
        allowed: Mapping[str, Collection[DType]],
        outputs: int,
        mutates: bool = False,
        elementwise: bool = False,
        shared: Mapping[str, str] | None = None,
        **judged: Unpack[Judged],
    ) -> None:
        self.name: Final = infer.__name__
        self.family: Final = infer.__module__.rpartition(".")[2]
        self.infer: Final = infer
        self.dtypes: Final = {name: frozenset(kinds) for name, kinds in allowed.items()}
        self.elementwise: Final = elementwise
        self.outputs: Final = outputs
        self.mutates: Final = mutates
        self.tolerance: Final = judged.get("tolerance", DEFAULT_TOLERANCE)
        self.magnitude: Final = judged.get("magnitude")
        self.rounded: Final = judged.get("rounded", self.magnitude)
        self.loss: Final = judged.get("loss", {})
        returned = "tuple[Tensor, Tensor]" if outputs == 2 else "Tensor"
        self.signature: Final = inspect.signature(infer).replace(return_annotation=returned)
        self.__signature__ = self.signature  # which inspect asks for, and so do editors
        names = list(self.signature.parameters)
        self.__doc__ = completed(inspect.getdoc(infer) or "", names, shared or {})
        self._tensors = tuple(
            name
            for name, parameter in self.signature.parameters.items()
            if parameter.kind is parameter.POSITIONAL_ONLY and parameter.annotation == "Tensor"
        )
        self.rest: Final = names[len(self._tensors) :]
        self.plain: Final = plain_attributes(self.signature)
        outs = ("out",) if outputs == 1 else tuple(f"out{i}" for i in range(outputs))
        self.taken: Final = ((*outs, *names), outputs + len(self._tensors))
        self._key_index = tuple(names.index(name) for name in self.dtypes)

    @property
    def summary(self) -> str:
        """The first line of the docstring."""
        return (self.__doc__ or "").strip().partition("\n")[0]

    def allowed(
        self,
        dtype: DType,
        truth: np.ndarray,
        magnitude: np.ndarray | None = None,
        *,
        exact: bool = True,
    ) -> np.ndarray:
        """
        How far each element of a result may be from the truth.

        Args:
            dtype: the result's.
            truth: in f64.
            magnitude: what ``self.magnitude``, or ``self.rounded``, gave for it.
            exact: whether the implementation computes with its inputs as they are.
        """
        tolerance = self.tolerance.get(dtype, EXACT)
        loss = self.loss.get(dtype)
        return allowed_error(tolerance, dtype, truth, magnitude, exact=exact, loss=loss)

    def decomposes(
        self, parts: Callable[..., Mapping[OpSpec, tuple[DType, ...]]]
    ) -> Callable[[Callable[..., None]], Callable[..., None]]:
        """
        Declare how the op is done with other ops, for devices where nobody implements it.

        It must give what the op's docstring promises, within the op's tolerance but for what
        parts lose whose results are below the dtype's normal range, and read no elements on
        the host.  It is used where every part is served on the device.

        Args:
            parts: see :class:`Decomposition`.

        Examples:
            Where a catalogue has ``silu``::

                @silu_mul.decomposes(lambda gate: {silu: (gate,), mul: (gate,)})
                def _silu_mul(out, gate, up, /):
                    mul.into(out, silu(gate), up)
        """

        def declare(fn: Callable[..., None]) -> Callable[..., None]:
            self.decomposition = Decomposition(fn, parts)
            return fn

        return declare

    def key(self, *kinds: DType) -> Key:
        """
        The dispatch key for these dtypes of the dispatch parameters.

        One dtype stands for all of them where there are several.

        Raises:
            DTypeError: the op does not allow them; the message lists what it does.
        """
        if len(kinds) == 1:
            kinds = kinds * len(self.dtypes)
        if len(kinds) != len(self.dtypes):
            msg = f"{self.name}: dispatches on {', '.join(self.dtypes)}, got dtypes {kinds}"
            raise DTypeError(msg)
        for (name, allowed), kind in zip(self.dtypes.items(), kinds, strict=True):
            if kind not in allowed:
                known = ", ".join(d.name for d in dtypes.ALL if d in allowed)
                how = converts(kind, min(allowed, key=lambda dtype: dtype.is_block))
                msg = f"{self.name}: {name} is {kind}; supported: {known}; {how}"
                raise DTypeError(msg)
        return kinds[0] if len(kinds) == 1 else kinds

    def key_of(self, args: tuple[Any, ...]) -> Key:
        """
        The dispatch key of a call.

        Raises:
            DTypeError: the op does not allow it.
        """
        return self.key(*(args[i].dtype for i in self._key_index))

    def _infer(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        try:
            meta = self.infer(*args, **kwargs)
            first = args[0]
            if not isinstance(first, Tensor):  # numpy's arrays have shape and device too
                check_tensors(self, args, kwargs)
            device = first.device
            required = len(self._tensors)
            for tensor in args[1:required]:
                if tensor.device is not device:
                    raise mixed_devices(self, args, kwargs)
            if kwargs or len(args) > required:
                check_rest(self, args, required, kwargs)
        except (AttributeError, TypeError, IndexError, OpError) as exc:
            check_tensors(self, args, kwargs)
            if isinstance(exc, TypeError | IndexError):
                if args:  # an attribute of a wrong type may be why
                    check_rest(self, args, len(self._tensors), kwargs)
                msg = f"{self.name}{self.signature}: {str(exc).rpartition('() ')[2]}"
                raise OpError(msg) from exc
            raise
        return meta

    def _bound(self, device: Device, args: tuple[Any, ...]) -> Callable[..., None]:
        index = self._key_index
        if len(index) == 1:
            chosen = args[index[0]]
            key: Key = chosen.dtype
        else:
            key = tuple(args[i].dtype for i in index)
        try:
            return device.table.bound[self.name][key]
        except KeyError:
            return device.table.bind(self, key)

    def _run(self, run: Callable[..., None], outs: Any, args: Any, kwargs: dict[str, Any]) -> None:
        """Run; what is read of memory that the first argument shares and is written, as it was."""
        if self.mutates and expect_writable(self, args[0]) and may_share(args, kwargs):
            args, kwargs = in_place(self, args[0], args, kwargs)
        run(*outs, *args, **kwargs)

    def __repr__(self) -> str:
        return f"<op {self.name}{self.signature}>"


class Op(OpSpec, Generic[P]):
    """An op with one output, or with its first argument as destination."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Tensor:
        """Allocate the output, run the op, and return it."""
        meta = self._infer(args, kwargs)
        first: Any = args[0]
        device = first.device
        if meta is None:
            self._run(self._bound(device, args), (), args, kwargs)
            return first  # type: ignore[no-any-return]
        run = self._bound(device, args)  # refuses dtypes before anything is allocated
        out: Tensor = device.empty(*meta)
        run(out, *args, **kwargs)
        return out

    def into(self, out: Tensor, /, *args: P.args, **kwargs: P.kwargs) -> Tensor:
        """
        Run the op into ``out`` and return it: allocates nothing.

        Raises:
            OpError: ``out`` has another shape, dtype or device than the result, is
                strided, shares memory with an input (save that it may be one, exactly,
                where the op is ``elementwise``), or the op has a destination of its own.
        """
        meta = self._infer(args, kwargs)
        if meta is None:
            msg = f"{self.name}: writes into its first argument and takes no out"
            raise OpError(msg)
        if is_clear(self, out, meta, args, kwargs):
            self._bound(out.device, args)(out, *args, **kwargs)
        else:
            read, named = in_place(self, out, args, kwargs)
            self._bound(out.device, args)(out, *read, **named)
        return out


class PairOp(OpSpec, Generic[P]):
    """An op with two outputs, beside its first argument where it mutates that."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> tuple[Tensor, Tensor]:
        """Allocate the outputs, run the op, and return them."""
        metas = self._infer(args, kwargs)
        first: Any = args[0]
        device = first.device
        run = self._bound(device, args)
        outs: tuple[Tensor, Tensor] = (device.empty(*metas[0]), device.empty(*metas[1]))
        self._run(run, outs, args, kwargs)
        return outs

    def into(
        self, outs: tuple[Tensor, Tensor], /, *args: P.args, **kwargs: P.kwargs
    ) -> tuple[Tensor, Tensor]:
        """
        Run the op into ``outs`` and return them: allocates nothing.

        Raises:
            OpError: there are not two outputs, or one has another shape, dtype or device
                than the result, is strided, or shares memory with another or an input.
        """
        metas = self._infer(args, kwargs)
        if len(outs) != len(metas):
            msg = f"{self.name}: gives {len(metas)} tensors, got places for {len(outs)}"
            raise OpError(msg)
        for out, meta in zip(outs, metas, strict=True):
            if not is_clear(self, out, meta, args, kwargs):
                overlapping(self, out, args, kwargs, own=False)
        expect_apart(self, *outs)
        self._run(self._bound(outs[0].device, args), outs, args, kwargs)
        return outs


_registry: dict[str, OpSpec] = {}


def op(
    allowed: Mapping[str, Collection[DType]],
    *,
    mutates: bool = False,
    elementwise: bool = False,
    shared: Mapping[str, str] | None = None,
    **judged: Unpack[Judged],
) -> Callable[[Callable[P, Meta | None]], Op[P]]:
    """
    Declare an op by its inference function.

    Args:
        allowed: for each parameter whose dtype selects the implementation, the
            dtypes it may have.
        mutates: the first parameter is the destination.
        elementwise: see :class:`OpSpec`.
        shared: what the docstring's ``Args`` says of parameters that it leaves out: the
            text of all ops of a family.
        judged: how far results may be from the truth: see :class:`OpSpec`.
    """

    def declare(infer: Callable[P, Meta | None]) -> Op[P]:
        spec: Op[P] = Op(
            infer,
            allowed=allowed,
            outputs=0 if mutates else 1,
            mutates=mutates,
            elementwise=elementwise,
            shared=shared,
            **judged,
        )
        _registry[spec.name] = spec
        return spec

    return declare


def pair_op(
    allowed: Mapping[str, Collection[DType]],
    *,
    mutates: bool = False,
    shared: Mapping[str, str] | None = None,
    **judged: Unpack[Judged],
) -> Callable[[Callable[P, tuple[Meta, Meta]]], PairOp[P]]:
    """Declare an op with two outputs, beside a first parameter that it mutates; as :func:`op`."""

    def declare(infer: Callable[P, tuple[Meta, Meta]]) -> PairOp[P]:
        spec: PairOp[P] = PairOp(
            infer, allowed=allowed, outputs=2, mutates=mutates, shared=shared, **judged
        )
        _registry[spec.name] = spec
        return spec

    return declare


def catalogue() -> Mapping[str, OpSpec]:
    """All ops, by name."""
    return _registry


_functions: dict[str, Callable[..., Any]] = {}


def beside_ops(function: F) -> F:
    """Let a function that calls ops stand beside them in :mod:`propolis.ops`."""
    _functions[function.__name__] = function
    return function


def functions() -> Mapping[str, Callable[..., Any]]:
    """The functions that stand beside ops, by name."""
    return _functions


__all__ = [
    "DEFAULT_TOLERANCE",
    "EXACT",
    "Key",
    "Meta",
    "Op",
    "OpSpec",
    "PairOp",
    "beside_ops",
    "catalogue",
    "functions",
    "op",
    "pair_op",
]
