"""How kernels are told a dtype at the launch (native/propolis_kinds.h)."""

from __future__ import annotations

from typing import Final

from propolis import dtypes
from propolis_rocm_kernels import _constants


KINDS: Final = {d: getattr(_constants, f"KIND_{d.name.upper()}") for d in dtypes.PLAIN}
"""The number of each plain dtype."""
