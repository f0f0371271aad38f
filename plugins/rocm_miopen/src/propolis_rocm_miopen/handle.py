"""
A device's MIOpen handle: which solution does each convolution, and the calls that queue it.

A handle serves one caller at a time: the context's lock keeps two from using it at once, and
others' work out of a step that is being captured.  What a call needs is made before it is queued:
the solution is chosen, compiled and given its workspace when a shape is seen first.
"""

from __future__ import annotations

import ctypes
import os
import threading
import weakref
from typing import TYPE_CHECKING
from typing import Final
from typing import NamedTuple

from propolis import Config
from propolis.errors import DeviceLostError
from propolis.errors import OutOfMemoryError
from propolis.errors import PropolisError
from propolis_rocm_hip.space import Space
from propolis_rocm_miopen import _ffi
from propolis_rocm_miopen import events
from propolis_rocm_miopen import probe
from propolis_rocm_miopen._descriptors import Descriptors
from propolis_rocm_miopen._kept import MOST
from propolis_rocm_miopen._kept import Kept
from propolis_rocm_miopen._kept import Shelf
from propolis_rocm_miopen._kept import Wanted
from propolis_rocm_miopen._progress import told
from propolis_rocm_miopen.errors import error_for


if TYPE_CHECKING:
    from collections.abc import Iterator

    from propolis_rocm_hip.device import RocmDevice
    from propolis_rocm_hip.vendor import Library
    from propolis_rocm_miopen._problem import Problem

_MIB: Final = 1 << 20

WORKSPACE: Final = 512 * _MIB
"""Bytes that a solution may want beside its tensors; those that want more are left out."""

NAIVE: Final = frozenset({85, 86, 87})
"""MIOpen's numbers of the solutions that are there so that every shape has one."""

_SOLUTIONS: Final = 32
_SUCCESS: Final = 0

_one = ctypes.c_float(1)
_zero = ctypes.c_float(0)
ONE: Final = ctypes.addressof(_one)
ZERO: Final = ctypes.addressof(_zero)
"""Also for 16 bits: MIOpen's scalars are as wide as its sums."""


class Chosen(NamedTuple):
    """
    What does a convolution.

    Attributes:
        kept: the solution.
        descriptors: MIOpen's descriptions of what it does.
        workspace: the address of its memory, 0 for none.
    """

    kept: Kept
    descriptors: Descriptors
    workspace: int


class Handle:
    """
    MIOpen on one device.

    Attributes:
        shelf: the solutions that are remembered.
    """

    def __init__(self, device: RocmDevice, *, gemm: bool | None = None) -> None:
        """
        Make the handle; everything it queues goes to the device's one stream.

        Args:
            device: keeps it (:meth:`RocmDevice.keep`).
            gemm: whether solutions may call rocBLAS; None where a trial is to tell.

        Raises:
            DeviceError: there is no MIOpen, or it refuses the device.
        """
        self._device = weakref.proxy(device)
        self._context = context = device.context
        context.refuse_capture("making a MIOpen handle")
        config = Config.load()
        self._tunes = config.tune
        if gemm is None:
            gemm = probe.verdict(device.properties, _ffi.path()).gemm
        self._gemm = gemm
        if not gemm:
            os.environ.setdefault("MIOPEN_DEBUG_CONV_GEMM", "0")
        self._library = library = _ffi.library()
        self._space = device.keep(Space)
        self._immediate = library.function("miopenConvolutionForwardImmediate")
        self._bias = library.function("miopenConvolutionForwardBias")
        made = ctypes.c_void_p()
        with context.lock:
            context.make_current()
            create = library.function("miopenCreateWithStream")
            status = create(ctypes.addressof(made), context.stream)
            self._expect("miopenCreateWithStream", status)
        self._value = int(made.value or 0)
        weakref.finalize(self, _destroy, library, self._value, os.getpid())
        arch = device.properties.arch
        self.shelf = Shelf(config.cache_dir, library.path, _ffi.version(), arch)
        self._remembered = self.shelf.all()
        self._chosen: dict[tuple[Problem, Wanted], Chosen | str] = {}
        self._told: set[int] = set()  # solutions that could not be compiled

    # -- choosing ---------------------------------------------------------------------

    def choose(self, given: Problem, wanted: Wanted) -> Chosen | str:
        """
        What does a convolution, or why nothing here does; known after the first time.

        Raises:
            DeviceLostError: the device failed for good.
        """
        found = self._chosen.get((given, wanted))
        if found is not None:
            return found
        with self._context.lock:
            found = self._chosen.get((given, wanted))
            if found is not None:
                return found
            if self._context.capturing == threading.get_ident():
                return "its solution would have to be chosen while a graph is captured"
            self._context.make_current()
            try:
                found = self._anew(given, wanted)
            except OutOfMemoryError as exc:
                return f"no memory for MIOpen's workspace: {exc}"  # there may be another time
            if len(self._chosen) >= MOST:  # they are remembered, and soon made anew
                self._chosen.clear()
            self._chosen[given, wanted] = found
        return found

    def _anew(self, given: Problem, wanted: Wanted) -> Chosen | str:
        try:
            return self._chosen_anew(given, wanted)
        except (DeviceLostError, OutOfMemoryError):
            raise
        except PropolisError as exc:  # MIOpen has no words for it, and others may
            return str(exc)

    def _chosen_anew(self, given: Problem, wanted: Wanted) -> Chosen | str:
        descriptors = Descriptors(self._library, self._expect, given)
        known = self._remembered.get((wanted, given))
        if known is not None and self._may_stay(known, descriptors):
            tried = self._ready(known, descriptors, "remembered")
            if not isinstance(tried, str):
                return tried
        tuned = self._tunes and self._measured(given, descriptors)
        found = self._ranked(given, wanted, descriptors, tuned=tuned)
        if not isinstance(found, str):
            self.shelf.put(found.kept)
        return found

    def _may_stay(self, known: Kept, descriptors: Descriptors) -> bool:
        """Whether MIOpen still has that solution for that shape, and it is still wanted."""
        if self._unwanted(known, known.wanted) or (self._tunes and not known.tuned):
            return False
        size = ctypes.c_size_t()
        function = self._library.function("miopenConvolutionForwardGetSolutionWorkspaceSize")
        order = descriptors.order.weights_first
        status = function(self._value, *order, known.solution, ctypes.addressof(size))
        return status == _SUCCESS and size.value == known.workspace <= WORKSPACE

    def _ranked(
        self, given: Problem, wanted: Wanted, descriptors: Descriptors, *, tuned: bool
    ) -> Chosen | str:
        """The best of MIOpen's offers that may be taken, and that it can compile."""
        reasons = []
        for offer in self.offers(given, descriptors):
            kept = Kept(
                wanted,
                given,
                offer.solution_id,
                offer.workspace_size,
                offer.algorithm,
                tuned,
            )
            why_not = self._unwanted(kept, wanted)
            found = why_not or self._ready(kept, descriptors, "measured" if tuned else "expected")
            if not isinstance(found, str):
                return found
            reasons.append(f"solution {kept.solution}: {found}")
        if not reasons:
            return "MIOpen has no solution for it"
        return f"MIOpen's solutions: {'; '.join(reasons)}"

    def _unwanted(self, kept: Kept, wanted: Wanted) -> str:
        name = _ffi.ALGORITHMS.get(kept.algorithm, str(kept.algorithm))
        if kept.algorithm == _ffi.GEMM and not self._gemm:
            return "it multiplies by rocBLAS, which fails on this device"
        if wanted.exact and kept.algorithm in (_ffi.WINOGRAD, _ffi.FFT):
            return f"{name} rounds sums of inputs"
        if kept.algorithm == _ffi.GEMM and kept.problem.stores_short_terms:
            return f"{name} rounds terms to {kept.problem.dtype} before it adds them"
        if kept.solution in NAIVE and not wanted.naive:
            return "it is the naive one, slower than kernels that are made for it"
        if kept.workspace > WORKSPACE:
            return f"it wants a workspace of {kept.workspace / _MIB:.0f} MiB, more than 512"
        return ""

    def _ready(self, kept: Kept, descriptors: Descriptors, found: str) -> Chosen | str:
        """Compile a solution and reserve its workspace, so that calls do neither."""
        what = f"{kept.problem}: solution {kept.solution}"
        order = descriptors.order.weights_first
        function = self._library.function("miopenConvolutionForwardCompileSolution")
        with told(self._context.id, f"compiling {what}"):
            status = function(self._value, *order, kept.solution)
        try:
            self._expect(f"miopenConvolutionForwardCompileSolution of {what}", status)
        except DeviceLostError:
            raise
        except PropolisError as exc:
            self._tell(kept, str(exc))
            return str(exc)
        workspace = self._space.reserve(self._device, kept.workspace) if kept.workspace else 0
        events.MIOPEN_CHOSEN.emit(
            device=self._context.id,
            what=str(kept.problem),
            solution=kept.solution,
            algorithm=_ffi.ALGORITHMS.get(kept.algorithm, str(kept.algorithm)),
            workspace=kept.workspace,
            found=found,
        )
        return Chosen(kept, descriptors, workspace)

    def _tell(self, kept: Kept, reason: str) -> None:
        """Say that a solution cannot be compiled: once for each, not for each shape."""
        if kept.solution in self._told:
            return
        self._told.add(kept.solution)
        events.MIOPEN_NOT_COMPILED.emit(
            device=self._context.id,
            what=str(kept.problem),
            solution=kept.solution,
            algorithm=_ffi.ALGORITHMS.get(kept.algorithm, str(kept.algorithm)),
            reason=reason,
        )

    def prepared(self, given: Problem, offer: _ffi.Solution) -> Chosen | str:
        """
        One of the offers, ready to compute, or why it is not.

        Raises:
            PropolisError: MIOpen refuses to describe the convolution.
        """
        descriptors = Descriptors(self._library, self._expect, given)
        kept = Kept(
            Wanted(), given, offer.solution_id, offer.workspace_size, offer.algorithm, tuned=False
        )
        with self._context.lock:
            self._context.make_current()
            return self._ready(kept, descriptors, "tried")

    def offers(
        self, given: Problem, descriptors: Descriptors | None = None
    ) -> Iterator[_ffi.Solution]:
        """
        What MIOpen offers for a convolution, as :class:`_ffi.Solution`, the best first.

        Raises:
            PropolisError: MIOpen refuses to say.
        """
        known = descriptors or Descriptors(self._library, self._expect, given)
        rows, count = (_ffi.Solution * _SOLUTIONS)(), ctypes.c_size_t()
        function = self._library.function("miopenConvolutionForwardGetSolution")
        with self._context.lock, told(self._context.id, f"asking MIOpen for {given}"):
            self._context.make_current()
            status = function(
                *(self._value, *known.order.weights_first),
                *(_SOLUTIONS, ctypes.addressof(count), ctypes.addressof(rows)),
            )
        self._expect(f"miopenConvolutionForwardGetSolution of {given}", status)
        yield from rows[: count.value]

    # -- measuring --------------------------------------------------------------------

    def tune(self, given: Problem, wanted: Wanted) -> Chosen | str:
        """
        Let MIOpen measure all of its solutions, and take the fastest from now on.

        Seconds to minutes.  Graphs that were captured go on with what they have.

        Raises:
            OutOfMemoryError: the tensors, or the workspace, do not fit beside what is there.
        """
        with self._context.lock:
            self._context.refuse_capture("measuring MIOpen's solutions")
            self._context.make_current()
            try:
                descriptors = Descriptors(self._library, self._expect, given)
                self._find(given, descriptors)
                found = self._ranked(given, wanted, descriptors, tuned=True)
            except (DeviceLostError, OutOfMemoryError):
                raise
            except PropolisError as exc:
                return str(exc)
            if not isinstance(found, str):
                self.shelf.put(found.kept)
                self._remembered[wanted, given] = found.kept
                self._chosen[given, wanted] = found
        return found

    def _measured(self, given: Problem, descriptors: Descriptors) -> bool:
        """Whether it could be measured: one solution that cannot be built ends all of a find."""
        try:
            self._find(given, descriptors)
        except DeviceLostError:
            raise
        except PropolisError as exc:  # a card too full for the tensors of a measurement among them
            events.MIOPEN_NOT_MEASURED.emit(
                device=self._context.id, what=str(given), reason=str(exc)
            )
            return False
        return True

    def _find(self, given: Problem, descriptors: Descriptors) -> None:
        """Measure: MIOpen keeps the times in its own database, and ranks by them from then on."""
        library, device = self._library, self._device
        set_mode = library.function("miopenSetConvolutionFindMode")
        self._expect(
            "miopenSetConvolutionFindMode",
            set_mode(descriptors.convolution, _ffi.FIND_NORMALLY),
        )
        size = ctypes.c_size_t()
        x_first, w_first = descriptors.order.input_first, descriptors.order.weights_first
        function = library.function("miopenConvolutionForwardGetWorkSpaceSize")
        self._expect(
            "miopenConvolutionForwardGetWorkSpaceSize",
            function(self._value, *w_first, ctypes.addressof(size)),
        )
        nbytes = min(size.value, WORKSPACE)
        workspace = self._space.reserve(device, nbytes) if nbytes else 0
        x, w, y = (device.empty(shape, given.dtype) for shape in (given.x, given.w, given.y))
        rows, count = (_ffi.Measured * _SOLUTIONS)(), ctypes.c_int()
        find = library.function("miopenFindConvolutionForwardAlgorithm")
        x_at, w_at, y_at = (t.storage.ptr for t in (x, w, y))
        x_is, w_is, conv, y_is = x_first
        with told(self._context.id, f"measuring {given}"):
            status = find(
                *(self._value, x_is, x_at, w_is, w_at, conv, y_is, y_at),
                *(_SOLUTIONS, ctypes.addressof(count), ctypes.addressof(rows)),
                *(workspace, nbytes, False),
            )
        self._expect(f"miopenFindConvolutionForwardAlgorithm of {given}", status)

    # -- computing --------------------------------------------------------------------

    def convolve(self, chosen: Chosen, x: int, w: int, bias: int, out: int) -> None:
        """
        Queue a convolution.

        Args:
            chosen: what does it.
            x: the address of the first element, as the next.
            w: the weights.
            bias: one number for each channel of the output; 0 for none.
            out: the output.

        Raises:
            DeviceLostError: the device failed for good.
            DeviceError: MIOpen, or the device, refused.
            PluginError: the plugin asks wrongly.
        """
        context = self._context
        if context.liveness.failure is not None:
            context.liveness.expect()
        kept, descriptors, workspace = chosen
        w_is, x_is, conv, y_is = descriptors.order.weights_first
        with context.lock:
            context.make_current()
            status = self._immediate(
                *(self._value, w_is, w, x_is, x, conv, y_is, out),
                *(workspace, kept.workspace, kept.solution),
            )
            added = status == _SUCCESS and bias
            if added:
                status = self._bias(self._value, ONE, descriptors.bias, bias, ZERO, y_is, out)
        if status != _SUCCESS:
            name = "Bias" if added else "Immediate"
            what = f"miopenConvolutionForward{name} of {kept.problem}"
            self._expect(f"{what} (solution {kept.solution})", status)

    def _expect(self, what: str, status: int) -> None:
        """
        Raise where a status is not success.

        Raises:
            PropolisError: it is not; a DeviceLostError where it is the device that failed.
        """
        if status != _SUCCESS:
            self._context.expect_sound(what)  # MIOpen turns HIP's errors into a few numbers
            raise error_for(self._context.id, what, status)


def _destroy(library: Library, handle: int, process: int) -> None:
    """Give a handle back, save in a forked process, which has none."""
    if os.getpid() == process:
        library.function("miopenDestroy")(handle)


__all__ = ["NAIVE", "WORKSPACE", "Chosen", "Handle"]
