from __future__ import annotations

import pytest

from propolis import dtypes
from propolis import ops
from propolis.config import Config
from propolis.dispatch import Rules
from propolis.dispatch import resolve
from propolis.errors import ConfigError
from propolis.runtime import Runtime


def test_exact_leaves_out_who_rounds(fakes):
    """Whatever its priority; the reason says so.  By default speed decides."""
    rough = fakes.impl(plugin="rough", priority=300, exact=False)
    device, exact = fakes.device(), fakes.impl(plugin="exact")
    trace = resolve(ops.add, dtypes.f32, device, [rough, exact], rules=Rules(exact=True))
    assert trace.winner is exact
    assert trace.rejections == (
        "rough (dist-rough 1.0): it rounds its inputs further, and numerics is 'exact'"
    )
    assert resolve(ops.add, dtypes.f32, device, [rough, exact]).winner is rough


def test_an_override_does_not_undo_it(fakes):
    """Naming a plugin says who goes first, not what it may do."""
    rules = Rules(overrides={"add": ("rough",)}, exact=True)
    rough = fakes.impl(plugin="rough", exact=False)
    assert resolve(ops.add, dtypes.f32, fakes.device(), [rough], rules=rules).winner is None


def test_the_setting(monkeypatch):
    """``fast`` unless said otherwise; other words are errors."""
    assert not Runtime.start(Config.load()).rules.exact
    monkeypatch.setenv("PROPOLIS_NUMERICS", "exact")
    assert Runtime.start(Config.load()).cpu.table.rules.exact
    with pytest.raises(ConfigError, match="numerics = 'precise'"):
        Config.load(numerics="precise")


def test_the_reference_is_exact(cpu):
    """With ``exact`` the CPU still serves every op."""
    for spec in ops.catalogue().values():
        key = spec.key(*(next(iter(kinds)) for kinds in spec.dtypes.values()))
        chain = cpu.table.trace(spec, key).chain
        assert any(impl.exact for impl in chain)


@pytest.mark.usefixtures("unvetted")
def test_explain(cli, site, sources):
    """The option reaches the table."""
    site.plugin("fast", sources.fast_add.replace("priority=100", "priority=100, exact=False"))
    assert "add (a=f32) on cpu: fast" in cli("explain", "add").out
    done = cli("--numerics", "exact", "explain", "add")
    assert "rejected: fast (fake-fast 1.0): it rounds" in done.out
