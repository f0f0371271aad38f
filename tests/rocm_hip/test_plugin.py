import json
import os
import subprocess
import sys

import pytest
from patience import patience

from propolis.errors import DeviceError
from propolis.errors import DeviceNotFoundError
from propolis.errors import KernelFaultError
from propolis.errors import OutOfMemoryError
from propolis_rocm_hip import errors
from propolis_rocm_hip import plugin
from propolis_rocm_hip.errors import error_for


ROCM = ("libamdhip64", "libhsa-runtime64", "libhiprtc", "libamd_comgr")


def test_importing_loads_no_rocm(python):
    """Every module of the plugin imports on a laptop; no ROCm library and no binding is loaded."""
    code = f"""
import importlib, pkgutil, sys
import propolis_rocm_hip
for module in pkgutil.iter_modules(propolis_rocm_hip.__path__):
    importlib.import_module(f"propolis_rocm_hip.{{module.name}}")
maps = open("/proc/self/maps").read()
assert not [name for name in {ROCM!r} if name in maps], maps
assert not [name for name in sys.modules if name.startswith("rocm.")]
"""
    done = python(code)
    assert done.returncode == 0, done.stderr


def test_the_plugin_module_is_light(python):
    """What core imports at every start brings nothing that core does not have already."""
    code = """
import propolis, sys
before = set(sys.modules)
import propolis_rocm_hip.plugin
print(sorted(set(sys.modules) - before))
"""
    assert python(code).stdout.strip() == "['propolis_rocm_hip', 'propolis_rocm_hip.plugin']"


def probe(python, **environ):
    """What the probe says, in a process of its own."""
    code = """
import json
from propolis_rocm_hip.plugin import propolis_probe
result = propolis_probe()
print(json.dumps([result.ok, result.reason, result.files]))
"""
    done = python(code, **environ)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_no_library(python, tmp_path):
    """The reason is the loader's; the remedy says what to install, and what happens until then."""
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "libamdhip64.so").write_text("this is no library")
    ok, reason, files = probe(python, ROCM_PATH=str(tmp_path))
    assert (ok, files) == (False, [])
    assert reason.startswith("no libamdhip64: ")
    assert f"{tmp_path}/lib/libamdhip64.so: " in reason
    assert "install ROCm 6.0 or newer" in reason
    assert "ops run on the CPU until then" in reason


def test_no_hip_python(python, tmp_path):
    """A package that is missing is named, with the command that installs it."""
    package = tmp_path / "rocm"
    package.mkdir()
    (package / "__init__.py").touch()
    ok, reason, _ = probe(python, PYTHONPATH=str(tmp_path))
    assert not ok
    assert "hip-python cannot be imported" in reason
    assert "pip install 'hip-python>=10'" in reason


OLD = r"""
int hipInit(unsigned flags) { return 0; }
int hipGetDeviceCount(int *count) { *count = DEVICES; return DEVICES ? 0 : 100; }
int hipRuntimeGetVersion(int *version) { *version = 50221153; return 0; }
const char *hipGetErrorName(int code) { return "hipErrorUnknown"; }
const char *hipGetErrorString(int code) { return "unknown error"; }
"""


@pytest.fixture
def library(tmp_path):
    """A HIP library of few words, compiled now: ``library(source, macro=value)`` gives its tree."""

    def build(source, **macros):
        folder = tmp_path / "-".join(["tree", *macros.values()])
        (folder / "lib").mkdir(parents=True)
        file = folder / "hip.c"
        file.write_text(source)
        target = folder / "lib" / "libamdhip64.so"
        flags = [f"-D{name}={value}" for name, value in macros.items()]
        command = ["cc", "-shared", "-fPIC", *flags, "-o", target, file]
        subprocess.run(command, check=True)
        return str(folder)

    return build


def test_no_device(python, library):
    """A library without a GPU answers so, and says what may hide one."""
    tree = library(OLD, DEVICES="0")
    assert probe(python, ROCM_PATH=tree)[:2] == [
        False,
        "no device: HIP sees no AMD GPU",
    ]
    reason = probe(python, ROCM_PATH=tree, HIP_VISIBLE_DEVICES="7")[1]
    assert "(HIP_VISIBLE_DEVICES=7 may hide them)" in reason


def test_a_library_that_is_too_old(python, library):
    """Its version is named, and which is needed."""
    ok, reason, _ = probe(python, ROCM_PATH=library(OLD, DEVICES="1"))
    assert not ok
    assert "libamdhip64.so is HIP 5.2: install ROCm 6.0 or newer" in reason


def test_a_driver_that_fails(python, library):
    """Any other error has its name and number."""
    broken = OLD.replace("return DEVICES ? 0 : 100", "return 999")
    ok, reason, _ = probe(python, ROCM_PATH=library(broken, DEVICES="1"))
    assert not ok
    assert reason.startswith("rocm: hipGetDeviceCount: hipErrorUnknown (999): unknown error; ")


@pytest.mark.slow
def test_without_rocm_every_command_works(tmp_path, library):
    """The CPU serves everything, and the reason is in the list of plugins and in doctor."""
    environ = os.environ | {"ROCM_PATH": library(OLD, DEVICES="0"), "HOME": str(tmp_path)}

    def propolis(*args):
        return subprocess.run(
            [sys.executable, "-c", "from propolis.cli import main; main()", *args],
            env=environ,
            capture_output=True,
            text=True,
            timeout=patience(60),
            check=False,
        )

    listed = propolis("plugins")
    assert listed.returncode == 0
    assert "no device: HIP sees no AMD GPU" in listed.stdout
    assert propolis("devices").returncode == 0
    found = json.loads(propolis("doctor", "--json").stdout)
    names = {entry["name"] for entry in found}
    assert {f"rocm_hip.{n}" for n in ("driver", "permissions", "libraries", "devices")} <= names
    refused = propolis("llm", "generate", "--device", "rocm:0", "hi")
    assert refused.returncode == 2
    assert (
        "no device 'rocm:0'; present: cpu; rocm_hip: no device: HIP sees no AMD GPU; `propolis "
        "doctor` finds out why"
    ) in refused.stderr
    assert json.loads(propolis("plugins", "--json").stdout)
    assert propolis("devices").stderr == ""


# -- errors ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (1, DeviceError),
        (2, OutOfMemoryError),
        (100, DeviceNotFoundError),
        (209, DeviceError),
        (700, KernelFaultError),
        (719, KernelFaultError),
        (901, DeviceError),
        (12345, DeviceError),
    ],
)
def test_the_class_of_an_error(code, kind):
    """HIP's code decides; what is sticky loses the device."""
    error = error_for("rocm:0", "hipCall", code, "hipErrorSome", "some error")
    assert type(error) is kind
    assert str(error).startswith(f"rocm:0: hipCall: hipErrorSome ({code}): some error; ")


def test_every_error_has_a_remedy():
    """Whatever the code, the message says what to do next."""
    for code in (*range(1, 1100), 12345):
        text = str(error_for("rocm:0", "hipCall", code, "hipErrorSome"))
        assert len(text.partition("; ")[2]) > 20


def test_the_codes_are_hips():
    """The names that our numbers stand for are those of hip-python's enumeration."""
    from rocm.bindings.hip import hipError_t

    named = {int(member): member.name for member in hipError_t}
    assert errors.STICKY <= named.keys()
    assert errors._REMEDIES.keys() - named.keys() <= set(range(900, 909))
    assert named[errors.NOT_READY] == "hipErrorNotReady"
    assert named[errors.OUT_OF_MEMORY] == "hipErrorOutOfMemory"
    for code in (214, 700, 702, 709, 710, 719):
        assert code in errors._REMEDIES or code == 709


def test_who_it_is():
    """The name of its entry point, and the API level it is written for."""
    info = plugin.propolis_plugin()
    assert (info.name, info.api_range) == ("rocm_hip", (1, 1))
