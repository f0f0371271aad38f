"""Kernels as Python knows them: a name, a signature, and the module they are compiled in."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING
from typing import Any
from typing import Final

from propolis_rocm_kernels import _code
from propolis_rocm_kernels._signature import expand
from propolis_rocm_kernels._signature import packer


if TYPE_CHECKING:
    from propolis_rocm_hip.modules import ModuleSource


BLOCK: Final = 256
"""Threads of a block, ``PROPOLIS_BLOCK`` of the header."""

MAX_BLOCKS: Final = 1 << 22
"""Blocks of a launch; what is left over, kernels reach in further rounds."""


class Module:
    """
    The kernels of one ``native/<name>.hip``.

    Attributes:
        name: the file's.
        signatures: of each kernel, by its name, in the notation of :mod:`struct`.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.signatures: dict[str, str] = {}

    def kernel(self, name: str, signature: str) -> Kernel:
        """
        Declare a kernel.

        Args:
            name: without the module's name in front.
            signature: its arguments (see :mod:`propolis_rocm_kernels._signature`).
        """
        full = f"{self.name}_{name}"
        self.signatures[full] = expand(signature)
        return Kernel(self, full, signature)

    @cached_property
    def source(self) -> ModuleSource:
        """What rocm_hip loads: code objects by architecture, and the source for hipRTC."""
        return _code.module_source(self.name, self.signatures)


class Kernel:
    """
    A kernel of a module.

    Calling it queues it on the device's stream::

        kernel(out.device, blocks, pointer(out), pointer(x), out.numel)
    """

    __slots__ = ("_pack", "module", "name")

    def __init__(self, module: Module, name: str, signature: str) -> None:
        self.module = module
        self.name = name
        # Without layouts, rocm_hip packs the values, right into its buffer.
        has_layout = any(c.isdigit() for c in signature)
        self._pack = packer(signature).pack if has_layout else None

    def __call__(
        self,
        device: Any,
        blocks: int | tuple[int, int, int],
        *values: Any,
        threads: int = BLOCK,
        shared: int = 0,
    ) -> None:
        """
        Queue the kernel.

        Args:
            device: a ``RocmDevice``.
            blocks: of the grid, along x or along all three axes; at least one.
            values: as its signature has them, layouts as :func:`._layouts.walk` packs them.
            threads: of a block.
            shared: bytes of dynamic shared memory.

        Raises:
            DeviceError: the launch failed, or the device has neither code object nor hipRTC.
        """
        grid = (blocks, 1, 1) if isinstance(blocks, int) else blocks
        function = device.modules.function(self.module.source, self.name)
        if self._pack is None:
            function(grid, (threads, 1, 1), shared, *values)
        else:
            function.launch(grid, (threads, 1, 1), shared, self._pack(*values))
