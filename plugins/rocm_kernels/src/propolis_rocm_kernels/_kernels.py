"""Kernels as Python knows them: a name, a signature, and the module they are compiled in."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING
from typing import Any
from typing import Final

from propolis_rocm_kernels import _code
from propolis_rocm_kernels._constants import BLOCK
from propolis_rocm_kernels._signature import expand
from propolis_rocm_kernels._signature import packer


if TYPE_CHECKING:
    from collections.abc import Mapping

    from propolis_rocm_hip.modules import ModuleSource
    from propolis_rocm_kernels._signature import Signature

MAX_BLOCKS: Final = 1 << 22
"""Blocks of a launch; what is left over, kernels reach in further rounds."""


class Module:
    """
    What Python declares of one ``native/<name>.hip``; that does not compile where it differs.

    Attributes:
        name: the file's.
        kernels: the signature of each kernel, by its name.
        constants: numbers that the file takes from here, by name.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.kernels: dict[str, Signature] = {}
        self.constants: dict[str, int] = {}

    def kernel(self, name: str, signature: Signature) -> Kernel:
        """
        Declare a kernel.

        Args:
            name: without the module's name in front.
            signature: its parameters (see :mod:`propolis_rocm_kernels._signature`).

        Raises:
            ValueError: the signature has a letter that means nothing.
        """
        full = f"{self.name}_{name}"
        made = Kernel(self, full, signature)
        self.kernels[full] = signature
        return made

    def constant(self, name: str, value: int) -> int:
        """
        Give the file a number, or a truth value, under that name.

        Returns:
            ``value``, which Python is to use.
        """
        self.constants[name] = value
        return value

    @property
    def signatures(self) -> Mapping[str, str]:
        """The parameters of each kernel, by its name, in the notation of :mod:`struct`."""
        return {name: expand(signature) for name, signature in self.kernels.items()}

    @cached_property
    def source(self) -> ModuleSource:
        """What rocm_hip loads: code objects by architecture, and the source for hipRTC."""
        return _code.module_source(self)


class Kernel:
    """
    A kernel of a module.

    Calling it queues it on the device's stream::

        kernel(out.device, blocks, pointer(out), pointer(x), out.numel)
    """

    __slots__ = ("_pack", "module", "name")

    def __init__(self, module: Module, name: str, signature: Signature) -> None:
        self.module = module
        self.name = name
        packs = packer(signature)
        # Without layouts, rocm_hip packs the values, right into its buffer.
        self._pack = packs.pack if "s" in packs.format else None

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
            values: as its signature has them, layouts as :func:`._layouts.strided_of` packs them.
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
