"""What the plugin offers a device: each op twice, before the kernels and behind them."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING
from typing import Final
from typing import NamedTuple
from typing import cast

from propolis import OpImpl
from propolis import Priority
from propolis_rocm_blas.libraries import HIPBLASLT
from propolis_rocm_blas.multiplier import DTYPES
from propolis_rocm_blas.multiplier import EXTRA_BYTES
from propolis_rocm_blas.multiplier import workspace_for
from propolis_rocm_blas.probe import choose


if TYPE_CHECKING:
    from collections.abc import Callable
    from collections.abc import Collection
    from collections.abc import Iterable
    from collections.abc import Iterator
    from collections.abc import Mapping

    from propolis import Device
    from propolis import DType
    from propolis import Tensor
    from propolis_rocm_blas.multiplier import Multiplier
    from propolis_rocm_blas.multiplier import Product
    from propolis_rocm_blas.probe import Choice
    from propolis_rocm_hip.device import RocmDevice

FLUSHES: Final = frozenset({"gfx90a"})
"""Whose matrix instructions take denormal f16 and bf16 for 0."""


class Family(NamedTuple):
    """
    An op as it is offered.

    Attributes:
        op: its name.
        fn: does it.
        takes: ``takes(few, *inputs)``: None, or why not; ``few`` where any number of rows will do.
        products: ``products(*inputs)``: what it asks the library for, where it takes them.
        kinds: the dtypes that it multiplies.
        weights: the dtypes of its parameter ``w``, where its dispatch asks for them.
        rounds: whether it rounds weights to the dtype of 16-bit activations.
        memory: bytes it works in beside the library's workspace, of the op's arguments.
        notes: what it does, in a few words.
    """

    op: str
    fn: Callable[..., None]
    takes: Callable[..., str | None]
    products: Callable[..., Iterable[Product]]
    kinds: Collection[DType] = DTYPES
    weights: Collection[DType] = ()
    rounds: bool = False
    memory: Callable[..., int] | None = None
    notes: str = ""


def multiplier(out: Tensor) -> Multiplier:
    """The handle of the library that multiplies on a tensor's device."""
    return cast("RocmDevice", out.device).keep(_chosen)


def _chosen(device: RocmDevice) -> Multiplier:
    return device.keep(choose(device).library.make)


def offers(device: Device, families: Collection[Family]) -> Iterator[OpImpl]:
    """
    Each op before the kernels, and, for few rows, behind them, for those who have none installed.

    Args:
        device: an AMD GPU, or one that is described.
        families: the ops.
    """
    arch = device.properties.arch
    choice = choose(device)
    for family in families:
        kinds = [d for d in family.kinds if d in choice.library.kinds]
        narrow = [d for d in kinds if d.block_bytes == 2]
        wide = [d for d in kinds if d not in narrow]
        apart = family.rounds or arch in FLUSHES
        groups = ((wide, False), (narrow, True)) if apart else (((*wide, *narrow), False),)
        for few in (False,) if choice.why_not else (False, True):
            for chosen, inexact in groups:
                yield _offer(family, chosen, choice, arch, few=few, inexact=inexact)


def _offer(
    family: Family,
    kinds: Collection[DType],
    choice: Choice,
    arch: str,
    *,
    few: bool,
    inexact: bool,
) -> OpImpl:
    library = choice.library
    dtypes: Collection[DType] | Mapping[str, Collection[DType]] = kinds
    if family.weights:
        dtypes = {"x": kinds, "w": family.weights}
    lt = library is HIPBLASLT
    by = f"by {library.name}, sums in f32 or wider"
    instead = choice.instead and f"as {choice.instead}"
    notes = "; ".join(filter(None, (by, family.notes, instead)))
    if inexact and family.rounds:
        notes += " and rounded to 16 bits"
    if inexact and arch in FLUSHES:
        notes += f"; {arch}'s matrix instructions take denormal numbers for 0"
    own = workspace_for(arch) + EXTRA_BYTES
    return OpImpl(
        op=family.op,
        fn=family.fn,
        device="rocm",
        dtypes=dtypes,
        unusable=choice.why_not,
        priority=Priority.GENERIC - 1 if few else Priority.VENDOR,
        variant="-".join([*few * ["few-rows"], *inexact * ["16-bit"], *lt * ["hipblaslt"]]),
        supports=partial(_served, family, few) if lt else partial(family.takes, few),
        capture_safe=True,
        deterministic=library.repeats,
        exact=not inexact,
        workspace=partial(_beside, own, family.memory) if family.memory else own,
        notes=notes,
    )


def _served(family: Family, few: bool, *inputs: Tensor, **attributes: Tensor) -> str | None:
    """The same where the library may lack a product that others of its dtype are served of."""
    refusal = family.takes(few, *inputs, **attributes)
    if refusal is not None:
        return refusal
    by = multiplier(inputs[0])
    lacking = (by.lacks(product) for product in family.products(*inputs, **attributes))
    return next(filter(None, lacking), None)


def _beside(own: int, memory: Callable[..., int], *inputs: Tensor) -> int:
    return own + memory(*inputs)


__all__ = ["FLUSHES", "Family", "multiplier", "offers"]
