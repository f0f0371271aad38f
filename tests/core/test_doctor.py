from __future__ import annotations

import json
import os
import sys
import textwrap

import pytest

from propolis import __version__
from propolis.config import Config
from propolis.doctor import examine
from propolis.records import ProbeResult


def findings(**settings):
    """All findings by name."""
    return {f.name: f for f in examine(lambda: Config.load(**settings))}


def status(found, name):
    """(status, summary, remedy) of a finding."""
    result = found[name].result
    return result.status, result.summary, result.remedy


def test_a_healthy_installation():
    """Nothing to do; every finding that is not ok would have a remedy."""
    found = findings()
    assert {f.result.status for f in found.values()} == {"ok"}
    assert {"python", "settings", "plugins.installed", "cache", "devices", "plugin.cpu_ref"} <= set(
        found
    )
    assert [f.phase for f in found.values()] == sorted(f.phase for f in found.values())


def test_phase_one_imports_no_plugin(site, tmp_path):
    """It works when importing a plugin is what kills the process."""
    marker = tmp_path / "imported"
    site.plugin("deadly", f"open({str(marker)!r}, 'w')\nimport os\nos._exit(9)")
    names = [f.name for f in examine(Config.load, import_plugins=False)]
    assert "plugins.policy" in names
    assert not marker.exists()
    assert "fake_deadly" not in sys.modules


def test_wrong_settings_are_a_finding(monkeypatch):
    """Doctor says so and stops there: nothing else can be judged."""
    monkeypatch.setenv("PROPOLIS_THREADS", "many")
    found = findings()
    assert status(found, "settings")[0] == "error"
    assert "threads = 'many'" in status(found, "settings")[1]
    assert "devices" not in found


def test_more_threads_than_cores_are_a_warning(monkeypatch):
    """They only slow each other down."""
    monkeypatch.setattr("propolis.doctor.usable_cores", lambda: 2)
    said = "3 threads on 2 cores wait for each other"
    assert status(findings(threads=3), "settings") == (
        "warning",
        said,
        "threads = 0 takes one per core",
    )
    for threads in (0, 2):
        assert status(findings(threads=threads), "settings")[0] == "ok"


def test_unknown_variables_are_a_warning(monkeypatch):
    """With near matches in the remedy, where there are any."""
    monkeypatch.setenv("PROPOLIS_THREDS", "1")
    kind, summary, remedy = status(findings(), "settings")
    assert (kind, summary) == ("warning", "variables that mean nothing: PROPOLIS_THREDS")
    assert "PROPOLIS_THREADS" in remedy
    monkeypatch.delenv("PROPOLIS_THREDS")
    monkeypatch.setenv("PROPOLIS_0123456789", "1")
    assert status(findings(), "settings")[2] == "unset them"


def test_versions_that_differ(site):
    """Our distributions are released together; strangers' have versions of their own."""
    site.distribution("propolis-workers", "9.9")
    site.distribution("propolis-stranger", "2.0")
    found = findings()
    assert status(found, "distribution.propolis-workers") == (
        "error",
        f"9.9, but propolis-core is {__version__}",
        f"pip install 'propolis-workers=={__version__}'",
    )
    assert status(found, "distribution.propolis-stranger") == ("ok", "2.0", "")


def test_a_damaged_distribution_is_survived(site):
    """A dist-info folder without metadata is no reason to say nothing."""
    site.distribution("propolis-left", metadata="", plugins={"left": "x"})
    assert "devices" in findings()


def test_a_missing_reference(monkeypatch):
    """Without it, ops that nobody serves cannot run."""
    monkeypatch.setattr("propolis.doctor.discovery.discover", list)
    kind, summary, remedy = status(findings(), "plugins.installed")
    assert (kind, remedy) == ("error", "pip install propolis-cpu-ref")
    assert summary.startswith("propolis-cpu-ref is not installed")


def test_names_that_are_claimed_twice(site):
    """All of them, with their claimants."""
    for name in ("dist-a", "dist-b"):
        site.distribution(name, plugins={"x": "m", "y": "m"})
    kind, summary, _ = status(findings(), "plugins.names")
    assert kind == "error"
    assert summary == "x is claimed by dist-a and dist-b; y is claimed by dist-a and dist-b"


def test_the_policy(site):
    """What is disabled is said; a name that is not installed is an error, in both phases."""
    site.plugin("shy")
    found = findings(disable_plugins="shy")
    assert status(found, "plugins.policy")[:2] == (
        "ok",
        "shy: denied by disable_plugins (PROPOLIS_DISABLE_PLUGINS)",
    )
    assert "plugin.shy" not in found
    found = findings(disable_plugins="shyy")
    assert status(found, "plugins.policy")[0] == "error"
    assert status(found, "plugins.load")[0] == "error"


def test_a_cache_that_cannot_be_written(tmp_path):
    """A warning: everything works, more slowly."""
    (tmp_path / "file").write_text("")
    kind, summary, remedy = status(findings(cache_dir=str(tmp_path / "file")), "cache")
    assert kind == "warning"
    assert "cannot be written" in summary
    assert "none knows what raised or crashed before" in summary
    assert "PROPOLIS_CACHE_DIR" in remedy


def test_every_rejected_plugin_is_an_error(site):
    """With its stage, its reason, and how to do without; strict does not end at the first."""
    site.plugin("bad", "1/0")
    site.plugin("lacking", "import nowhere.near")
    site.plugin("worse", "def propolis_probe(): return ProbeResult(False, 'no card')")
    found = findings(strict=True)
    assert status(found, "plugin.bad") == (
        "error",
        "rejected at probe: ZeroDivisionError: division by zero",
        "fix it, or disable it: PROPOLIS_DISABLE_PLUGINS=bad",
    )
    assert status(found, "plugin.worse")[1] == "not for this machine: no card"
    assert status(found, "plugin.lacking")[2].startswith(
        "install what brings the module nowhere, or"
    )
    assert status(found, "plugin.cpu_ref")[0] == "ok"


CHECKS = """
def bad(): raise ValueError("odd")
def leave(): raise SystemExit(0)
def barred(): raise PermissionError(13, "Permission denied", "/some/file")
@hookimpl
def propolis_doctor_checks():
    yield DoctorCheck("sick.good", lambda: CheckResult("warning", "so-so", "drink tea"), {"a": "b"})
    yield DoctorCheck("sick.raises", bad)
    yield DoctorCheck("sick.leaves", leave)
    yield DoctorCheck("sick.barred", barred)
    yield DoctorCheck("sick.none", lambda: None)
    yield DoctorCheck("sick.status", lambda: CheckResult("fine", "x"))
    yield "no check"
"""


@pytest.mark.usefixtures("unvetted")
def test_checks_that_plugins_bring(site):
    """Each is a finding; one that breaks its contract is an error of its own, and no more."""
    site.plugin("sick", CHECKS)
    found = findings()
    author = "report it to the plugin's author"
    assert status(found, "sick.good") == ("warning", "so-so", "drink tea")
    assert found["sick.good"].fields == {"a": "b"}
    assert status(found, "sick.raises") == ("error", "the check raised ValueError: odd", author)
    assert status(found, "sick.leaves")[1] == "the check raised SystemExit: 0"
    denied = "/some/file cannot be used (Permission denied)"
    remedy = "give this user the right to it, or name another"
    assert status(found, "sick.barred") == ("error", denied, remedy)
    assert status(found, "sick.none")[1] == "the check returned None, not a CheckResult"
    fine = "the check's status is 'fine'; supported: ok, warning, error, skipped; it says: x"
    assert status(found, "sick.status")[1] == fine
    assert status(found, "sick.check") == (
        "error",
        "the plugin gave a str, not a DoctorCheck",
        author,
    )


@pytest.mark.usefixtures("unvetted")
def test_checks_that_hang_are_waited_for_once(site):
    """The first is an error, the plugin's others are not run, and the rest goes on."""
    source = """
    import threading
    forever = threading.Event()
    @hookimpl
    def propolis_doctor_checks():
        yield DoctorCheck("slow.first", forever.wait, patience=2)
        yield DoctorCheck("slow.second", lambda: forever.set())
    """
    site.plugin("slow", textwrap.dedent(source))
    found = findings(probe_timeout=0.05)
    assert status(found, "slow.first") == (
        "error",
        "the check hung: no answer in 0.1 s (of probe_timeout)",
        "report it to the plugin's author",
    )
    assert status(found, "slow.second")[:2] == ("skipped", "an earlier check of the plugin hung")
    assert not sys.modules["fake_slow"].forever.is_set()
    sys.modules["fake_slow"].forever.set()
    assert status(found, "plugin.slow")[0] == "ok"


def test_a_hung_probe_is_not_waited_for_again(site, monkeypatch):
    """What a start has found out stands; the finding says how to ask again."""
    asked = []

    def vet(*_args, fresh, **_kwargs):
        asked.append(fresh)
        return ProbeResult(ok=True)

    site.plugin("some")
    monkeypatch.setattr("propolis.plugins.loader.vet", vet)
    findings()
    assert set(asked) == {"unless hung"}


@pytest.mark.usefixtures("unvetted")
def test_a_provider_that_cannot_list_is_its_plugins_finding(site):
    """Devices are listed without it."""
    source = """
    class P:
        kind = "odd"
        def enumerate(self):
            raise RuntimeError("driver gone")
    @hookimpl
    def propolis_devices(config):
        return [P()]
    """
    site.plugin("odd", textwrap.dedent(source))
    found = findings()
    assert status(found, "devices")[0] == "ok"
    assert "driver gone" in status(found, "plugin.odd")[1]


PRODUCT = """
def product(out, a, b, /):
    import numpy as np
    from propolis.cpu import _bytes
    view = lambda t: _bytes(t.storage)[:t.nbytes].view(np.float32).reshape(t.shape)
    np.matmul(view(a), view(b), out=view(out))
    {}
@hookimpl
def propolis_ops(device):
    if device.kind == "toy":
        yield OpImpl(op="matmul", fn=product, device="toy", dtypes={{dtypes.f32}})
"""


@pytest.mark.usefixtures("unvetted")
@pytest.mark.parametrize(
    ("does", "expected"),
    [
        ("pass", ("ok", "numbers there and back, a product by toy (fake-toy 1.0)")),
        ("view(out)[3, 5] += 1", ("error", "wrong numbers: a product by toy (fake-toy 1.0)")),
        ("view(a)[0, 0] += 1", ("error", "wrong numbers: a product by toy (fake-toy 1.0)")),
        ("raise OSError('no code for it')", ("warning", "opened, but a product ran on the CPU: ")),
        ("threading.Event().wait()", ("error", "the check hung: no answer in 0.6 s (of pro")),
    ],
)
def test_devices_are_used(site, sources, does, expected):
    """Each but the CPU multiplies, as workers do first: a listed device may do nothing right."""
    site.plugin("toy", "import threading\n" + sources.toy_device + PRODUCT.format(does))
    found = findings(**({"probe_timeout": 0.2} if "wait" in does else {}))
    kind, summary, remedy = status(found, "device.toy:0")
    assert (kind, summary[: len(expected[1])]) == expected
    assert bool(remedy) == (kind != "ok")
    assert "device.cpu" not in found


@pytest.mark.usefixtures("unvetted")
def test_each_device_answers_for_itself(site, sources):
    """One that hangs, and one whose product the CPU computed, say nothing of another one."""
    two = sources.toy_device.replace('DeviceProperties("toy", 0,', 'DeviceProperties("toy", i,')
    two = two.replace("        yield Device", "        for i in range(3): yield Device")
    acts = "threading.Event().wait() if a.device.id == 'toy:0' else None"
    ops = PRODUCT.format(acts).replace('== "toy"', '== "toy" and device.id != "toy:1"')
    site.plugin("toy", "import threading\n" + two + ops)
    found = findings(probe_timeout=2)
    kinds = {name: f.result.status for name, f in found.items() if name.startswith("device.")}
    assert kinds == {"device.toy:0": "error", "device.toy:1": "warning", "device.toy:2": "ok"}


@pytest.mark.usefixtures("unvetted")
def test_a_device_that_does_not_open(site, sources):
    """What it raised is said; others are tried all the same."""
    closed = sources.toy_device.replace("return Device(", "raise OSError('no memory') or (")
    site.plugin("toy", closed)
    kind, summary, _ = status(findings(), "device.toy:0")
    assert (kind, "no memory" in summary) == ("error", True)


@pytest.mark.usefixtures("unvetted")
def test_a_device_without_kernels(site, sources):
    """What would be computed on the CPU without a word is a warning, and how to find out more."""
    site.plugin("toy", sources.toy_device)
    assert status(findings(), "device.toy:0") == (
        "warning",
        "opened, but a product ran on the CPU: no plugin implements matmul for toy:0",
        "`propolis explain matmul --device toy:0` says more",
    )


# -- the command ---------------------------------------------------------------


def test_the_command_for_people(cli, monkeypatch):
    """Marks, remedies below, exit code 0 with warnings."""
    monkeypatch.setenv("PROPOLIS_THREDS", "1")
    done = cli("doctor", "--no-import")
    assert done.code == 0
    lines = done.out.splitlines()
    at = lines.index("warning settings: variables that mean nothing: PROPOLIS_THREDS")
    assert lines[at + 1].startswith("        -> unset them, or correct the names (")
    assert not any("devices" in line for line in lines)


@pytest.mark.usefixtures("unvetted")
def test_the_command_for_machines(cli, site):
    """One JSON document, fields included; exit code 1 when something is wrong."""
    site.plugin("sick", CHECKS)
    done = cli("doctor", "--json")
    assert done.code == 1
    found = {f["name"]: f for f in json.loads(done.out)}
    assert found["sick.good"] == {
        "phase": 2,
        "name": "sick.good",
        "status": "warning",
        "summary": "so-so",
        "remedy": "drink tea",
        "fields": {"a": "b"},
    }


def test_the_command_with_wrong_settings(cli, monkeypatch):
    """Doctor itself goes on: the settings are a finding, in JSON too."""
    monkeypatch.setenv("PROPOLIS_FALLBACK", "never")
    done = cli("doctor", "--json")
    assert done.code == 1
    assert json.loads(done.out)[-1]["name"] == "settings"


REFUSES = """
def propolis_probe(): return ProbeResult(False, "no card")
@hookimpl
def propolis_doctor_checks():
    yield DoctorCheck("shy.card", lambda: CheckResult("error", "the slot is empty", "plug it in"))
"""


def test_a_plugin_that_says_no_is_asked_why(site):
    """Its own checks run although it is not loaded: they know best what is missing."""
    site.plugin("shy", REFUSES)
    found = findings()
    assert status(found, "shy.card") == ("error", "the slot is empty", "plug it in")
    assert status(found, "plugin.shy")[1] == "not for this machine: no card"


def test_a_plugin_that_crashed_is_not_imported(site, tmp_path):
    """Nor is one that says no but gives checks that fail: its reason is said already."""
    mark = tmp_path / "imported"
    crash = f"""
    import os
    open({str(mark)!r}, "a").write(f"{{os.getpid()}};")
    def propolis_probe(): os.abort()
    """
    site.plugin("crash", textwrap.dedent(crash) + REFUSES.replace("shy", "crash").split("\n", 2)[2])
    site.plugin("liar", REFUSES.replace("    yield", "    1/0; yield").replace("shy", "liar"))
    site.plugin("terse", "def propolis_probe(): return ProbeResult(False, 'no')")
    found = findings()
    assert "crash.card" not in found
    assert "liar.card" not in found
    # With the others, then alone; not by us.
    assert str(os.getpid()) not in mark.read_text().split(";")
    assert mark.read_text().count(";") == 2
    assert status(found, "plugin.terse")[1] == "not for this machine: no"


@pytest.mark.usefixtures("unvetted")
def test_plugins_that_cannot_list_their_devices(cli, site, sources):
    """The table of plugins says so too, where they would pass for loaded ones."""
    site.plugin("toy", sources.toy_device.replace("yield Device", "1/0; yield Device"))
    (row,) = (p for p in json.loads(cli("plugins", "--json").out) if p["name"] == "toy")
    assert (row["status"], "division by zero" in row["reason"]) == ("rejected", True)
