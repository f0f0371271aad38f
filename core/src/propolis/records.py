"""The typed records that plugins hand to core through the hooks."""

from __future__ import annotations

from dataclasses import dataclass
from dataclasses import field
from typing import TYPE_CHECKING
from typing import Any
from typing import Final
from typing import Literal
from typing import Protocol
from typing import TypeAlias


if TYPE_CHECKING:
    from collections.abc import Callable
    from collections.abc import Collection
    from collections.abc import Iterable
    from collections.abc import Mapping
    from collections.abc import Sequence

    from propolis.dtypes import DType
    from propolis.storage import DeviceProperties
    from propolis.tensor import Device
    from propolis.tensor import Tensor


API_LEVEL: Final = 1
"""The level of the hook specifications in this version of core."""

OLDEST_API_LEVEL: Final = 1
"""The oldest level whose plugins this version of core still loads."""


ESSENTIAL: Final = {"cpu_ref": "propolis-cpu-ref"}
"""The plugin of the rung below all others, which must be there whatever is allowed or denied.

It is known by distribution too, so that no stranger can take its name.
"""


Recorder: TypeAlias = "Callable[[Sequence[Callable[[], None]]], Callable[[], None] | None]"
"""Makes one call of several; see :attr:`OpImpl.record`."""


class Priority:
    """The bands of :attr:`OpImpl.priority`; within a band, higher goes first."""

    REFERENCE: Final = 0
    GENERIC: Final = 100
    VENDOR: Final = 200
    TUNED: Final = 300


@dataclass(frozen=True, slots=True)
class PluginInfo:
    """
    Who a plugin is.

    Attributes:
        name: its entry-point name.
        api: the API level it is written for, or the (lowest, highest) it supports.
        description: one line for people.
    """

    name: str
    api: int | tuple[int, int]
    description: str = ""

    @property
    def api_range(self) -> tuple[int, int]:
        """The lowest and the highest API level it supports."""
        return (self.api, self.api) if isinstance(self.api, int) else self.api


@dataclass(frozen=True, slots=True)
class Provenance:
    """
    Where an implementation comes from; stamped by the host, never by the plugin.

    Attributes:
        plugin: the entry point's name.
        distribution: the name of what was installed.
        version: its version.
    """

    plugin: str
    distribution: str
    version: str

    def __str__(self) -> str:
        return f"{self.plugin} ({self.distribution} {self.version})"


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """
    Whether this machine can use a plugin.

    Attributes:
        ok: it can.
        reason: why not, and the remedy; empty when it can.
        files: native libraries the answer depends on: it is asked again when one
            of them changes.
        answered: it is the plugin's own answer; the host says False where the child
            process crashed or hung.
    """

    ok: bool
    reason: str = ""
    files: tuple[str, ...] = ()
    answered: bool = True


class DeviceProvider(Protocol):
    """
    What ``propolis_devices`` returns: how to find and open devices of one kind.

    A provider may also have ``describe()``: the :class:`DeviceProperties` of the hardware
    that its plugin is written for, present or not, one for each architecture.  The op
    matrix asks with them what plugins declare, on machines without any.

    Attributes:
        kind: the kind users type, ``"rocm"``; no other plugin's, and not ``"cpu"``.
    """

    kind: str

    def enumerate(self) -> Iterable[DeviceProperties]:
        """The devices of this kind in this machine; none is a valid answer."""

    def open(self, index: int) -> Device:
        """The device of that index, ready for use."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpImpl:
    """
    How a plugin does an op.

    Attributes:
        op: the op's name, as in :mod:`propolis.ops`.
        variant: which of them, where a plugin has several for one op, as a kernel for each
            head size: quarantine takes out one, and one dtype of it, alone.  No two of one
            device have op, dtypes and variant alike.
        fn: ``fn(out, *args)`` with the op's parameters by the same names and
            defaults; it writes every element of ``out`` and keeps no reference.
            An op that only mutates its first argument passes no ``out``; one that gives
            results beside it passes these, ``fn(out0, out1, *args)``.
        device: the device kind it runs on.
        dtypes: the dtypes it takes: one collection for all of the op's dispatch
            parameters, or one per parameter name.
        archs: the architectures it runs on; None for all.
        unusable: why the device that it is declared for cannot run it after all, and the remedy,
            where only trying told; empty where it can.
        priority: who goes first (see :class:`Priority`).
        supports: dynamic support, called with the op's arguments: None, or the
            reason why not.  It must be cheap and pure.
        prepare: makes of a weight, once at load, what ``fn`` then finds in
            ``Tensor.prepared`` under this very function: ``w.prepared.get(prepare)``.  ``fn``
            takes weights that nobody prepared too: those that another implementation led
            for when they were loaded.
        strided: whether inputs may be strided; if not, core copies those that are.
        capture_safe: it neither allocates nor synchronises; for the CPU, whose replays are calls,
            it may allocate its ``workspace``.
        deterministic: equal inputs give equal bits.
        exact: it computes with the inputs as they are.  One that rounds them further
            on the way (activations to 8 bits, f32 products in f16 or TF32) says False,
            and is not taken where the user sets ``numerics = "exact"``.
        spreads_nan: where an input has NaN or infinities, other elements of the result than those
            that they reach may be NaN: of algorithms that multiply padding, or sum and subtract
            what they are not asked for (Winograd, FFT).  What they reach is never finite.
        in_place: ``out`` may be the memory of any input that has its shape, dtype size and
            strides.  Only of ops that work element by element (``OpSpec.elementwise``);
            for an implementation that cannot, core copies that input first.
        record: makes one call of several of this implementation's and of others with the same
            ``record``, for replays of a captured step: given functions that make the calls, it
            calls each and keeps what they would do; None where it cannot.  For devices that
            have no graphs of their own, as the CPU.
        workspace: the most bytes of the device's memory that a call allocates beside its
            outputs, or a function of the op's arguments that gives them; None for none.
        notes: one line for ``propolis explain``.
        provenance: stamped by the host.
    """

    op: str
    fn: Callable[..., None]
    device: str = "cpu"
    dtypes: Collection[DType] | Mapping[str, Collection[DType]]
    archs: frozenset[str] | None = None
    unusable: str = ""
    priority: int = Priority.REFERENCE
    variant: str = ""
    supports: Callable[..., str | None] | None = None
    prepare: Callable[[Tensor], Prepared] | None = None
    strided: bool = True
    capture_safe: bool = False
    deterministic: bool = True
    exact: bool = True
    spreads_nan: bool = False
    in_place: bool = False
    record: Recorder | None = None
    workspace: int | Callable[..., int] | None = None
    notes: str = ""
    provenance: Provenance | None = None


@dataclass(frozen=True, slots=True)
class Prepared:
    """
    What :attr:`OpImpl.prepare` made of a weight.

    Attributes:
        payload: anything; the implementation finds it in ``Tensor.prepared``.
        nbytes: the memory it takes.
        what: one phrase for the placement summary, ``"dequantised to f32"``.
        restore: gives the weight again, contiguous and whole, from the payload or the
            file.  Where it is given, core lets go of the weight's own memory, and calls it
            when somebody else needs the elements: a lower rung, or ``numpy()``.
    """

    payload: Any
    nbytes: int
    what: str
    restore: Callable[[], Tensor] | None = None


CheckStatus = Literal["ok", "warning", "error", "skipped"]


@dataclass(frozen=True, slots=True)
class CheckResult:
    """
    The answer of a doctor check.

    Attributes:
        status: ``ok``, ``warning`` (works, but not as it should), ``error``
            (something the user asked for cannot work) or ``skipped``.
        summary: what was found, in one line.
        remedy: what to do about it; required unless the status is ok.
    """

    status: CheckStatus
    summary: str
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class DoctorCheck:
    """
    One health check of ``propolis doctor``.

    Attributes:
        name: dotted, the plugin's name first: ``"rocm_hip.kfd-permissions"``.
        run: does the check; an exception counts as an error with its text.
        fields: more facts for the JSON report.
        patience: times the seconds of the setting ``probe_timeout`` that it may take.
    """

    name: str
    run: Callable[[], CheckResult]
    fields: Mapping[str, str] = field(default_factory=dict)
    patience: float = 1
