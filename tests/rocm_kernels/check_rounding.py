"""
Casts at every boundary of rounding and of range; run by tests, in a process with a device.

The oracle is the enumeration of a format: between two neighbours lies one midpoint, on it
the even one wins, beside it the nearer, however little beside.
"""

from __future__ import annotations

import sys

import numpy as np

from propolis import Tensor
from propolis import default_runtime
from propolis import dtypes
from propolis import ops


# The largest finite code; the next one is infinity, or NaN where there is none.
LARGEST = {dtypes.f16: 0x7BFF, dtypes.bf16: 0x7F7F, dtypes.f8e4m3: 0x7E, dtypes.f8e5m2: 0x7B}


def boundaries(dtype):
    """Every midpoint of neighbours in f64, and the codes just below, on and just above it."""
    codes = np.arange(LARGEST[dtype] + 1)
    width = np.dtype(f"u{dtype.block_bytes}")
    values = codes.astype(width).view(dtype.numpy).astype(np.float64)
    values = np.append(values, 2 * values[-1] - values[-2])  # where the next would be
    middles = (values[:-1] + values[1:]) / 2
    return middles, codes, codes + codes % 2, codes + 1


def check(device, source, target, values, expected):
    """Cast, and compare the bits of both signs."""
    signed = source.kind != "uint"
    sign = 1 << (8 * target.block_bytes - 1)
    array = values.astype(source.numpy)
    if signed:
        array = np.concatenate([array, -array])
        # -0.0 of an integer is 0.
        minus = np.where((array[len(values) :] == 0) & source.is_integer, 0, sign)
        expected = np.concatenate([expected, expected | minus])
    width = np.dtype(f"u{target.block_bytes}")
    actual = ops.cast(Tensor.from_numpy(array, device), target).numpy().view(width)
    wrong = np.flatnonzero(actual != expected.astype(width))
    if wrong.size:
        i = wrong[0]
        sys.exit(
            f"{source} to {target}: {wrong.size} of {array.size} wrong; {array[i]!r} gives "
            f"{actual[i]:#x}, not {int(expected[i]):#x}"
        )


def check_floats(device):
    """To every narrow float, from f32 and f64, at and right beside each midpoint."""
    for target in LARGEST:
        middles, below, tie, above = boundaries(target)
        for source in (dtypes.f32, dtypes.f64):
            middle = middles.astype(source.numpy)
            infinity = source.numpy.type(np.inf)
            check(device, source, target, np.nextafter(middle, -infinity), below)
            check(device, source, target, middle, tie)
            check(device, source, target, np.nextafter(middle, infinity), above)


def check_integers(device):
    """From integers, where midpoints are whole numbers; i64 has more bits than f64."""
    for source in (dtypes.i32, dtypes.u32, dtypes.i64):
        limit = float(np.iinfo(source.numpy).max)
        for target in LARGEST:
            middles, below, tie, above = boundaries(target)
            fits = (middles == np.floor(middles)) & (middles < limit)
            whole = middles[fits].astype(np.int64)
            for step, code in ((-1, below), (0, tie), (1, above)):
                # One more or less than a midpoint is beside it, unless midpoints are that dense.
                dense = middles[fits] < 2 ** (4 + {2: 8, 1: 4}[target.block_bytes])
                chosen = ~dense if step else np.full(len(whole), fill_value=True)
                check(device, source, target, whole[chosen] + step, code[fits][chosen])


def check_saturation(device):
    """To integers, at and beside the ends of their range."""
    for source in (dtypes.f32, dtypes.f64):
        kind = source.numpy.type
        for target in sorted(dtypes.INTEGERS, key=str):
            low, high = (int(x) for x in (np.iinfo(target.numpy).min, np.iinfo(target.numpy).max))
            edges = np.array([low, low - 1, high, high + 1, 0.5, -0.5, -1, 1.5], np.float64)
            values = edges.astype(source.numpy)
            values = np.concatenate(
                [values, np.nextafter(values, kind(np.inf)), np.nextafter(values, -kind(np.inf))]
            )
            expected = [min(max(int(v), low), high) for v in values.tolist()]
            expected += [high, low, 0]
            values = np.append(values, [np.inf, -np.inf, np.nan]).astype(source.numpy)
            actual = ops.cast(Tensor.from_numpy(values, device), target).numpy().tolist()
            if expected != actual:
                sys.exit(f"{source} to {target}: {values.tolist()} gives {actual}, not {expected}")


if __name__ == "__main__":
    gpu = default_runtime().device("rocm:0")
    check_floats(gpu)
    check_integers(gpu)
    check_saturation(gpu)

    print("rounding is right")
