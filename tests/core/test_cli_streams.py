"""Who may write where: the answer to standard output, all else to standard error."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import warnings

import pytest

from propolis.cli import _pump
from propolis.cli import main


# Prints where a plugin can, from Python, to the descriptor, and from C, whose text waits.
NOISY = """
import ctypes, os, sys
def say(when):
    print("python at", when)
    os.write(1, b"descriptor at %s\\n" % when.encode())
    ctypes.CDLL(None).puts(b"C at %s" % when.encode())
say("import")
def propolis_probe():
    say("probe")
    return ProbeResult(True)
def add(out, a, b, /):
    say("call")
    out.array[...] = a.array + b.array
@hookimpl
def propolis_devices(config):
    say("devices")
    return []
@hookimpl
def propolis_ops(device):
    say("ops")
    yield OpImpl(op="add", fn=add, dtypes={dtypes.f32}, priority=100)
"""
PROPOLIS = (sys.executable, "-c", "from propolis.cli import main; main()")


@pytest.fixture
def propolis(capfd):
    """Run a command in this process, with the descriptors watched too."""

    def run(*arguments):
        capfd.readouterr()
        with pytest.raises(SystemExit) as done:
            main(arguments)
        return done.value.code or 0, *capfd.readouterr()

    return run


def lines(text):
    """Every line of standard error, which must be a JSON object each."""
    found = [json.loads(line) for line in text.splitlines()]
    assert all({"event", "level", "timestamp"} <= {*line} for line in found)
    return found


# -- the answer ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "command",
    [
        ["plugins", "--json", "--reprobe"],
        ["devices", "--json"],
        ["ops", "--json"],
        ["explain", "add", "--json"],
        ["doctor", "--json"],
        ["lock"],
    ],
    ids=lambda command: command[0],
)
def test_json_stays_json(propolis, site, command):
    """Whatever a plugin prints, and by which way, is on standard error."""
    site.plugin("noisy", NOISY)
    code, out, err = propolis(*command)
    assert code == 0
    json.loads(out)
    when = "devices" if command[0] in ("devices", "doctor") else "import"
    assert {f"{who} at {when}" for who in ("python", "descriptor", "C")} <= {*err.splitlines()}


def test_standard_output_comes_back(propolis, site):
    """What is printed after a command, or by one without --json, is where it was."""
    site.plugin("noisy", NOISY)
    propolis("ops", "--json")
    print("python")
    os.write(1, b"descriptor\n")
    _, out, _ = propolis("ops")
    assert "python at import" in out or "python at ops" in out
    code, out, err = propolis("explain", "--json", "nothing")
    assert (code, out) == (2, "")
    assert err.startswith("error: there is no op 'nothing'")
    assert sys.stdout is not sys.stderr


@pytest.mark.slow
def test_a_process_of_its_own(site):
    """The real descriptors, JSON on both, and exit handlers, which come last."""
    site.plugin("noisy", f"{NOISY}\nimport atexit\natexit.register(say, 'exit')")
    done = subprocess.run(
        [*PROPOLIS, "--log-format", "json", "ops", "--json"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert any(op["op"] == "add" for op in json.loads(done.stdout))
    last = [line for line in done.stderr.splitlines() if line.endswith("at exit")]
    said = [line["text"] for line in lines(done.stderr.split("python at exit")[0])]
    assert {f"{who} at import" for who in ("python", "descriptor", "C")} <= {*said}
    assert len(last) == 3


# -- JSON lines ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["explain", "nothing"], 2, "there is no op 'nothing'; `propolis ops` lists them"),
        (
            ["explain", "--nothing"],
            2,
            "No such option '--nothing'; `propolis explain --help` lists what can be given",
        ),
        (["ops", "--device", "toy"], 2, "no device 'toy'; present: cpu; `propolis doctor` finds"),
    ],
    ids=["ours", "usage", "device"],
)
def test_errors(cli, arguments, code, message):
    """One object: what is wrong and the exit code."""
    done = cli("--log-format", "json", *arguments)
    (found,) = lines(done.err)
    assert (done.code, found["event"], found["exit_code"]) == (code, "cli.error", code)
    assert found["message"].startswith(message)
    assert (found["level"], found["traceback"]) == ("error", None)


def test_tracebacks(cli):
    """With --debug they are a field of the error."""
    (found,) = lines(cli("--log-format=json", "--debug", "explain", "nothing").err)
    assert found["traceback"].startswith("Traceback (most recent call last):\n")
    assert "OpError" in found["traceback"]


def test_help_instead_of_a_command(cli):
    """What click prints for people is text, line by line."""
    done = cli("--log-format", "json", "quarantine")
    assert done.code == 2
    assert "Commands:" in [line["text"] for line in lines(done.err)]


@pytest.mark.parametrize("where", ["variable", "file"])
def test_the_setting(cli, tmp_path, monkeypatch, where):
    """The variable and the file ask for it as the option does, which goes first."""
    if where == "variable":
        monkeypatch.setenv("PROPOLIS_LOG_FORMAT", "json")
    else:
        (tmp_path / "settings.toml").write_text('log_format = "json"\n')
        monkeypatch.setenv("PROPOLIS_CONFIG", str(tmp_path / "settings.toml"))
    for command in (["explain", "nothing"], ["explain", "--nothing"], ["ops", "--device", "toy"]):
        (found,) = lines(cli(*command).err)
        assert found["event"] == "cli.error"
        assert cli("--log-format", "console", *command).err.startswith("error: ")


@pytest.mark.usefixtures("unvetted")
def test_what_others_write(cli, site):
    """Warnings are events with their place; what is printed is text; log lines stay."""
    site.plugin(
        "talks",
        "import sys, warnings\nwarnings.warn('old')\nprint('a\\nb', file=sys.stderr)\n"
        "print('{1', end='', file=sys.stderr)",
    )
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        done = cli("--log-format", "json", "ops")
    found = lines(done.err)
    warning, *texts = found
    assert (warning["event"], warning["message"]) == ("python.warning", "old")
    assert (warning["category"], warning["file"][-13:]) == ("UserWarning", "fake_talks.py")
    assert [(line["event"], line["text"]) for line in texts] == [
        ("cli.text", text) for text in ("a", "b", "{1")
    ]


def test_the_stream_is_as_it_was(cli):
    """Afterwards standard error is for people again, and warnings are shown as before."""
    before = sys.stderr, warnings.showwarning
    cli("--log-format", "json", "explain", "nothing")
    assert (sys.stderr, warnings.showwarning) == before
    assert cli("explain", "nothing").err.startswith("error: ")


def test_the_pump():
    """Objects pass as they are, other lines become one, also bytes that are no text."""
    done = subprocess.run(
        [sys.executable, "-I", "-S", _pump.__file__, "cli.text", "info"],
        input=b'{"event": "x"}\nplain\n\n[1]\n{"cut\n\xff end',
        capture_output=True,
        check=True,
    )
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert found[0] == {"event": "x"}
    assert [line["text"] for line in found[1:]] == ["plain", "[1]", '{"cut', "\ufffd end"]
    assert all(line["timestamp"].endswith("Z") for line in found[1:])
