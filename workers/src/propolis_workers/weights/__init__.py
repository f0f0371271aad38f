"""
Weight files: GGUF and safetensors, memory-mapped, never unpickled.

A reader checks a whole header before it believes any of it: whatever a file
holds, opening it ends with a usable source or with one line that says what is
wrong, a :class:`~propolis.errors.ModelError` or one of its subclasses.
"""

from __future__ import annotations

from propolis_workers.weights._file import TensorInfo
from propolis_workers.weights._file import Weights
from propolis_workers.weights._file import WeightSource
from propolis_workers.weights.gguf import GGUFFile
from propolis_workers.weights.gguf import MetadataValue
from propolis_workers.weights.safetensors import SafetensorsFolder


__all__ = [
    "GGUFFile",
    "MetadataValue",
    "SafetensorsFolder",
    "TensorInfo",
    "WeightSource",
    "Weights",
]
