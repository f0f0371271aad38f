from __future__ import annotations

import pytest
from structlog.testing import capture_logs

from propolis.config import Config
from propolis.errors import ConfigError
from propolis.errors import PluginError
from propolis.plugins import PluginHost
from propolis.plugins.loader import load_object


def load(**settings):
    """The reports of all plugins but the reference, by name."""
    host = PluginHost.load(Config.load(**settings))
    return host, {r.candidate.name: r for r in host.reports if not r.candidate.is_essential}


def loaded(host):
    """Names of the plugins that answer hooks."""
    return [r.candidate.name for r in host.reports if r.status == "loaded"]


OPS = "@hookimpl\ndef propolis_ops(device): return []\n"


# -- good plugins --------------------------------------------------------------


def test_a_good_plugin_is_loaded(site):
    """With a probe in a child, an import here, and what it says of itself in the report."""
    site.plugin("good", OPS + "def propolis_probe(): return ProbeResult(True)")
    host, reports = load()
    report = reports["good"]
    assert (report.status, report.stage, report.reason) == ("loaded", None, "")
    assert report.description == "a fake"
    assert report.hooks == ["propolis_ops", "propolis_plugin"]
    assert loaded(host) == ["good", "cpu_ref"]


@pytest.mark.usefixtures("unvetted")
def test_an_object_in_a_module_is_a_plugin(site):
    """An entry point may name a class or an instance, whose other attributes are not run."""
    site.module(
        "boxes",
        """
        from propolis import PluginInfo, hookimpl
        class Plugin:
            @hookimpl
            def propolis_plugin(self):
                return PluginInfo("boxed", api=(1, 3))
            @property
            def trap(self):
                raise RuntimeError("a property was run")
        plugin = Plugin()
        """,
    )
    site.distribution("boxes", plugins={"boxed": "boxes:plugin"})
    host, reports = load()
    assert reports["boxed"].reason == ""
    assert loaded(host) == ["boxed", "cpu_ref"]


@pytest.mark.usefixtures("unvetted")
def test_names_are_compared_as_people_write_them(site):
    """A plugin that calls itself rocm-fake is the entry point Rocm_Fake."""
    site.plugin("Rocm-Fake", OPS)
    host, _ = load()
    assert loaded(host) == ["rocm_fake", "cpu_ref"]


@pytest.mark.usefixtures("unvetted")
def test_all_wrong_hooks_are_told_at_once(site):
    """Signatures and names: an author mends them in one go."""
    hooks = ("propolis_ops(device, gadget)", "propolis_devices(conf)", "propolis_opss()", "zzz()")
    site.plugin("bad", "\n".join(f"@hookimpl\ndef {hook}: return []" for hook in hooks))
    _, reports = load()
    assert reports["bad"].stage == "register"
    for said in ("{'gadget'}", "{'conf'}", "no hook propolis_opss: did you", "no hook zzz: the"):
        assert said in reports["bad"].reason


def test_load_object():
    """Entry-point values: a module, or an attribute path in one."""
    import os.path

    assert load_object("os.path") is os.path
    assert load_object("os : path.join") is os.path.join
    with pytest.raises(AttributeError):
        load_object("os:no.such")


# -- every way to fail ---------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "stage", "reason"),
    [
        ("import no_such_module", "import", "importing it raised ModuleNotFoundError: No module"),
        ("raise SystemExit(3)", "import", "importing it raised SystemExit: 3"),
        ("1/0", "import", "importing it raised ZeroDivisionError: division by zero"),
        (
            "raise ValueError('two\\n  lines')",
            "import",
            "importing it raised ValueError: two lines",
        ),
        ("x = (", "import", "importing it raised SyntaxError"),
        (
            "@hookimpl\ndef propolis_ops(gadget): return []",
            "register",
            "Plugin 'bad' for hook 'propolis_ops'",
        ),
        (
            "@hookimpl\ndef propolis_opss(device): return []",
            "register",
            "there is no hook propolis_opss: did you mean propolis_ops?",
        ),
        (
            "@hookimpl\ndef zzz(): return []",
            "register",
            "there is no hook zzz: the hooks are propolis_plugin, propolis_probe",
        ),
    ],
)
@pytest.mark.usefixtures("unvetted")
def test_failures(site, source, stage, reason):
    """Each is a row in the report and a log line; the others load."""
    site.plugin("bad", source)
    site.plugin("good", OPS)
    with capture_logs() as logs:
        host, reports = load()
    assert (reports["bad"].status, reports["bad"].stage) == ("rejected", stage)
    assert reports["bad"].reason.startswith(reason)
    assert "\n" not in reports["bad"].reason
    assert loaded(host) == ["good", "cpu_ref"]
    (line,) = [line for line in logs if line["event"] != "plugin.loaded"]
    assert line == {
        "event": "plugin.rejected",
        "log_level": "warning",
        "plugin": "bad",
        "distribution": "fake-bad",
        "version": "1.0",
        "stage": stage,
        "reason": reports["bad"].reason,
    }


@pytest.mark.parametrize(
    ("source", "stage", "reason"),
    [
        ("", "register", "it implements no hook: decorate functions with propolis.hookimpl; the "),
        ("def propolis_plugin(): return 1", "register", "it implements no hook"),
        (
            "import pluggy\n@pluggy.HookimplMarker('other')\ndef propolis_plugin(): return 1",
            "register",
            "it implements no hook",
        ),
        (OPS, "api", "it does not implement propolis_plugin(), which gives its API level"),
        (
            "@hookimpl\ndef propolis_plugin(): return 'bad'",
            "api",
            "propolis_plugin() returned a str, not a PluginInfo",
        ),
        ("@hookimpl\ndef propolis_plugin(): 1/0", "api", "propolis_plugin() raised ZeroDivision"),
        (
            "@hookimpl\ndef propolis_plugin(): raise SystemExit('bye')",
            "api",
            "propolis_plugin() raised SystemExit: bye",
        ),
        (
            "@hookimpl\ndef propolis_plugin(): return PluginInfo('other', api=1)",
            "name",
            "its entry point is 'bad' but it calls itself 'other'",
        ),
        (
            "@hookimpl\ndef propolis_plugin(): return PluginInfo(None, api=1)",
            "api",
            "propolis_plugin() returned PluginInfo(name=None",
        ),
        (
            """
            import sys
            M = type("M", (type,), {"__dir__": None})
            sys.modules[__name__] = M("x", (), {})
            """,
            "register",
            "looking into it raised TypeError",
        ),
    ],
)
@pytest.mark.usefixtures("unvetted")
def test_failures_without_an_identity(site, source, stage, reason):
    """A plugin that does not say who it is cannot be loaded, and it is said why."""
    site.plugin("bad", source, info=False)
    host, reports = load()
    assert (reports["bad"].status, reports["bad"].stage) == ("rejected", stage)
    assert reports["bad"].reason.startswith(reason)
    assert loaded(host) == ["cpu_ref"]


@pytest.mark.parametrize(
    ("api", "reason"),
    [
        (2, "it supports API levels 2 to 2, this core 1 to 1: upgrade propolis-core"),
        ((2, 5), "it supports API levels 2 to 5, this core 1 to 1: upgrade propolis-core"),
        (0, "it supports API levels 0 to 0, this core 1 to 1: upgrade bad"),
        ((2, 1), "propolis_plugin() returned PluginInfo(name='bad', api=(2, 1)"),
        ("12", "propolis_plugin() returned PluginInfo(name='bad', api='12'"),
        (("1", "2"), "propolis_plugin() returned PluginInfo"),
        ((1, 2, 3), "propolis_plugin() returned PluginInfo"),
        (None, "propolis_plugin() returned PluginInfo"),
        ([1, 1], "propolis_plugin() returned PluginInfo"),
    ],
)
@pytest.mark.usefixtures("unvetted")
def test_api_levels(site, api, reason):
    """Both sides' levels and who must be upgraded; nonsense is named as what it is."""
    site.plugin("bad", OPS, api=api)
    _, reports = load()
    assert (reports["bad"].status, reports["bad"].stage) == ("rejected", "api")
    assert reports["bad"].reason.startswith(reason)


@pytest.mark.parametrize("api", [1, (0, 1), (1, 9), (0, 9)])
@pytest.mark.usefixtures("unvetted")
def test_api_ranges_that_overlap(site, api):
    """One common level is enough."""
    site.plugin("good", OPS, api=api)
    host, _ = load()
    assert loaded(host) == ["good", "cpu_ref"]


@pytest.mark.parametrize("api", [1, (0, 1), 2, (1, 2)])
@pytest.mark.usefixtures("unvetted")
def test_an_older_api_level_loads_and_is_told(site, monkeypatch, api):
    """While both levels are supported the plugin works; the log says that it must be upgraded."""
    monkeypatch.setattr("propolis.plugins.loader.API_LEVEL", 2)
    site.plugin("older", OPS, api=api)
    site.plugin("newer", OPS, api=2)
    with capture_logs() as events:
        host, _ = load()
    assert loaded(host)[:2] == ["newer", "older"]
    told = [e for e in events if e["event"] == "plugin.deprecated" and e["plugin"] == "older"]
    keys = ("distribution", "version", "api", "current", "remedy")
    expected = ("fake-older", "1.0", 1, 2, "upgrade fake-older")
    assert [tuple(e[k] for k in keys) for e in told] == ([] if api in (2, (1, 2)) else [expected])


def test_a_probe_that_aborts_or_says_no(site):
    """The plugin is out, this process lives, the others load."""
    site.plugin("aborts", "import os\ndef propolis_probe(): os.abort()")
    site.plugin("refuses", "def propolis_probe(): return ProbeResult(False, 'no card')")
    site.plugin("crashes", "import ctypes\nctypes.string_at(0)")
    host, reports = load()
    assert {n: r.stage for n, r in reports.items()} == dict.fromkeys(reports, "probe")
    assert "SIGABRT" in reports["aborts"].reason
    assert "SIGSEGV" in reports["crashes"].reason
    assert reports["refuses"].reason == "no card"
    assert loaded(host) == ["cpu_ref"]


@pytest.mark.usefixtures("unvetted")
def test_an_entry_point_that_names_nothing(site):
    """None is no plugin; pluggy would take it in silence."""
    site.module("hollow", "plugin = None")
    site.distribution("hollow", plugins={"hollow": "hollow:plugin"})
    _, reports = load()
    assert (reports["hollow"].stage, reports["hollow"].reason) == (
        "import",
        "its entry point hollow:plugin is None",
    )


@pytest.mark.usefixtures("unvetted")
def test_one_object_under_two_names(site):
    """The second is refused, the first stays."""
    site.plugin("good", OPS)
    site.distribution("zz-alias", plugins={"alias": "fake_good"})
    host, reports = load()
    assert loaded(host) == ["good", "cpu_ref"]
    assert (reports["alias"].status, reports["alias"].stage) == ("rejected", "register")
    assert reports["alias"].reason.startswith("Plugin already registered under a different name")


@pytest.mark.usefixtures("unvetted")
def test_two_distributions_claim_one_name(site):
    """Neither is loaded, and both are named."""
    site.plugin("same", OPS, dist="dist-a")
    site.distribution("dist-b", plugins={"Same": "fake_same"})
    host, _ = load()
    rows = [r for r in host.reports if r.candidate.name == "same"]
    assert [r.stage for r in rows] == ["name", "name"]
    reason = "several distributions claim this name: dist-a and dist-b; remove one"
    assert [r.reason for r in rows] == [reason] * 2


@pytest.mark.usefixtures("unvetted")
def test_the_references_name_is_reserved(site, monkeypatch):
    """A stranger cannot be what every op falls back to, nor stop the real one."""
    site.plugin("cpu_ref", OPS, dist="stranger")
    host, reports = load()
    reason = "this name belongs to propolis-cpu-ref; give the plugin another"
    assert (reports["cpu_ref"].stage, reports["cpu_ref"].reason) == ("name", reason)
    assert [r.candidate.distribution for r in host.reports if r.status == "loaded"] == [
        "propolis-cpu-ref"
    ]
    from propolis.plugins import loader

    only = [c for c in loader.discover() if c.distribution == "stranger"]
    monkeypatch.setattr(loader, "discover", lambda: only)
    _, reports = load()
    assert reports["cpu_ref"].reason == reason


@pytest.mark.usefixtures("unvetted")
def test_keyboard_interrupt_passes(site):
    """Who presses Ctrl-C while a plugin is imported wants out."""
    site.plugin("slow", "raise KeyboardInterrupt")
    with pytest.raises(KeyboardInterrupt):
        load()


# -- policy --------------------------------------------------------------------


def test_a_denied_plugin_is_not_imported(site, tmp_path):
    """Neither here nor in a child; the report says who denied it, the log only whispers."""
    marker = tmp_path / "imported"
    site.plugin("shy", f"open({str(marker)!r}, 'w')\n{OPS}")
    with capture_logs() as logs:
        _, reports = load(disable_plugins="shy")
    report = reports["shy"]
    assert (report.status, report.stage) == ("disabled", "policy")
    assert report.reason == "denied by disable_plugins (PROPOLIS_DISABLE_PLUGINS)"
    (line,) = [line for line in logs if line["plugin"] == "shy"]
    assert (line["event"], line["log_level"]) == ("plugin.disabled", "info")
    _, reports = load(plugins="")
    assert reports["shy"].reason == "not in the allow list plugins (PROPOLIS_PLUGINS)"
    assert not marker.exists()


def test_the_policy_of_the_environment(site, monkeypatch):
    """The variables that people set."""
    site.plugin("shy", OPS)
    monkeypatch.setenv("PROPOLIS_DISABLE_PLUGINS", "Shy")
    assert loaded(load()[0]) == ["cpu_ref"]
    monkeypatch.setenv("PROPOLIS_PLUGINS", "shyy")
    with pytest.raises(ConfigError, match=r"plugins names shyy, .* did you mean shy\?"):
        load()


@pytest.mark.usefixtures("unvetted")
def test_strict_makes_a_failure_fatal(site):
    """The error names the plugin, its distribution and why; a disabled plugin is no failure."""
    site.plugin("bad", "1/0")
    with pytest.raises(PluginError, match=r"plugin bad \(fake-bad 1\.0\): importing it raised Zer"):
        load(strict=True)
    assert loaded(load(strict=True, disable_plugins="bad")[0]) == ["cpu_ref"]


# -- hooks ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("1/0", "propolis_doctor_checks raised ZeroDivisionError: division by zero"),
        ("yield 1; yield 2; raise ValueError('midway')", "propolis_doctor_checks raised ValueErr"),
        ("return 5", "propolis_doctor_checks raised TypeError: 'int' object is not iterable"),
        ("raise SystemExit(0)", "propolis_doctor_checks raised SystemExit: 0"),
    ],
)
@pytest.mark.usefixtures("unvetted")
def test_a_hook_that_raises(site, body, reason):
    """The plugin is out, and nothing it yielded before is used; the others' answers stay."""
    site.plugin("a-good", "@hookimpl\ndef propolis_doctor_checks(): return [7]")
    site.plugin("bad", f"@hookimpl\ndef propolis_doctor_checks():\n    {body}")
    site.plugin("z-good", "@hookimpl\ndef propolis_doctor_checks(): yield 8; yield 9")
    host, reports = load()
    answers = [(s.plugin, a) for s, a in host.each("propolis_doctor_checks")]
    assert answers == [("a_good", [7]), ("z_good", [8, 9])]
    assert (reports["bad"].status, reports["bad"].stage) == ("rejected", "hooks")
    assert reports["bad"].reason.startswith(reason)
    assert loaded(host) == ["a_good", "z_good", "cpu_ref"]
    assert len(list(host.each("propolis_doctor_checks"))) == 2


@pytest.mark.usefixtures("unvetted")
def test_a_hook_that_answers_none(site):
    """No answer is no answer."""
    site.plugin("mute", "@hookimpl\ndef propolis_doctor_checks(): pass")
    host, _ = load()
    assert list(host.each("propolis_doctor_checks")) == []
    assert "mute" in loaded(host)


@pytest.mark.usefixtures("unvetted")
def test_a_hook_may_take_fewer_arguments(site):
    """Arguments are given by name, and only those that are asked for."""
    site.plugin("modest", "@hookimpl\ndef propolis_devices(): return []")
    host, _ = load()
    assert [a for _, a in host.each("propolis_devices", config=None)] == [[]]


@pytest.mark.usefixtures("unvetted")
def test_a_hook_that_raises_is_fatal_when_strict(site):
    """Strict holds for the plugin's whole life, not for its import alone."""
    site.plugin("bad", "@hookimpl\ndef propolis_doctor_checks(): 1/0")
    host, _ = load(strict=True)
    with pytest.raises(PluginError, match="propolis_doctor_checks raised ZeroDivisionError"):
        list(host.each("propolis_doctor_checks"))


@pytest.mark.usefixtures("unvetted")
def test_what_the_consumer_raises_is_not_the_plugins_fault(site):
    """An error in the loop body leaves the plugin loaded."""
    site.plugin("good", "@hookimpl\ndef propolis_doctor_checks(): return [1]")
    host, _ = load()
    with pytest.raises(ZeroDivisionError):  # noqa: PT012
        for _ in host.each("propolis_doctor_checks"):
            _ = 1 / 0
    assert "good" in loaded(host)


@pytest.mark.usefixtures("unvetted")
def test_rejecting_twice_keeps_the_first_reason(site):
    """What is out stays out for what put it there; unknown names are nobody's."""
    site.plugin("bad", OPS)
    host, reports = load()
    host.reject("bad", "first")
    host.reject("bad", "second")
    host.reject("nobody", "third")
    assert reports["bad"].reason == "first"


@pytest.mark.usefixtures("unvetted")
def test_code_that_takes_long_is_named(site, monkeypatch):
    """Who, and what is waited for, is said while it lasts; what is done in time says nothing."""
    monkeypatch.setattr("propolis.plugins.loader.PATIENCE", 0.05)
    slow = "import time\n{}@hookimpl\ndef propolis_ops(device):\n    {}return []\n"
    site.plugin("importing", slow.format("time.sleep(0.5)\n", ""))
    site.plugin("offering", slow.format("", "time.sleep(0.5)\n    "))
    with capture_logs() as logs:
        host, _ = load()
        list(host.each("propolis_ops", device=None))
    said = {(e["plugin"], e["doing"]): e for e in logs if e["event"] == "plugin.slow"}
    assert said.keys() >= {("importing", "import"), ("offering", "propolis_ops")}
    told = said["offering", "propolis_ops"]
    assert told["distribution"] == "fake-offering"
    assert (told["version"], told["seconds"]) == ("1.0", 0.05)
    assert {"importing", "offering"} <= set(loaded(host))
