"""Several plugins that are new are asked in one child process; who fails there is asked alone."""

from __future__ import annotations

import pytest
from patience import patience

from propolis import Config
from propolis.plugins import PluginHost
from propolis.plugins import discover
from propolis.plugins import vetting
from propolis.plugins.vetting import vet_together
from propolis.records import ProbeResult


YES = "def propolis_probe(): return ProbeResult(True, files=(__file__,))"
NO = "def propolis_probe(): return ProbeResult(False, 'no card')"
DIES = "import os\ndef propolis_probe(): os.abort()"
HANGS = "import time\ndef propolis_probe(): time.sleep(600)"


@pytest.fixture
def children(monkeypatch):
    """What each child was asked."""
    asked = []
    real = vetting._run_child
    monkeypatch.setattr(
        vetting, "_run_child", lambda values, t: (asked.append(tuple(values)), real(values, t))[1]
    )
    return asked


@pytest.fixture
def together(site, tmp_path, children):
    """Install plugins with these sources, and ask; gives who said yes, by name."""

    def run(*sources, timeout=60.0, **options):
        names = [f"probed{number}" for number in range(len(sources))]
        for name, source in zip(names, sources, strict=True):
            if source is not None:  # it is there
                site.plugin(name, source)
        candidates = [c for c in discover() if c.name in names]
        at = {"timeout": patience(timeout), "cache_dir": tmp_path / "cache", **options}
        return {c.name: result for c, result in vet_together(candidates, **at).items()}

    return run


def test_one_child_for_all(together, children) -> None:
    """Who says yes is known, with the files it depends on; the next start asks nobody."""
    found = together(YES, "", YES)
    assert sorted(found) == ["probed0", "probed1", "probed2"]
    assert all(result.ok for result in found.values())
    assert "probed0" in found["probed0"].files[0]
    assert [3] == [len(values) for values in children]
    assert found == together(None, None, None)
    assert len(children) == 1
    assert found == together(None, None, None, fresh=True)
    assert len(children) == 2


@pytest.mark.parametrize("fault", [NO, DIES, "raise ValueError('odd')"])
def test_the_others_are_for_a_child_alone(together, fault) -> None:
    """A refusal or a crash is nobody's answer here, not even of those behind it."""
    found = together(YES, fault, YES)
    assert "probed0" in found
    assert "probed1" not in found
    assert all(result.ok for result in found.values())


@pytest.mark.slow  # long enough for the first to answer on a slow machine
def test_who_hangs_takes_nobody_along(together) -> None:
    """What was said before is known."""
    assert ["probed0"] == list(together(YES, HANGS, YES, timeout=5.0))


def test_one_alone(together, children) -> None:
    """One that is new is left to its own child, which says why not as well."""
    assert together(YES) == {}
    assert children == []


def test_no_child(together, monkeypatch) -> None:
    """Where none can be started each is to say so itself."""

    def broken(*_):
        raise OSError("no processes")

    monkeypatch.setattr(vetting, "_run_child", broken)
    assert together(YES, YES) == {}


def test_everybody_gets_his_own_reason(site, tmp_path, children) -> None:
    """A start with one that dies among others: the others load, and its line says how it ended."""
    for number, source in enumerate((YES, DIES, YES)):
        site.plugin(f"probed{number}", source)
    config = Config(cache_dir=tmp_path / "cache", probe_timeout=patience(60))
    host = PluginHost.load(config)
    reports = {r.candidate.name: r for r in host.reports if r.candidate.name.startswith("probed")}
    assert {"probed0", "probed2"} == {n for n, r in reports.items() if r.stage != "probe"}
    assert "SIGABRT" in reports["probed1"].reason
    # All at once, then the one that died and the one behind it.
    assert [3, 1, 1] == [len(values) for values in children]
    children.clear()
    PluginHost.load(config)
    assert children == []


def test_a_result_is_a_results(together) -> None:
    """It is what the plugin's own child would have said."""
    (first, *_) = together("", "").values()
    assert first == ProbeResult(ok=True)
