"""Random cases, shrinking, and how long a run may take."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest
from patience import patience

from propolis.errors import PluginError
from propolis_conformance import Request
from propolis_conformance import cases
from propolis_conformance import judge
from propolis_conformance import pool
from propolis_conformance import run
from propolis_conformance.families import OPS
from propolis_conformance.pool import scale_of
from propolis_conformance.strides import StridePattern
from propolis_conformance.strides import named


ADD = """
import os, time
def add(out, a, b, /):
    x, y, o = a.array, b.array, out.array
    with np.errstate(all="ignore"):
        np.add(x, y, out=o)
    {body}
@hookimpl
def propolis_ops(device):
    if device.kind == "cpu":
        yield OpImpl(op="add", fn=add, dtypes=F32{flags})
"""
# No fixed case has a step of 3 in memory.
STEP = "o[...] += 1 if a.strides[-1:] == (3,) and a.numel > 2 else 0"


def source(body, flags=""):
    """A plugin whose add does this, after the right thing."""
    return ADD.format(body=body, flags=flags)


@pytest.mark.slow
def test_random_strides(judged_here):
    """What no fixed case has, a full run finds, and shrinks to little more than the fault."""
    text = source(STEP)
    assert judged_here(text).status == "passed"
    found = judged_here(text, quick=False)
    assert (found.status, found.check) == ("failed", "values")
    sizes = [int(word.partition("=")[2]) for word in found.case.split()[:3]]
    assert sorted(sizes) == [1, 1, 3], found.case
    assert "a(" in found.case
    assert "steps 1.1.3" in found.case, found.case


@pytest.mark.slow
def test_random_cases_repeat(judged_here):
    """The same seed draws the same cases."""
    text = source(STEP)
    first, again = (judged_here(text, quick=False) for _ in range(2))
    assert (first.case, first.message) == (again.case, again.message)


@pytest.mark.slow
def test_flaky_failures(judged_here):
    """A failure that comes and goes is reported all the same."""
    body = "COUNT.append(1); o[...] += 1 if 200 <= len(COUNT) < 206 and o.size else 0"
    found = judged_here("COUNT = []\n" + source(body), quick=False)
    assert found.status == "failed"
    assert found.check in ("values", "determinism", "errors")


def test_without_hypothesis(judged_here, monkeypatch):
    """Core works without it: random cases are left out."""
    monkeypatch.setattr(judge, "RANDOM", False)
    text = source(STEP)
    assert judged_here(text, quick=False).status == "passed"


def test_import_is_light():
    """Neither core nor the suite loads Hypothesis before a full run."""
    code = "import sys, propolis, propolis_conformance as c; c.Request; print(sorted(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "'hypothesis'" not in done.stdout
    assert "'propolis_conformance.pool'" in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    ("check", "body"),
    [
        ("aborted", "os.abort() if o.size > 3 else None"),
        ("aborted", "os._exit(3) if not a.is_contiguous and o.size > 3 else None"),
        ("hung", "time.sleep(60) if o.size > 3 else None"),
    ],
)
def test_crashes_are_shrunk(judged, check, body, monkeypatch):
    """The case of a process that ended is the smallest that ends one."""
    monkeypatch.setattr(pool, "SHRINKING", 600.0)  # a slow machine is to find it too
    result = judged(source(body), timeout=2 if check == "hung" else 60)
    assert (result.status, result.check) == ("failed", check), result.message
    sizes = [int(word.partition("=")[2]) for word in result.case.split()[:3]]
    product = sizes[0] * sizes[1] * sizes[2]
    assert product == 4, result.case
    assert "values=normal" in result.case


@pytest.mark.slow
def test_promises_are_shrunk(judged_here):
    """A leak is shown with the smallest case that leaks."""
    body = "KEPT.append(np.zeros(100)) if o.shape[-1:] > (1,) else None"
    found = judged_here("KEPT = []\n" + source(body))
    assert (found.status, found.check) == ("failed", "leak")
    assert found.case.startswith("r=1 s=1 c=2 "), found.case


@pytest.mark.parametrize("op", OPS)
def test_cases_travel(op):
    """A case is the same after the way to another process."""
    recipes = OPS[op].recipes
    for case in cases.cases(recipes, 3):
        assert cases.decode(cases.encode(case, op), op) == case
    apart = {
        "x": StridePattern(order=(1, 0), steps=(1, 2), gaps=(0, 1), offset=3),
        "w": StridePattern(repeat=True),
    }
    case = cases.Case(recipes[0], {"r": 1}, recipes[0].attributes[0], strides=apart)
    assert cases.decode(cases.encode(case, op), op) == case
    assert "x(order 1.0, steps 1.2, gaps 0.1, offset 3) w(repeat)" in str(case)


def test_stride_patterns():
    """Strides are as their names say."""
    shape = (2, 3, 4)
    assert named("contiguous", 3).strides(shape) == (12, 4, 1)
    assert named("permuted", 3).strides(shape) == (1, 2, 6)
    assert named("transposed", 3).strides(shape) == (12, 1, 3)
    assert named("repeated", 3).strides(shape) == (0, 4, 1)
    assert named("step", 3).strides(shape) == (24, 8, 2)
    assert named("gaps", 3).strides(shape) == (20, 5, 1)
    assert named("offset", 3) == StridePattern(offset=3)
    assert named("step", 1).whole_blocks() == StridePattern(gaps=(1,))


@pytest.mark.slow
def test_time_is_bounded(install):
    """Slow implementations are judged on fewer cases, and the report says so."""
    install(source("time.sleep(0.05)", ", capture_safe=False"))
    started = time.monotonic()
    (result,), _ = run(Request("wrong", quick=True, seconds=0.02), workers=1)
    assert time.monotonic() - started < patience(30)
    assert (result.status, result.cut) == ("passed", True)
    assert 0 < result.cases < 20


@pytest.mark.parametrize(("said", "scale"), [({}, 1.0), ({"conformance_scale": "0.1"}, 0.1)])
def test_devices_say_that_they_are_slow(said, scale):
    """The scale is the user's, or the device's, or 1."""
    facts = {"device_extra": said, "device": "slow:0", "plugin": "slow"}
    assert scale_of(Request("slow"), facts) == scale
    assert scale_of(Request("slow", scale=0.5), facts) == 0.5


@pytest.mark.parametrize("said", ["0", "2", "slow"])
def test_a_scale_that_is_none(said):
    """What a device says is checked before anything runs by it."""
    facts = {"device_extra": {"conformance_scale": said}, "device": "s:0", "plugin": "slow"}
    with pytest.raises(PluginError, match=f"conformance_scale of s:0 is '{said}'; it must be"):
        scale_of(Request("slow"), facts)


def test_scale():
    """Slow devices get smaller sizes, and no fewer kinds of them."""
    full = list(cases.cases(OPS["matmul"].recipes, 0))
    small = list(cases.cases(OPS["matmul"].recipes, 0, scale=0.1))
    assert len(full) == len(small)
    assert max(max(c.sizes.values()) for c in full) == 2100
    assert max(max(c.sizes.values()) for c in small) == 210


def test_lengths_of_a_cache_are_not_repeated() -> None:
    """What is behind a length is drawn as NaN: the same length for all would see another's."""
    judged = [
        case
        for case in cases.cases(OPS["attention"].recipes, seed=1)
        if case.layout == "repeated" and "kv_len" in case.recipe.tensors
    ]
    assert judged
    for case in judged:
        assert not case.pattern("kv_len", 1, target=False).repeat
    # What depends on nothing is.
    assert all(case.pattern("q", 4, target=False).repeat for case in judged)
