"""What the plugin declares, on any machine."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from propolis import Config
from propolis import dtypes
from propolis.described import DescribedDevice
from propolis.ops import catalogue
from propolis_rocm_hip.device import RocmProvider
from propolis_rocm_kernels import _scalars
from propolis_rocm_kernels._archs import ARCHS
from propolis_rocm_kernels.plugin import propolis_ops


ROCM = SimpleNamespace(kind="rocm")


def test_listing_loads_no_library() -> None:
    """The records can be listed where there is neither ROCm nor hip-python's library."""
    code = (
        "import sys; from types import SimpleNamespace;"
        "from propolis_rocm_kernels.plugin import propolis_ops;"
        "count = len(list(propolis_ops(SimpleNamespace(kind='rocm'))));"
        "maps = open('/proc/self/maps').read();"
        "print(count > 50, 'libamdhip64' in maps, 'rocm.bindings' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert "True False False" == done.stdout.strip()


def test_every_architecture_is_described() -> None:
    """The op matrix can ask for each architecture of the wheel, on a machine without any GPU."""
    described = {d.arch: d for d in RocmProvider(Config()).describe()}
    assert list(ARCHS) == list(described)
    for arch, properties in described.items():
        assert str(ARCHS[arch].warp) == properties.extra["warp_size"]
        assert list(propolis_ops(DescribedDevice(properties)))


def test_other_devices_get_nothing() -> None:
    """Kernels for AMD GPUs are offered to no other kind of device."""
    assert [] == list(propolis_ops(SimpleNamespace(kind="cpu")))


def served(name, parameter):
    """The dtypes of a parameter that some kernel of an op takes."""
    found = [impl.dtypes for impl in propolis_ops(ROCM) if impl.op == name]
    return frozenset().union(*(k[parameter] if isinstance(k, dict) else k for k in found))


def test_the_catalogue_is_served() -> None:
    """Every op there is has kernels, at every dtype that it allows, or at which its parts have."""
    for name, spec in catalogue().items():
        for place, (parameter, allowed) in enumerate(spec.dtypes.items()):
            found = served(name, parameter)
            assert found, name
            usual = [next(iter(kinds)) for kinds in spec.dtypes.values()]
            for kind in allowed - found:
                assert spec.decomposition is not None, (name, kind)
                parts = spec.decomposition.parts(*usual[:place], kind, *usual[place + 1 :])
                for part, kinds in parts.items():
                    for one, wanted in zip(part.dtypes, kinds, strict=True):
                        assert wanted in served(part.name, one), (name, part.name, wanted)


@pytest.mark.parametrize("dtype", sorted(dtypes.INTEGERS, key=str), ids=str)
def test_scalars_saturate(dtype) -> None:
    """A scalar for integers is truncated toward zero and kept in range; NaN is 0."""
    limits = np.iinfo(dtype.numpy)
    given = (2.9, -2.9, 1e30, -1e30, float("inf"), float("-inf"), float("nan"), limits.max)
    low, high = int(limits.min), int(limits.max)
    expected = (2, max(-2, low), high, low, high, low, 0, high)
    assert expected == tuple(_scalars.scalar(value, dtype) for value in given)


def test_scalars_of_narrow_floats_round_to_f32() -> None:
    """Floats are computed in f32, where what is too large is infinite."""
    assert float(np.float32(0.1)) == _scalars.scalar(0.1, dtypes.bf16)
    assert float("inf") == _scalars.scalar(1e300, dtypes.f16)
    assert 1e300 == _scalars.scalar(1e300, dtypes.f64)


def test_bits_of_constants() -> None:
    """A constant's bits are those that numpy rounds it to."""
    assert 0x3DCD == _scalars.bits(0.1, dtypes.bf16)
    assert 0x7F == _scalars.bits(1e6, dtypes.f8e4m3)
    assert 0x7C == _scalars.bits(1e6, dtypes.f8e5m2)
    assert 0x80 == _scalars.bits(-1e6, dtypes.i8)
    assert 0xFFFE == _scalars.bits(-2.5, dtypes.i16)
    assert 0xFF == _scalars.bits(300.0, dtypes.u8)
