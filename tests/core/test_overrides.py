from __future__ import annotations

import pytest

from propolis import __version__
from propolis import dtypes
from propolis import ops
from propolis.config import Config
from propolis.dispatch import Rules
from propolis.dispatch import resolve
from propolis.errors import ConfigError
from propolis.runtime import Runtime


def chain(trace):
    """Plugins that may run, in order."""
    return [i.provenance.plugin for i in trace.chain]


def test_named_plugins_go_first_in_that_order(fakes):
    """The others follow as their priorities say; other ops are not touched."""
    impls = [
        fakes.impl(op, plugin=name, priority=p)
        for op in ("add", "mul")
        for name, p in (("a", 300), ("b", 200), ("c", 100), ("d", 0))
    ]
    rules = Rules(overrides={"add": ("d", "c", "absent")})
    adders, multipliers = impls[:4], impls[4:]
    device = fakes.device()
    trace = resolve(ops.add, dtypes.f32, device, adders, rules=rules)
    assert chain(trace) == ["d", "c", "a", "b"]
    assert trace.verdicts[0].reason == "by override (0)"
    assert trace.verdicts[2].reason == "behind d (by override)"
    trace = resolve(ops.mul, dtypes.f32, device, multipliers, rules=rules)
    assert chain(trace) == ["a", "b", "c", "d"]


def test_an_override_admits_nobody_who_cannot(fakes):
    """Dtypes and architectures hold whatever the user prefers."""
    first = fakes.impl(plugin="first", dtypes={dtypes.f16})
    rules = Rules(overrides={"add": ("first",)})
    trace = resolve(ops.add, dtypes.f32, fakes.device(), [first, fakes.impl()], rules=rules)
    assert chain(trace) == ["fake"]
    assert trace.verdicts[1].reason == "highest priority (0)"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", {}),
        ("add=a", {"add": ["a"]}),
        (" matmul = a , b ; add=c;", {"matmul": ["a", "b"], "add": ["c"]}),
    ],
)
def test_the_variable(monkeypatch, text, expected):
    """Ops apart by semicolons, plugins by commas."""
    monkeypatch.setenv("PROPOLIS_OPS", text)
    assert Config.load().ops == expected


@pytest.mark.parametrize("text", ["add", "=a", "add=", "add=,", "add=a;add=b"])
def test_a_variable_that_cannot_be_read(monkeypatch, text):
    """The error names the entry and the variable."""
    monkeypatch.setenv("PROPOLIS_OPS", text)
    with pytest.raises(ConfigError, match=r"(is not OP=PLUGIN|given twice).*from PROPOLIS_OPS"):
        Config.load()


def test_the_file(tmp_path, monkeypatch):
    """A table; its values are lists, or text as in the variable."""
    file = tmp_path / "s.toml"
    file.write_text("[ops]\nmatmul = ['a', 'b']\nadd = 'c'\n")
    monkeypatch.setenv("PROPOLIS_CONFIG", str(file))
    assert Config.load().ops == {"matmul": ["a", "b"], "add": ["c"]}
    assert Config.load(ops="mul=d").ops == {"mul": ["d"]}


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("matmull=cpu_ref", r"ops names the op 'matmull', .*did you mean matmul"),
        ("add=cpu_reff", r"ops\.add names the plugin 'cpu_reff', .*did you mean cpu_ref\?"),
        ("add=zzz", r"'zzz', not installed: there are cpu_ref"),
    ],
)
def test_unknown_names(override, message):
    """A misspelt op or plugin is an error with near matches, never ignored."""
    with pytest.raises(ConfigError, match=message):
        Runtime.start(Config.load(ops=override))


@pytest.mark.usefixtures("unvetted")
def test_the_command_line(cli, site, sources):
    """``--op`` turns the order round, explain says so, and the call goes there."""
    site.plugin("fast", sources.fast_add)
    assert "add (a=f32) on cpu: fast" in cli("explain", "add").out
    done = cli("--op", "add=cpu-ref", "--op", "mul=cpu_ref,fast", "explain", "add")
    assert done.out.splitlines()[:2] == [
        f"add (a=f32) on cpu: cpu_ref (propolis-cpu-ref {__version__})",
        f"  winner: cpu_ref (propolis-cpu-ref {__version__}): by override (0)",
    ]
    assert "standby: fast (fake-fast 1.0): behind cpu_ref (by override)" in done.out
    done = cli("--op", "add", "explain", "add")
    assert (done.code, "from the command line" in done.err) == (2, True)
