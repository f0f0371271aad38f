"""The files in packaging/: a service of systemd, and a container."""

from __future__ import annotations

import configparser
import json
import re
import shlex
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

from propolis.config import Config
from propolis_workers.serve.cli import serve


ROOT = Path(__file__).parents[2]
UNIT = ROOT / "packaging/propolis.service"
CONTAINER = ROOT / "packaging/Containerfile"
OPTIONS = {name for parameter in serve.params for name in parameter.opts}
SETTINGS = {f"PROPOLIS_{name.upper()}" for name in Config.model_fields} | {"PROPOLIS_TOKEN"}


def unit() -> dict[str, dict[str, list[str]]]:
    """The sections of the unit; a key may stand there more than once."""
    found: dict[str, dict[str, list[str]]] = {}
    for line in UNIT.read_text().splitlines():
        if line.startswith("["):
            section = found.setdefault(line.strip("[]"), {})
        elif line and not line.startswith("#"):
            key, _, value = line.partition("=")
            section.setdefault(key, []).append(value)
    return found


def instructions() -> list[tuple[str, str]]:
    """The instructions of the container's file, each with the rest of its lines."""
    text = re.sub(r"^#.*\n", "", CONTAINER.read_text(), flags=re.MULTILINE).replace("\\\n", " ")
    lines = (line.partition(" ") for line in text.splitlines() if line)
    return [(name, rest.strip()) for name, _, rest in lines]


def given(name: str) -> list[str]:
    """The rests of the instructions of one name."""
    found = [rest for instruction, rest in instructions() if instruction == name]
    assert found, name
    return found


def test_the_unit_starts_what_there_is():
    """It is well formed, and its command's options exist."""
    parser = configparser.ConfigParser(strict=False, interpolation=None)
    parser.read(UNIT)
    assert parser.sections() == ["Unit", "Service", "Install"]
    (command,) = unit()["Service"]["ExecStart"]
    program, name, *options = shlex.split(command)
    assert (Path(program).name, name) == ("propolis", "serve")
    assert {one for one in options if one.startswith("-")} <= OPTIONS
    named = set(re.findall(r"PROPOLIS_\w+", UNIT.read_text()))
    assert named <= SETTINGS


def test_the_unit_lets_answers_end():
    """Systemd waits longer than answers and engine may take, and starts again what failed."""
    service = unit()["Service"]
    drain = float(re.search(r"--drain (\S+)", service["ExecStart"][0])[1])
    assert float(service["TimeoutStopSec"][0]) > drain + 10 + 3
    assert service["Restart"] == ["on-failure"]
    assert service["KillMode"] == ["mixed"]  # the engine's end is the server's to say


def test_the_unit_is_confined():
    """It runs as nobody in particular, writes its cache alone, and opens GPUs alone."""
    service = unit()["Service"]
    for key, value in {
        "DynamicUser": "yes",
        "ProtectSystem": "strict",
        "ProtectHome": "yes",
        "NoNewPrivileges": "yes",
        "CapabilityBoundingSet": "",
        "DevicePolicy": "closed",
        "EnvironmentFile": "/etc/propolis/environment",
    }.items():
        assert service[key] == [value], key
    assert service["DeviceAllow"] == ["/dev/kfd rw", "char-drm rw"]
    assert "PrivateDevices" not in service
    assert not [line for line in service["Environment"] if "TOKEN" in line]


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd-analyze")
def test_systemd_takes_the_unit(tmp_path):
    """Systemd itself finds nothing unknown in it."""
    copy = tmp_path / UNIT.name
    copy.write_text(UNIT.read_text().replace("/opt/propolis/bin/propolis", "/bin/true"))
    command = ["systemd-analyze", "verify", "--man=no", str(copy)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    said = [line for line in (done.stdout + done.stderr).splitlines() if UNIT.name in line]
    assert not said
    copy.write_text(copy.read_text().replace("DynamicUser", "DynamicUsers"))
    wrong = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "DynamicUsers" in wrong.stderr  # it would be said


def test_the_container_installs_what_there_is():
    """Its instructions are those that exist; so do the extras, and what it copies is built."""
    known = "ARG FROM RUN ENV VOLUME USER EXPOSE STOPSIGNAL HEALTHCHECK ENTRYPOINT CMD"
    assert {name for name, _ in instructions()} == set(known.split())
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    chosen = dict(rest.partition("=")[::2] for rest in given("ARG"))
    assert set(chosen["EXTRAS"].split(",")) <= set(extras["optional-dependencies"])
    assert re.fullmatch(r"docker\.io/library/debian:\w+-slim", chosen["BASE"])
    # A shell that goes on after a failure would make an image without what failed; SHELL is
    # ignored where the format is OCI's.
    assert all(re.search(r"(^|\s)set -eu;", rest) for rest in given("RUN"))
    (source,) = re.findall(r"source=([^,\s]+)", " ".join(given("RUN")))
    assert f"{source}/" in (ROOT / "Makefile").read_text()  # `make wheels` fills it


def test_the_container_runs_what_there_is():
    """Its command and options exist, it needs no root, and its page names devices and settings."""
    (program,), (name, *options) = (json.loads(given(one)[0]) for one in ("ENTRYPOINT", "CMD"))
    assert (program, name) == ("propolis", "serve")
    assert {one for one in options if one.startswith("-")} <= OPTIONS
    assert options[options.index("--port") + 1] == given("EXPOSE")[0]
    assert given("USER") == ["10001:10001"]
    probe = json.loads(given("HEALTHCHECK")[0].partition("CMD ")[2])
    compile(probe[-1], "<health>", "exec")
    assert f":{given('EXPOSE')[0]}/health" in probe[-1]
    assert "EXTRAS=cpu,serve,rocm" in given("ARG")  # what falls to the CPU is to be fast, too
    text = CONTAINER.read_text()
    assert "--device=/dev/kfd --device=/dev/dri" in text
    assert set(re.findall(r"PROPOLIS_\w+", text)) <= SETTINGS


@pytest.mark.skipif(shutil.which("apt-cache") is None, reason="this is no Debian: no apt-cache")
def test_debian_has_the_packages():
    """The packages that the container installs are packages of Debian."""
    (line,) = re.findall(r"apt-get install ([^;]*);", " ".join(given("RUN")))
    names = [word for word in line.split() if not word.startswith("-")]
    assert "python3-venv" in names
    command = ["apt-cache", "show", "--no-all-versions", *names]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if not done.stdout and "Unable to locate" in done.stderr:
        pytest.skip("apt's lists of packages are empty here: apt-get update fills them")
    assert set(re.findall(r"^Package: (\S+)", done.stdout, re.MULTILINE)) == set(names)
