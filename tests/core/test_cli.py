from __future__ import annotations

import errno
import json
import os

import click
import pytest

from propolis import __version__
from propolis import default_runtime
from propolis.cli import cli as group


# -- plugins -------------------------------------------------------------------


def test_plugins_for_people(cli, site):
    """A row each: loaded with its description, disabled and rejected with the reason."""
    site.plugin("bad", "1/0")
    site.plugin("shy")
    done = cli("--disable-plugins", "shy", "plugins")
    assert done.code == 0
    rows = {line.split()[0]: line for line in done.out.splitlines() if line.strip()}
    assert "loaded" in rows["cpu_ref"]
    assert "every op in numpy" in rows["cpu_ref"]
    assert "rejected" in rows["bad"]
    assert "ZeroDivisionError: division by zero" in rows["bad"]
    assert "denied by disable_plugins" in rows["shy"]
    assert json.loads(done.err.splitlines()[0])["event"] == "plugin.rejected"


def test_plugins_for_machines(cli, site):
    """Every fact of the report."""
    site.plugin("bad", "1/0")
    (bad,) = [p for p in json.loads(cli("plugins", "--json").out) if p["name"] == "bad"]
    assert bad == {
        "name": "bad",
        "distribution": "fake-bad",
        "version": "1.0",
        "entry_point": "fake_bad",
        "status": "rejected",
        "stage": "probe",
        "reason": "ZeroDivisionError: division by zero",
        "description": "",
        "hooks": [],
    }


def test_reprobe(cli, site, tmp_path):
    """It asks a probe whose answer is known."""
    file = tmp_path / "runs"
    site.plugin(
        "counts",
        f"def propolis_probe():\n    open({str(file)!r}, 'a').write('x')\n"
        "    return ProbeResult(True)\n@hookimpl\ndef propolis_ops(device): return []",
    )
    for arguments in (["plugins"], ["plugins"], ["plugins", "--reprobe"]):
        cli(*arguments)
    assert file.read_text() == "xx"


@pytest.mark.usefixtures("unvetted")
def test_an_empty_allow_list(cli, site):
    """``--plugins ''`` loads none but the reference, as the variable does."""
    site.plugin("shy", "@hookimpl\ndef propolis_ops(device): return []")
    rows = {p["name"]: p["status"] for p in json.loads(cli("plugins", "--json").out)}
    assert rows == {"shy": "loaded", "cpu_ref": "loaded"}
    rows = json.loads(cli("--plugins", "", "plugins", "--json").out)
    assert {p["name"]: p["status"] for p in rows} == {"shy": "disabled", "cpu_ref": "loaded"}


@pytest.mark.usefixtures("unvetted")
def test_strict(cli, site):
    """A rejected plugin ends the command with 3, in JSON mode with nothing on standard output."""
    site.plugin("bad", "1/0")
    done = cli("--strict", "plugins", "--json")
    assert (done.code, done.out) == (3, "")
    assert done.err.startswith("error: plugin bad (fake-bad 1.0): importing it raised ZeroDiv")
    remedy = "; disable_plugins = bad leaves it out, and without strict it is a warning\n"
    assert done.err.endswith(remedy)


# -- devices and ops -----------------------------------------------------------


@pytest.mark.usefixtures("unvetted")
def test_devices(cli, site, sources):
    """The CPU and what plugins bring; a plugin's extra facts replace none of ours."""
    site.plugin("toy", sources.toy_device)
    lines = cli("devices").out.splitlines()
    assert any(line.split()[:4] == ["toy:0", "Toy", "One", "toy1"] for line in lines)
    assert lines[-1].startswith("threads on the cpu: ")
    assert lines[-1].endswith(", one per core that this process may use")
    cpu, toy = json.loads(cli("devices", "--json").out)
    assert cpu["threads"] == default_runtime().cpu.threads
    assert toy == {
        "id": "toy:0",
        "name": "Toy One",
        "arch": "toy1",
        "total_memory": 2**30,
        "sm": "4",
    }


@pytest.mark.usefixtures("unvetted")
def test_ops(cli, site, sources):
    """Who serves each op, with dtypes where that differs."""
    site.plugin("fast", sources.fast_add)
    rows = {line.split()[0]: line for line in cli("ops").out.splitlines() if line.strip()}
    assert "fast (fake-fast 1.0) (f32)" in rows["add"]
    assert "cpu_ref" in rows["add"]
    assert "fast" not in rows["mul"]
    found = {o["op"]: o for o in json.loads(cli("ops", "--json").out)}
    assert found["add"]["served_by"]["fast (fake-fast 1.0)"] == ["f32"]
    floats = ["f64", "f32", "f16", "bf16", "f8e4m3", "f8e5m2"]
    assert found["qmatmul"]["dispatches_on"]["x"] == floats
    assert found["add"]["family"] == "binary"
    assert found["add"]["signature"].startswith("add(a: 'Tensor', b: 'Tensor', /)")


@pytest.mark.usefixtures("unvetted")
def test_ops_of_a_device_that_has_none(cli, site, sources):
    """Everything is the CPU's, and it says so."""
    site.plugin("toy", sources.toy_device)
    found = json.loads(cli("ops", "--device", "toy", "--json").out)
    assert {who for o in found for who in o["served_by"]} == {
        f"the cpu: cpu_ref (propolis-cpu-ref {__version__})"
    }


# -- explain -------------------------------------------------------------------


def test_explain_shows_the_winner_and_the_broken(cli, site, sources):
    """A plugin takes an op over, a broken one is skipped: both are there, with reasons."""
    site.plugin("fast", sources.fast_add)
    site.plugin("broken", "raise ValueError('no good')")
    done = cli("explain", "add", "--dtype", "f32", "--device", "cpu")
    assert done.code == 0
    reference = f"cpu_ref (propolis-cpu-ref {__version__})"
    assert done.out.splitlines() == [
        "add (a=f32) on cpu: fast (fake-fast 1.0)",
        "  winner: fast (fake-fast 1.0): highest priority (100)",
        "          wrong on purpose",
        f"  standby: {reference}: behind fast (priority 100 to 0)",
        "  rejected: plugin broken (fake-broken 1.0): ValueError: no good",
    ]
    done = cli("explain", "add", "--dtype", "f16", "--json")
    found = json.loads(done.out)
    assert found["winner"] == reference
    assert found["candidates"][0] == {
        "plugin": "fast",
        "distribution": "fake-fast",
        "version": "1.0",
        "variant": "",
        "priority": 100,
        "status": "rejected",
        "reason": "a is f16; it takes f32",
        "notes": "wrong on purpose",
    }
    assert [p["name"] for p in found["not_loaded"]] == ["broken"]


@pytest.mark.usefixtures("unvetted")
def test_explain_the_last_rung(cli, site, sources):
    """On a device without the op, the CPU's server is named."""
    site.plugin("toy", sources.toy_device)
    lines = cli("explain", "add", "--device", "toy").out.splitlines()
    reference = f"cpu_ref (propolis-cpu-ref {__version__})"
    assert lines == [
        f"add (a=f32) on toy:0: the cpu: {reference}",
        "  no loaded plugin implements add for this kind of device",
        f"  last rung, with copies: cpu: {reference}",
    ]
    found = json.loads(cli("explain", "add", "--device", "toy", "--json").out)
    assert found["winner"] is None
    assert found["cpu"]["winner"] == reference


def test_explain_an_op_that_nobody_serves(cli, monkeypatch):
    """Nobody is an answer."""
    monkeypatch.setattr("propolis_cpu_ref.ops_binary.OPS", ())
    assert cli("explain", "add").out.startswith("add (a=f32) on cpu: nobody\n")


@pytest.mark.parametrize(
    ("op", "given", "key"),
    [
        ("kv_append", ["--dtype", "f16"], ["f16", "i32"]),
        ("kv_append", ["--dtype", "i64"], ["i64", "i64"]),
        ("qmatmul", ["--dtype", "q4_k"], ["f32", "q4_k"]),
        ("qmatmul", ["--dtype", "f16, Q8_0"], ["f16", "q8_0"]),
        ("rope", [], ["f32", "i32"]),
    ],
)
def test_explain_fills_in_dtypes(cli, op, given, key):
    """One dtype stands for every parameter that takes it; the others get a usual one."""
    assert json.loads(cli("explain", op, *given, "--json").out)["dtypes"] == key


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["ad"], "error: there is no op 'ad'; did you mean add?"),
        (["zzz"], "error: there is no op 'zzz'; `propolis ops` lists them"),
        (["add", "--dtype", "fp32"], "error: unknown dtype 'fp32': did you mean f32"),
        (["add", "--dtype", "q4_k"], "error: add: a is q4_k; supported: f64"),
        (["add", "--dtype", "f32,"], "error: unknown dtype ''"),
        (["add", "--dtype", "f32,f32"], "error: add: dispatches on a, got dtypes (f32, f32)"),
        (["add", "--device", "rocm:9"], "error: no device 'rocm:9'; present: cpu"),
    ],
)
def test_explain_what_is_not_there(cli, arguments, message):
    """Exit code 2, one line, near matches."""
    done = cli("explain", *arguments)
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith(message)
    assert done.err.count("\n") == 1


# -- settings ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--log-level", "loud", "plugins"], "error: log_level = 'loud': Input should be 'debug'"),
        (["--plugins", "nope", "plugins"], "error: plugins names nope, not installed; installed:"),
        (
            ["--op", "add", "plugins"],
            "error: ops = 'add': 'add' is not OP=PLUGIN[,PLUGIN...] (from",
        ),
        (["--disable-plugins", "cpu_ref", "plugins"], "error: disable_plugins names cpu_ref:"),
    ],
)
def test_wrong_settings(cli, arguments, message):
    """Exit code 2 and one line."""
    done = cli(*arguments)
    assert done.code == 2
    assert done.err.startswith(message)


@pytest.mark.parametrize("arguments", [["frobnicate"], ["plugins", "--frob"], ["explain"], ["-x"]])
def test_wrong_usage(cli, arguments):
    """One line as of any error, exit code 2, and where to read on."""
    done = cli(*arguments)
    assert done.code == 2
    assert (done.err.startswith("error: "), done.err.count("\n")) == (True, 1)
    assert "--help` lists what can be given" in done.err


def test_every_command_takes_h(cli):
    """As the docs say; subcommands and contributed commands too."""

    def paths(command, path):
        yield path
        context = click.Context(command)
        for name in command.list_commands(context) if isinstance(command, click.Group) else ():
            yield from paths(command.get_command(context, name), [*path, name])

    found = list(paths(group, []))
    assert ["quarantine", "list"] in found
    for path in found:
        done = cli(*path, "-h")
        assert (done.code, done.err) == (0, "")
        assert done.out.startswith(" ".join(["Usage: propolis", *path]))
        assert "-h, --help" in done.out


def test_unknown_variables_are_warned_of(cli, monkeypatch):
    """A typo in the environment is not silent."""
    monkeypatch.setenv("PROPOLIS_THREDS", "1")
    line = json.loads(cli("devices", "--json").err)
    assert (line["event"], line["name"]) == ("config.unknown_variable", "PROPOLIS_THREDS")
    assert "PROPOLIS_THREADS" in line["did_you_mean"]


def test_version_and_help(cli):
    """The basics."""
    assert cli("--version").out == f"propolis, version {__version__}\n"
    for name in ("doctor", "explain", "llm"):
        assert name in cli("-h").out


# -- errors --------------------------------------------------------------------


@pytest.fixture
def command():
    """Add a command for one test."""
    added = []

    def add(function):
        group.add_command(click.Command("temporary", callback=function))
        added.append(function)

    yield add
    if added:
        del group.commands["temporary"]


def raising(exc):
    """A callback that raises."""

    def callback():
        raise exc

    return callback


def test_a_bug_is_called_one(cli, command):
    """Exit code 70, one line, no traceback unless asked for."""
    command(raising(RuntimeError("two\nlines")))
    done = cli("temporary")
    assert (done.code, done.out) == (70, "")
    where = "(a bug in propolis: `propolis --debug ...` shows where)"
    assert done.err == f"error: RuntimeError: two lines {where}\n"


@pytest.mark.parametrize(
    ("number", "remedy"),
    [(errno.EACCES, "give this user the right to it, or name another"), (errno.EIO, "mend that")],
)
def test_what_the_machine_refuses_is_no_bug(cli, command, number, remedy):
    """A file that the machine does not let us have is named, with what to do."""
    command(raising(OSError(number, os.strerror(number), "/some/file")))
    done = cli("temporary")
    assert (done.code, done.out) == (2, "")
    assert f"error: /some/file cannot be used ({os.strerror(number)}): {remedy}" in done.err
    assert "bug" not in done.err


@pytest.mark.parametrize("how", ["option", "variable", "file"])
def test_debug_shows_where(cli, command, monkeypatch, tmp_path, how):
    """By option, by variable, by file: errors end with a traceback."""
    command(raising(RuntimeError("odd")))
    arguments = ["--debug"] if how == "option" else []
    if how == "variable":
        monkeypatch.setenv("PROPOLIS_DEBUG", "yes")
    if how == "file":
        (tmp_path / "c.toml").write_text("debug = true")
        monkeypatch.setenv("PROPOLIS_CONFIG", str(tmp_path / "c.toml"))
    done = cli(*arguments, "temporary")
    assert "Traceback (most recent call last)" in done.err
    assert done.code == 70


def test_debug_off(cli, command, monkeypatch):
    """``off`` is a way to say no."""
    command(raising(RuntimeError("odd")))
    monkeypatch.setenv("PROPOLIS_DEBUG", "off")
    assert "Traceback" not in cli("temporary").err


@pytest.mark.parametrize("exc", [KeyboardInterrupt(), click.Abort()])
def test_interrupted(cli, command, exc):
    """Exit code 130, as shells expect."""
    command(raising(exc))
    done = cli("temporary")
    assert (done.code, done.err.strip()) == (130, "interrupted")


def test_exit_codes_of_commands(cli, command):
    """A command's exit code is its exit code, and what it returns is none."""
    command(lambda: click.get_current_context().exit(5))
    assert cli("temporary").code == 5
    command(lambda: 7)
    assert cli("temporary").code == 0
    command(raising(SystemExit(4)))
    assert cli("temporary").code == 4


# -- commands of other distributions -------------------------------------------


def test_a_contributed_command(cli, site):
    """It is listed, and imported when it is used."""
    site.module(
        "extra",
        "import click\n@click.command()\ndef hello():\n    'Say hello.'\n    click.echo('hello')\n",
    )
    site.distribution("extra", commands={"hello": "extra:hello"})
    assert "Say hello." in cli("--help").out
    assert cli("hello").out == "hello\n"


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("import no_such", "the command 'hello' of extra cannot be imported: No module named"),
        ("1/0", "importing the command 'hello' of extra raised ZeroDivisionError"),
        ("raise SystemExit", "importing the command 'hello' of extra raised SystemExit"),
        ("", "importing the command 'hello' of extra raised AttributeError"),
        ("hello = 3", "the command 'hello' of extra is a int, not a click command"),
    ],
)
def test_a_broken_contributed_command(cli, site, source, reason):
    """--help and the other commands go on; using it says why it cannot be had."""
    site.module("extra", source)
    site.distribution("extra", commands={"hello": "extra:hello"})
    done = cli("--help")
    assert done.code == 0
    assert "explain" in done.out
    done = cli("hello", "--any", "thing")
    assert done.code == 3
    assert done.err.startswith(f"error: {reason}")
    assert cli("ops", "--json").code == 0


def test_nobody_replaces_our_commands(cli, site):
    """A contributed ``ops`` is not ours."""
    site.module("extra", "1/0")
    site.distribution("extra", commands={"ops": "extra:ops"})
    assert cli("ops", "--json").code == 0
