"""Every way to be wrong that the suite knows is caught by the check made for it."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from patience import patience


# What differs between plugins is the body of one op and what is declared of it.
ADD = """
KEPT = []
def add(out, a, b, /):
    x, y, o = a.array, b.array, out.array
{body}
@hookimpl
def propolis_ops(device):
    if device.kind == "cpu":
        yield OpImpl(op="add", fn=add, dtypes=F32{flags})
"""


def add(body, flags=""):
    """The source of a plugin whose add does this to x, y and o."""
    lines = "".join(f"    {line}\n" for line in body.splitlines())
    return ADD.format(body=lines, flags=flags)


RIGHT = "np.add(x, y, out=o)"


def test_right_passes(judged_here):
    """A plugin without a fault passes, whatever it declares truthfully."""
    result = judged_here(add(RIGHT, ", in_place=True, capture_safe=True"))
    assert (result.status, result.message) == ("passed", "")
    assert result.cases > 20


@pytest.mark.parametrize(
    ("check", "body"),
    [
        ("values", "np.add(x, 1.001 * y, out=o)"),
        ("values", RIGHT + "\nif o.size > 4096: o.reshape(-1)[4097] += 1"),
        ("written", "o.reshape(-1)[:-1] = np.add(x, y).reshape(-1)[:-1]"),
        (
            "beside",
            RIGHT + "\nend = out.layout.offset * 4 + out.nbytes\n"
            "out.storage.bytes[end : end + 4] = 0",
        ),
        ("inputs", RIGHT + "\nif x.size and x.flags.writeable: x.reshape(-1)[0] = 1"),
        ("nan_inf", "o[...] = np.nan_to_num(np.add(x, y))"),
        ("runs", RIGHT + "\nif not o.size: raise RuntimeError('a grid of 0 blocks')"),
        ("contract", RIGHT + "\nout.dtype = dtypes.i32"),
        ("contract", RIGHT + "\nfrom propolis import Layout\nout.layout = Layout((1,), (1,))"),
        ("leak", RIGHT + "\nKEPT.append(np.zeros(o.size + 64, np.float32))"),
        ("leak", RIGHT + "\nKEPT.append((out, a))"),
        ("leak", RIGHT + "\nKEPT.append(b)"),
    ],
)
def test_caught(judged_here, check, body):
    """The check's name is in the report, with a case that can be repeated."""
    result = judged_here(add(body))
    assert (result.status, result.check) == ("failed", check), result.message
    assert "seed=" in result.case


SPREAD = "if not (np.isfinite(x).all() and np.isfinite(y).all()): "


@pytest.mark.parametrize(
    ("check", "body"),
    [
        ("", RIGHT),
        ("", RIGHT + "\n" + SPREAD + "o[...] = np.nan"),
        ("", RIGHT + "\n" + SPREAD + "o[~np.isfinite(o)] = np.inf"),
        ("nan_inf", RIGHT + "\n" + SPREAD + "o[...] = np.inf"),
        ("nan_inf", RIGHT + "\n" + SPREAD + "o[~np.isfinite(o)] = 0"),
        ("nan_inf", RIGHT + "\no.reshape(-1)[:1] = np.nan"),
        ("values", RIGHT + "\n" + SPREAD + "o[np.isfinite(o)] *= 1.001"),
    ],
)
def test_who_spreads_nan(judged_here, check, body):
    """Who says so may give NaN beside what is not finite, and loses nothing; else all holds."""
    result = judged_here(add(body, ", spreads_nan=True"))
    assert (result.status, result.check or "") == ("failed" if check else "passed", check)
    assert bool(check) or judged_here(add(body)).status == ("passed" if body == RIGHT else "failed")


@pytest.mark.parametrize(
    "body",
    [
        "import os\nos.abort()",
        pytest.param(
            "import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)", marks=pytest.mark.slow
        ),
        pytest.param("import os\nprint('so long')\nos._exit(3)", marks=pytest.mark.slow),
    ],
)
def test_aborts_are_caught(judged, body):
    """What ends the process is one failed unit, with a case that can be repeated."""
    result = judged(add(body))
    assert (result.status, result.check) == ("failed", "aborted"), result.message
    assert "seed=" in result.case


def test_strides_ignored(judged_here):
    """A kernel that reads memory in order, whatever the strides, is caught by values."""
    body = (
        "def flat(t):\n"
        "    raw = t.storage.bytes.view(np.float32)[t.layout.offset :]\n"
        "    return np.resize(raw, t.shape) if t.numel else t.array\n"
        "o[...] = flat(a) + flat(b)"
    )
    result = judged_here(add(body))
    assert result.check in ("values", "nan_inf")
    assert result.status == "failed"


@pytest.mark.slow
def test_hang(judged):
    """A case that never ends is killed and is that unit's failure."""
    result = judged(add("import time\ntime.sleep(600)"), timeout=2)
    assert (result.status, result.check) == ("failed", "hung")
    assert "no sign of life for " in result.message


@pytest.mark.slow
@pytest.mark.parametrize("end", ["time.sleep(600)", "os.abort()"])
def test_what_a_case_started_ends_with_it(judged, tmp_path, end):
    """Neither a case that hangs nor one that aborts leaves a process behind (a compiler, say)."""
    note = tmp_path / "pids"
    body = (
        "import os, subprocess, time\n"
        "child = subprocess.Popen(['sleep', '600'])\n"
        f"print(child.pid, file=open({str(note)!r}, 'a'), flush=True)\n{end}"
    )
    assert judged(add(body), timeout=2).status == "failed"
    pids = note.read_text().split()
    until = time.monotonic() + patience(10)
    while any(map(runs, pids)):
        assert time.monotonic() < until
        time.sleep(0.02)


def runs(pid):
    """Whether a process runs: one that is gone, or waits for whoever inherited it, does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.slow
def test_one_abort_is_not_the_end(install):
    """Units after one that killed its process are judged all the same."""
    from propolis_conformance import Request
    from propolis_conformance import run

    source = add("import os\nif out.dtype is dtypes.f32: os.abort()\n" + RIGHT)
    install(source.replace("dtypes=F32", "dtypes={dtypes.f64, dtypes.f32, dtypes.i32}"))
    results, _ = run(Request("wrong", quick=True))
    found = {r.unit: (r.status, r.check) for r in results}
    assert found == {
        "add[f64]": ("passed", ""),
        "add[f32]": ("failed", "aborted"),
        "add[i32]": ("passed", ""),
    }


MATMUL = """
def matmul(out, a, b, /):
    x, y = a.array, b.array
    acc = np.zeros(out.shape, x.dtype)
    for k in range(x.shape[-1]):
        acc = (acc + x[..., k : k + 1] * y[..., k : k + 1, :]).astype(x.dtype)
    out.array[...] = acc
@hookimpl
def propolis_ops(device):
    if device.kind == "cpu":
        yield OpImpl(op="matmul", fn=matmul, dtypes={dtypes.f16})
"""


def test_narrow_accumulator(judged_here):
    """Sums in f16 lose what sums in f32 keep."""
    result = judged_here(MATMUL)
    assert (result.status, result.check) == ("failed", "values"), result.message


EMBEDDING = """
def embedding(out, ids, table, /, dtype=None):
    rows = ids.array.astype(np.int64)
    out.array[...] = table.array[rows % max(table.shape[0], 1)] if out.numel else 0
@hookimpl
def propolis_ops(device):
    if device.kind == "cpu":
        yield OpImpl(op="embedding", fn=embedding, dtypes={"ids": {dtypes.i32}, "table": F32})
"""


def test_errors(judged_here):
    """An index out of range that wraps around silently is no OpError."""
    result = judged_here(EMBEDDING)
    assert (result.status, result.check) == ("failed", "errors")
    assert "ids 1 out of range was accepted" in result.message


# Ops that write into a target: what each does is right, and then a body follows.
TARGETS = """
from propolis.errors import OpError
from propolis_conformance.families import OPS
def into(target, *arrays):
    check = arrays[0] if OP.startswith("scatter") else arrays[-1]
    if OP not in ("fill", "assign") and check.size:
        size = target.shape[-1] if OP.startswith("scatter") else target.shape[1]
        ids = check[check != np.iinfo(check.dtype).max].astype(np.int64)
        if ((ids < 0) | (ids >= size)).any():
            raise OpError("an index is out of range")
    target.array[...] = OPS[OP].truth(target.array, *arrays)
    if target.numel and not target.is_contiguous:
        raw, first = target.storage.bytes.view(np.float32), target.layout.offset
        {body}
def kv_append(cache, x, positions, /):
    into(cache, x.array, positions.array)
def scatter(target, ids, source, /, dim=-1):
    if dim not in (-1, len(target.shape) - 1):
        target.array[...] = OPS[OP].truth(target.array, ids.array, source.array, dim)
        return
    into(target, ids.array, source.array)
def assign(target, source, /):
    into(target, source.array)
def fill(target, /, value):
    into(target, value)
OP = "{op}"
@hookimpl
def propolis_ops(device):
    if device.kind == "cpu":
        kinds = F32
        if OP in ("kv_append", "scatter"):
            name = "cache" if OP == "kv_append" else "target"
            index = "positions" if OP == "kv_append" else "ids"
            kinds = {{name: F32, index: {{dtypes.i32}}}}
        yield OpImpl(op=OP, fn=globals()[OP], dtypes=kinds)
"""


@pytest.mark.slow
@pytest.mark.parametrize("op", ["kv_append", "scatter", "assign", "fill"])
@pytest.mark.parametrize(
    ("check", "body"),
    [
        ("", "pass"),
        # Between its elements: where they are two apart.
        ("beside", "raw[first + 1 : first + 1 + all(s % 2 == 0 for s in target.strides)] = 0"),
        # Before the first of them.
        ("beside", "raw[first - 1] = 0"),
        # A whole row with its gap, as a copy of bytes would.
        (
            "beside",
            "raw[first : first + target.shape[-1] + 1] += target.strides[-1] == 1",
        ),
    ],
    ids=["right", "between", "before", "gap"],
)
def test_beside_a_target(judged_here, op, check, body):
    """A mutating op that writes between, before or after its target's elements is caught."""
    result = judged_here(TARGETS.format(op=op, body=body))
    assert result.check in ({check, "values"} if body.startswith("raw[first :") else {check}), (
        result.message
    )


CAPTURED = """
SEEN = []
def kv_append(cache, x, positions, /):
    if positions.numel and ((positions.array < 0) | (positions.array >= cache.shape[1])).any():
        from propolis.errors import OpError
        raise OpError("a position is outside the cache")
    for b, row in enumerate(positions.array):
        cache.array[b, row] = x.array[b]
    {body}
@hookimpl
def propolis_ops(device):
    if device.kind == "cpu":
        yield OpImpl(op="kv_append", fn=kv_append, capture_safe=True,
                     dtypes={{"cache": F32, "positions": {{dtypes.i32}}}})
"""


@pytest.mark.parametrize(
    ("check", "body"),
    [("", "pass"), ("capture", "cache.device.synchronize()")],
)
def test_captured_mutation(judged_here, check, body):
    """Ops with a destination of their own keep their promise of capture, too."""
    result = judged_here(CAPTURED.format(body=body))
    assert result.check == check, result.message


FAKE = """
from propolis_conformance.testing import FakeDevice, device_view
class Provider:
    kind = "fake"
    def enumerate(self):
        yield FakeDevice().properties
    def open(self, index):
        return FakeDevice()
@hookimpl
def propolis_devices(config):
    yield Provider()
KEPT = []
def add(out, a, b, /):
{body}
    device_view(out)[...] = device_view(a) + device_view(b)
@hookimpl
def propolis_ops(device):
    if device.kind == "fake":
        yield OpImpl(op="add", fn=add, device="fake", dtypes=F32{flags})
"""
SAFE = ", capture_safe=True"
BUFFER = "out.device.empty(out.shape, out.dtype)"
TWO = f"x, y = {BUFFER}, {BUFFER}"
IN_TURN = f"x = {BUFFER}; del x; x = {BUFFER}"
# Of the broadcast shapes, the result may be larger than either argument.
BOUND = ", workspace=lambda a, b: 4 * int(np.prod(np.broadcast_shapes(a.shape, b.shape)))"
BOTH = ", workspace=lambda a, b: 8 * max(a.numel, 1) * max(b.numel, 1)"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("check", "body", "flags"),
    [
        ("", "pass", SAFE),
        ("capture", "out.device.synchronize()", SAFE),
        ("capture", BUFFER, f"{SAFE}, workspace=1 << 30"),
        ("leak", f"KEPT.append({BUFFER})", ", workspace=1 << 30"),
        ("runs", "out.device.memory.fail_later()", SAFE),
        ("runs", "out.device.memory.window(out.storage, 0, out.storage.nbytes + 4)", SAFE),
        ("workspace", BUFFER, ""),
        ("workspace", BUFFER, ", workspace=8"),
        ("", BUFFER, BOUND),
        ("", IN_TURN, BOUND),
        ("workspace", TWO, BOUND),
        ("", TWO, BOTH),
        ("contract", "pass", ", workspace=lambda a, b: 0.5"),
    ],
)
def test_on_a_device(judged_here, check, body, flags):
    """Memory that the host cannot reach, on a device of the plugin's own."""
    result = judged_here(FAKE.format(body=f"    {body}", flags=flags))
    assert result.check == check, result.message
    assert result.status == ("failed" if check else "passed")


NOISE = """
import itertools
TURNS = itertools.cycle((-1, 0, 1))  # never the same twice running, as chance would have it
def softmax(out, x, /, dim=-1):
    y = np.exp(x.array - x.array.max(axis=dim, keepdims=True)) if x.numel else x.array
    y = y / y.sum(axis=dim, keepdims=True) if x.numel else y
    out.array[...] = y * np.float32(1 + 5e-7 * next(TURNS))
@hookimpl
def propolis_ops(device):
    if device.kind == "cpu":
        yield OpImpl(op="softmax", fn=softmax, dtypes=F32{flags})
"""


@pytest.mark.parametrize(("flags", "check"), [("", "determinism"), (", deterministic=False", "")])
def test_noise_within_the_tolerance(judged_here, flags, check):
    """Results that are good enough but differ each time are caught where none was declared."""
    result = judged_here(NOISE.format(flags=flags))
    assert result.check == check, result.message
