"""One call of an op, as those see it who look at calls, and what such a handler may do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING
from typing import Any

from propolis.released import storage_of
from propolis.tensor import Tensor


if TYPE_CHECKING:
    from collections.abc import Callable
    from collections.abc import Iterator

    from propolis.opspec.spec import Key
    from propolis.opspec.spec import OpSpec
    from propolis.records import OpImpl


@dataclass(slots=True)  # freezing would take most of what making one takes
class Call:
    """
    A call, made where somebody has to look at it: a bound call never becomes one.

    Attributes:
        spec: the op.
        key: its dispatch key.
        outputs: the destinations that were allocated for it; of an op that mutates, its first
            input is one too.
        inputs: the positional arguments after them.
        attributes: the keyword arguments.
    """

    spec: OpSpec
    key: Key
    outputs: tuple[Tensor, ...]
    inputs: tuple[Any, ...]
    attributes: dict[str, Any]

    @classmethod
    def of(cls, spec: OpSpec, key: Key, args: tuple[Any, ...], attributes: dict[str, Any]) -> Call:
        """The call with these arguments, destinations first, as implementations receive them."""
        return cls(spec, key, args[: spec.outputs], args[spec.outputs :], attributes)

    @property
    def args(self) -> tuple[Any, ...]:
        """The positional arguments as implementations receive them."""
        return (*self.outputs, *self.inputs)

    @property
    def written(self) -> tuple[Tensor, ...]:
        """The destinations, whoever allocated them."""
        return (*self.outputs, *self.inputs[: self.spec.mutates])

    @property
    def read(self) -> Iterator[Tensor]:
        """The tensors among the arguments that are no outputs."""
        values = (*self.inputs, *self.attributes.values())
        return (value for value in values if isinstance(value, Tensor))

    @property
    def can_repeat(self) -> bool:
        """Whether it leaves its inputs as they were, should it fail half way."""
        if self.spec.mutates:
            return False
        written = [out.storage for out in self.outputs]
        return not any(storage_of(v) is storage for v in self.read for storage in written)

    def run(self, fn: Callable[..., None]) -> None:
        """Let ``fn`` do it."""
        fn(*self.outputs, *self.inputs, **self.attributes)

    def refused_by(self, impl: OpImpl) -> Any:
        """What the implementation's ``supports`` says of it; None when it takes it."""
        return impl.supports(*self.inputs, **self.attributes) if impl.supports else None


class Handler:
    """
    What :meth:`propolis.dispatch.DispatchTable.intercept` takes: override what is to be seen.

    Who overrides :meth:`failed` alone costs calls nothing.
    """

    def run(self, call: Call, proceed: Callable[[], None]) -> None:
        """
        Run a call, once, and look before and after.

        Args:
            call: the call.
            proceed: runs it, as it would have been run without this handler.
        """
        del call
        proceed()

    def failed(self, call: Call, impl: OpImpl, error: BaseException, *, intact: bool) -> None:
        """
        Learn that an implementation raised; the call goes on, or its caller sees the error.

        Args:
            call: the call.
            impl: who raised.
            error: what.
            intact: whether the inputs are as they were before the call.
        """


__all__ = ["Call", "Handler"]
