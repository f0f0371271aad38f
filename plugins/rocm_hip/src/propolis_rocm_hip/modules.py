"""
Kernels: where their code comes from, loading it once a device, launching it.

    source = ModuleSource(
        name="unary",
        signatures={"unary_exp_f32": "PPq"},
        code={"gfx1100": read_gfx1100},
        source=read_hip,
        headers={"propolis_device.h": read_header},
        flags=("-O3",),
    )
    exp = device.modules.function(source, "unary_exp_f32")
    exp(grid, block, 0, out.ptr, x.ptr, x.numel)

A device takes the code object for its architecture, else one for the generic target that
covers it, else hipRTC compiles the source, once: an on-disk cache keeps what it made.
"""

from __future__ import annotations

import ctypes
import struct
import threading
from dataclasses import dataclass
from dataclasses import field
from typing import TYPE_CHECKING
from typing import Any
from typing import Final

from propolis.errors import PluginError
from propolis.errors import PropolisError
from propolis_rocm_hip import _ffi
from propolis_rocm_hip import codeobject
from propolis_rocm_hip import events
from propolis_rocm_hip.codeobject import CodeObjectError


if TYPE_CHECKING:
    from collections.abc import Callable
    from collections.abc import Mapping

    from propolis_rocm_hip.cache import CodeCache
    from propolis_rocm_hip.context import Context

Grid = tuple[int, int, int]
"""Blocks of a grid, or threads of a block, along x, y and z."""

_BUFFER_POINTER: Final = 1
_BUFFER_SIZE: Final = 2
_END: Final = 3


@dataclass(frozen=True, eq=False)
class ModuleSource:
    """
    The kernels of one family, in every form they can be had.

    Attributes:
        name: of the module, ``"unary"``.
        signatures: each kernel's arguments in the notation of :mod:`struct`, native
            sizes and alignment: ``"PPq"`` is two addresses and an int64.  A struct that
            is passed by value is the sequence of its fields.
        code: what reads the code object for an architecture.
        source: what reads the HIP source, for architectures that ``code`` lacks.
        headers: what reads the headers that the source includes, by name.
        flags: for hipRTC, beside the architecture and ``PROPOLIS_WARP``.
    """

    name: str
    signatures: Mapping[str, str]
    code: Mapping[str, Callable[[], bytes]] = field(default_factory=dict)
    source: Callable[[], str] | None = None
    headers: Mapping[str, Callable[[], str]] = field(default_factory=dict)
    flags: tuple[str, ...] = ()


class Function:
    """
    One kernel on one device.

    A launch copies the arguments, so the one buffer that the function owns serves every
    call; the context's lock keeps threads apart.

    Attributes:
        name: the kernel's.
        handle: HIP's, as ctypes passes it.
        struct: packs the arguments as the kernel reads them.
    """

    __slots__ = (
        "_buffer",
        "_bytes",
        "_context",
        "_extra",
        "_keep",
        "_launch",
        "_liveness",
        "_lock",
        "_stream",
        "handle",
        "name",
        "struct",
    )

    def __init__(self, context: Context, name: str, handle: int, signature: str) -> None:
        self.name = name
        self.struct = struct.Struct(signature)
        size = ctypes.c_size_t(self.struct.size)
        self._buffer = ctypes.create_string_buffer(max(self.struct.size, 1))
        extra = (ctypes.c_void_p * 5)(
            _BUFFER_POINTER,
            ctypes.addressof(self._buffer),
            _BUFFER_SIZE,
            ctypes.addressof(size),
            _END,
        )
        # By its address: ctypes takes 0.3 us longer to pass an array.
        self._extra = ctypes.c_void_p(ctypes.addressof(extra))
        self._keep = size, extra
        self._bytes = memoryview(self._buffer).cast("B")[: self.struct.size]
        self._context = context
        self._lock = context.lock
        self._stream = context.stream_handle
        self._liveness = context.liveness
        self.handle = ctypes.c_void_p(handle)
        self._launch = _ffi.native("hipModuleLaunchKernel")

    def __call__(self, grid: Grid, block: Grid, shared_bytes: int, *arguments: Any) -> None:
        """
        Queue the kernel.

        Args:
            grid: blocks.
            block: threads of a block.
            shared_bytes: dynamic LDS of a block.
            arguments: one for each field of the signature.

        Raises:
            DeviceError: the launch, or something queued before it, failed.
            struct.error: the arguments do not fit the signature.
        """
        if self._liveness.failure is not None:
            self._liveness.expect()
        with self._lock:
            self.struct.pack_into(self._buffer, 0, *arguments)
            code = self._launch(
                self.handle, *grid, *block, shared_bytes, self._stream, None, self._extra
            )
        if code:
            self._fail(grid, block, code)

    def launch(self, grid: Grid, block: Grid, shared_bytes: int, packed: Any) -> None:
        """
        Queue the kernel with arguments that are packed already.

        Args:
            grid: blocks.
            block: threads of a block.
            shared_bytes: dynamic LDS of a block.
            packed: a bytes-like object of exactly ``struct.size`` bytes.

        Raises:
            DeviceError: the launch, or something queued before it, failed.
            ValueError: ``packed`` has another size.
        """
        if self._liveness.failure is not None:
            self._liveness.expect()
        with self._lock:
            self._bytes[:] = packed
            code = self._launch(
                self.handle, *grid, *block, shared_bytes, self._stream, None, self._extra
            )
        if code:
            self._fail(grid, block, code)

    def _fail(self, grid: Grid, block: Grid, code: int) -> None:
        self._context.fail(f"launch of {self.name} (grid {grid}, block {block})", code)


class ModuleStore:
    """
    The modules that one device has loaded, each once.

    Args:
        context: the device's.
        arch: its architecture.
        warp_size: lanes of a wave.
        cache: keeps what hipRTC compiles.
    """

    def __init__(self, context: Context, arch: str, warp_size: int, cache: CodeCache) -> None:
        self._context = context
        self._arch = arch
        self._warp_size = warp_size
        self._cache = cache
        self._lock = threading.Lock()
        self._locks: dict[ModuleSource, threading.Lock] = {}
        self._modules: dict[ModuleSource, _Module] = {}
        self._failures: dict[ModuleSource, PropolisError] = {}
        self._functions: dict[tuple[ModuleSource, str], Function] = {}
        self._announced = False

    def function(self, source: ModuleSource, name: str) -> Function:
        """
        A kernel, its module loaded on first use; the same object each time.

        Raises:
            CodeObjectError: the code object is for another architecture, or its kernels
                take other arguments than the signatures say.
            CompileError: hipRTC cannot compile the source.
            PluginError: the module declares no such kernel.
            DeviceError: the device refuses the module.
        """
        known = self._functions.get((source, name))
        if known is not None:
            return known
        signature = source.signatures.get(name)
        if signature is None:
            msg = f"module {source.name} declares no kernel {name!r}: a bug in its plugin"
            raise PluginError(msg)
        with self._lock:
            lock = self._locks.setdefault(source, threading.Lock())
        with lock:
            module = self._module(source)
            found = self._functions.get((source, name))
            if found is None:
                handle = self._context.call("hipModuleGetFunction", module.handle, name.encode())
                found = Function(self._context, name, int(handle), signature)
                self._functions[source, name] = found
            return found

    def unload(self, source: ModuleSource) -> None:
        """
        Give a module back, once the work that uses it is done.

        Its functions must not be launched again, nor graphs that hold them.
        """
        with self._lock:
            module = self._modules.pop(source, None)
            for key in [key for key in self._functions if key[0] is source]:
                del self._functions[key]
        if module is not None:
            self._context.synchronize()
            self._context.call("hipModuleUnload", module.handle)

    @property
    def loaded(self) -> dict[str, str]:
        """Where the code of each loaded module came from, by its name."""
        return {source.name: module.origin for source, module in self._modules.items()}

    def _module(self, source: ModuleSource) -> _Module:
        """The loaded module.  The source's own lock is held."""
        known = self._modules.get(source)
        if known is not None:
            return known
        if source in self._failures:  # compiling again would fail again, after seconds
            raise self._failures[source]
        try:
            image, origin = self._code(source)
            what = f"{source.name} ({origin})"
            codeobject.check_arch(image, self._arch, what)
            check_signatures(image, source.signatures, what)
        except PropolisError as exc:
            self._failures[source] = exc
            raise
        module = _Module(int(self._context.call("hipModuleLoadData", image)), image, origin)
        self._modules[source] = module
        return module

    def _code(self, source: ModuleSource) -> tuple[bytes, str]:
        """The code object for this device, and where it came from."""
        generic = codeobject.generic_of(self._arch)
        for arch in (self._arch, generic):
            if arch is not None and arch in source.code:
                return source.code[arch](), f"built for {arch}"
        if source.source is None:
            nearest = f" nor for {generic}, which covers it" if generic else ""
            built = ", ".join(sorted(source.code)) or "nothing"
            msg = (
                f"{source.name} has no code object for {self._arch}{nearest}, and no source to "
                f"compile; it is built for {built}"
            )
            raise CodeObjectError(msg)
        from propolis_rocm_hip import rtc  # noqa: PLC0415  (only where something is compiled)

        program = rtc.Program(
            name=source.name,
            source=source.source(),
            headers={name: read() for name, read in source.headers.items()},
            flags=(*source.flags, f"-DPROPOLIS_WARP={self._warp_size}"),
            arch=self._arch,
        )
        key = rtc.cache_key(program)

        def compiled() -> bytes:
            self._announce(program.name)
            return rtc.compile_program(program)

        return self._cache.get(key, compiled), f"compiled by hipRTC for {self._arch}"

    def _announce(self, module: str) -> None:
        """Say what takes tens of seconds, before the first module that does."""
        with self._lock:
            if self._announced:
                return
            self._announced = True
        events.ROCM_COMPILING.emit(
            first=module,
            arch=self._arch,
            kept_in=str(self._cache.folder),
            note="kernels are compiled by hipRTC on first use, for seconds each, and once: later "
            "starts find them there",
        )


@dataclass(frozen=True, slots=True)
class _Module:
    handle: int
    image: bytes  # the runtime may read it as long as the module is loaded
    origin: str


def check_signatures(image: bytes, signatures: Mapping[str, str], what: str) -> None:
    """
    Compare declared signatures with what the compiler wrote into an AMD code object.

    Args:
        image: the code object; one of another machine is not checked (the simulator
            checks each launch instead).
        signatures: by kernel.
        what: names the object in the message.

    Raises:
        CodeObjectError: a kernel is missing, or takes other arguments.
    """
    if codeobject.arch_of(image) is None:
        return
    kernels = codeobject.kernels(image)
    for name, signature in signatures.items():
        if name not in kernels:
            msg = f"{what} lacks the kernel {name}: rebuild it with `make kernels`"
            raise CodeObjectError(msg)
        fields = offsets(signature)
        arguments = kernels[name].arguments
        end = max((a.offset + a.size for a in arguments), default=0)
        wrong = [a for a in arguments if a.offset not in fields]
        wrong += [a for a in arguments if a.pointer and fields.get(a.offset) != "P"]
        if wrong or end != struct.calcsize(signature):
            takes = ", ".join(
                f"{'address' if a.pointer else f'{a.size} bytes'} at {a.offset}" for a in arguments
            )
            msg = (
                f"{what}: {name} takes {takes or 'nothing'}; its signature {signature!r} is "
                f"{struct.calcsize(signature)} bytes with fields at {sorted(fields)}"
            )
            raise CodeObjectError(msg)


def offsets(signature: str) -> dict[int, str]:
    """
    Where each field of a signature stands, with its kind.

    >>> offsets("Pif")
    {0: 'P', 8: 'i', 12: 'f'}
    >>> offsets("i2q")
    {0: 'i', 8: 'q', 16: 'q'}
    """
    found: dict[int, str] = {}
    prefix = count = ""
    for character in signature:
        if character.isdigit():
            count += character
            continue
        for _ in range(int(count or 1)):
            prefix += character
            found[struct.calcsize(prefix) - struct.calcsize(character)] = character
        count = ""
    return found


__all__ = ["Function", "Grid", "ModuleSource", "ModuleStore", "check_signatures", "offsets"]
