import os

import pytest

from propolis.errors import DeviceError
from propolis_rocm_hip import doctor
from propolis_rocm_hip import hardware
from propolis_rocm_hip import libraries
from propolis_rocm_hip.cache import CodeCache
from propolis_rocm_hip.cache import Key
from propolis_rocm_hip.libraries import Library
from propolis_rocm_hip.system import System
from propolis_rocm_hip.system import arch_of_version


class Machine(System):
    """Another machine's files, in a folder; what it may not open is said."""

    closed = ()

    def write(self, path, text=""):
        """Add a file."""
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        return self

    def gpu(self, version, number=1):
        """Add a GPU that the driver offers."""
        self.write("dev/kfd").write(f"dev/dri/renderD{127 + number}")
        node = f"sys/class/kfd/kfd/topology/nodes/{number}/properties"
        self.write(node, f"simd_count 96\ngfx_target_version {version}\nname_without_value\n")
        self.write(f"sys/bus/pci/devices/0000:0{number}:00.0/vendor", "0x1002\n")
        self.write(f"sys/bus/pci/devices/0000:0{number}:00.0/class", "0x030000\n")
        return self

    def accessible(self, path):
        """All but what is closed."""
        return path not in self.closed


@pytest.fixture
def machine(tmp_path):
    """A machine with a CPU, a network card, and no GPU."""
    machine = Machine(tmp_path / "root")
    machine.write("sys/class/kfd/kfd/topology/nodes/0/properties", "cpu_cores_count 8\n")
    machine.write("sys/bus/pci/devices/0000:00:01.0/vendor", "0x8086\n")
    machine.write("sys/bus/pci/devices/0000:00:01.0/class", "0x020000\n")
    return machine


def told(result):
    """A result as three texts, for comparison."""
    return result.status, result.summary, result.remedy


# -- the driver -------------------------------------------------------------------


def test_a_machine_without_a_gpu(machine):
    """Nothing is wrong, and every check says why it has nothing to say."""
    nothing = "nothing to do on a machine without an AMD GPU"
    assert told(doctor.driver(machine)) == (
        "skipped",
        "no AMD GPU on the PCI bus, no /dev/kfd",
        nothing,
    )
    assert told(doctor.permissions(machine)) == (
        "skipped",
        "no /dev/kfd and no /dev/dri/renderD*",
        nothing,
    )
    assert told(doctor.devices(machine, lambda: 0)) == ("skipped", "HIP sees no AMD GPU", nothing)
    assert doctor.architecture(machine, {}).status == "skipped"
    assert doctor.visible_devices(machine, {}).status == "ok"


def test_a_working_driver(machine):
    """What it offers, by architecture."""
    machine.gpu(110000).gpu(90010, number=2)
    assert doctor.devices(machine, lambda: 0).status == "warning"
    assert told(doctor.driver(machine)) == (
        "ok",
        "/dev/kfd is there; the driver offers gfx1100 (node 1), gfx90a (node 2)",
        "",
    )


def test_a_gpu_without_a_driver(machine):
    """Where it is, and how the driver is loaded."""
    machine.write("sys/bus/pci/devices/0000:03:00.0/vendor", "0x1002\n")
    machine.write("sys/bus/pci/devices/0000:03:00.0/class", "0x120000\n")
    status, summary, remedy = told(doctor.driver(machine))
    assert (status, summary) == (
        "error",
        "AMD GPU at 0000:03:00.0, but the amdgpu driver is not loaded",
    )
    assert remedy.startswith("sudo modprobe amdgpu; ")


def test_a_driver_without_compute(machine):
    """A kernel without KFD, or a container that was not given it."""
    machine.write("sys/module/amdgpu/version", "6")
    assert "CONFIG_HSA_AMD" in doctor.driver(machine).remedy
    machine.write(".dockerenv")
    assert told(doctor.driver(machine)) == (
        "error",
        "the amdgpu driver is loaded, but there is no /dev/kfd",
        "start the container with --device=/dev/kfd --device=/dev/dri",
    )


def test_windows_below(machine):
    """WSL has a device file of its own."""
    machine.write("dev/dxg")
    assert doctor.driver(machine).status == "ok"


# -- permissions --------------------------------------------------------------------


def test_files_that_can_be_opened(machine):
    """All of them are named."""
    machine.gpu(110000)
    assert told(doctor.permissions(machine)) == (
        "ok",
        "/dev/kfd, /dev/dri/renderD128 can be opened",
        "",
    )


def test_files_of_a_group_that_the_user_is_not_in(machine, monkeypatch):
    """The remedy is the exact command, with the groups these files have here."""
    machine.gpu(110000)
    machine.closed = ("dev/kfd",)
    monkeypatch.setattr(Machine, "group", lambda *_: "render")
    assert told(doctor.permissions(machine)) == (
        "error",
        "this user may not open /dev/kfd (group render)",
        "sudo usermod -aG render,video $USER, then log out and in again",
    )
    monkeypatch.setattr(Machine, "group", lambda *_: "gpu")
    assert "usermod -aG render,video,gpu $USER" in doctor.permissions(machine).remedy


def test_files_in_a_container(machine, monkeypatch):
    """There the groups come from outside, and the names may be unknown inside."""
    machine.gpu(110000).write("run/.containerenv")
    machine.closed = ("dev/kfd", "dev/dri/renderD128")
    monkeypatch.setattr(Machine, "group", lambda *_: "992")
    assert doctor.permissions(machine).remedy == "start the container with --group-add 992"


def test_the_group_of_a_file(machine, monkeypatch):
    """Its name, or its number where nobody has named it."""
    machine.gpu(110000)
    os.chown(machine.root / "dev/kfd", -1, os.getgid())
    assert machine.group("dev/kfd")
    monkeypatch.setattr("grp.getgrgid", lambda number: {}[number])
    assert machine.group("dev/kfd") == str(os.getgid())


def test_this_machine_is_asked_by_default():
    """The checks that doctor runs look at real files."""
    assert System().accessible("dev/null")
    assert not System().accessible("dev/no-such-file")


# -- libraries ----------------------------------------------------------------------


def tree(folder):
    """A ROCm tree with a library in it."""
    (folder / "lib").mkdir(parents=True)
    (folder / "lib" / "libamdhip64.so").write_text("library")
    return folder


def test_no_library():
    """What was looked at, and what to install."""
    status, summary, remedy = told(doctor.libraries(list, lambda _: []))
    assert status == "warning"
    assert summary.startswith("no libamdhip64 in ROCM_PATH, /opt/rocm")
    assert "ROCM_PATH" in remedy


def test_two_trees(tmp_path, monkeypatch):
    """The one that is used comes first; the other is a warning."""
    one, two = tree(tmp_path / "one"), tree(tmp_path / "two")
    monkeypatch.setenv("ROCM_PATH", str(one))
    monkeypatch.setenv("LD_LIBRARY_PATH", f"{two / 'lib'}:")
    found = libraries.installed()
    assert [str(f.path.parent.parent) for f in found[:2]] == [str(one), str(two)]
    assert [f.source for f in found[:2]] == ["hip-python's choice", "LD_LIBRARY_PATH"]
    status, summary, remedy = told(doctor.libraries(lambda: found[:2], lambda _: []))
    assert status == "warning"
    assert str(one) in summary
    assert f"also installed: {two}" in summary
    assert "point ROCM_PATH at one" in remedy


def test_one_tree_by_two_names(tmp_path, monkeypatch):
    """A symbolic link is no second installation."""
    real = tree(tmp_path / "rocm-7.0")
    (tmp_path / "rocm").symlink_to(real)
    monkeypatch.setenv("ROCM_PATH", str(tmp_path / "rocm"))
    monkeypatch.setenv("LD_LIBRARY_PATH", str(real / "lib"))
    found = [f for f in libraries.installed() if str(f.path).startswith(str(tmp_path))]
    assert found == [Library(real / "lib" / "libamdhip64.so", "hip-python's choice")]


def test_pip_wheels_are_found(tmp_path, monkeypatch):
    """ROCm installed by pip is a tree like any other."""
    (tmp_path / "_rocm_sdk_core").mkdir()
    (tmp_path / "_rocm_sdk_core" / "__init__.py").touch()
    tree(tmp_path / "_rocm_sdk_core")
    monkeypatch.syspath_prepend(tmp_path)
    assert "pip's rocm-sdk" in [f.source for f in libraries.installed()]


def test_two_libraries_in_one_process(tmp_path):
    """Two runtimes in one process are an error, whoever loaded them."""
    found = [Library(tmp_path / "libamdhip64.so", "ROCM_PATH")]
    loaded = {"libamdhip64": ["/opt/rocm/lib/libamdhip64.so.7", "/venv/lib/libamdhip64.so.7"]}
    result = doctor.libraries(lambda: found, lambda stem: loaded.get(stem, []))
    assert result.status == "error"
    assert "libamdhip64 from /opt/rocm/lib/libamdhip64.so.7 and /venv/lib" in result.summary


def test_a_library_that_is_too_old(tmp_path):
    """HIP older than 6 is refused, with its version and a remedy, where there is a card."""
    found = [Library(tmp_path / "libamdhip64.so", "ROCM_PATH")]
    without = doctor.libraries(lambda: found, lambda _: [], lambda: (5, 7), lambda: False)
    assert "skipped" == without.status
    assert told(doctor.libraries(lambda: found, lambda _: [], lambda: (5, 7), lambda: True)) == (
        "error",
        f"hip-python opens {found[0]}, which is HIP 5.7",
        "install ROCm 6.0 or newer, or point ROCM_PATH at it",
    )
    assert doctor.libraries(lambda: found, lambda _: [], lambda: (6, 0)).status == "ok"


def test_a_library_whose_version_cannot_be_asked(tmp_path):
    """Why is for the check of the devices to say."""

    def fails():
        raise DeviceError("it cannot be loaded")

    found = [Library(tmp_path / "libamdhip64.so", "ROCM_PATH")]
    assert doctor.libraries(lambda: found, lambda _: [], fails).status == "ok"


@pytest.mark.slow
def test_the_command_refuses_an_old_hip(python, simulator, tmp_path):
    """``propolis doctor`` ends with 1, and the plugin says which version it found."""
    done = python(
        "from propolis.cli import main; main(['--plugins', 'rocm_hip', 'doctor'])",
        HIPSIM_HIP_VERSION="5.7",
    )
    assert done.returncode == 1
    assert "ERROR   rocm_hip.libraries: hip-python opens " in done.stdout
    assert ", which is HIP 5.7\n        -> install ROCm 6.0 or newer, or point" in done.stdout
    assert "libamdhip64.so is HIP 5.7: install ROCm 6.0 or newer" in done.stdout


def test_a_tree_that_is_named_but_empty(tmp_path, monkeypatch):
    """ROCM_PATH that points nowhere is said, although another library is found."""
    monkeypatch.setenv("ROCM_PATH", str(tmp_path))
    found = [Library(tmp_path / "libamdhip64.so", "the system")]
    result = doctor.libraries(lambda: found, lambda _: [])
    assert result.status == "warning"
    assert f"ROCM_PATH={tmp_path} has no lib/libamdhip64.so" in result.summary


# -- architecture -------------------------------------------------------------------


def test_what_the_silicon_is(machine):
    """The driver's word, when HIP says the same."""
    machine.gpu(110000)
    assert told(doctor.architecture(machine, {}, lambda: ["gfx1100"])) == (
        "ok",
        "the silicon is gfx1100",
        "",
    )


def test_an_override_in_force(machine):
    """What it claims, what the GPU really is, and that it can be unset."""
    machine.gpu(110003)
    environ = {"HSA_OVERRIDE_GFX_VERSION": "11.0.0"}
    status, summary, remedy = told(doctor.architecture(machine, environ))
    assert status == "warning"
    assert summary.startswith(
        "HSA_OVERRIDE_GFX_VERSION=11.0.0 (gfx1100) is in force, the silicon is gfx1103"
    )
    assert remedy.startswith("unset HSA_OVERRIDE_GFX_VERSION: ")


def test_an_override_that_changes_nothing(machine):
    """It is no warning to say what is true."""
    machine.gpu(100300)
    result = doctor.architecture(machine, {"HSA_OVERRIDE_GFX_VERSION": "10.3.0"})
    assert result.status == "ok"


def test_overrides_of_single_gpus_and_nonsense(machine):
    """Newer ROCm has a variable for each GPU; what is no version is said to be none."""
    environ = {"HSA_OVERRIDE_GFX_VERSION_1": "9.0.10", "HSA_OVERRIDE_GFX_VERSION": "gfx1100"}
    summary = doctor.architecture(machine, environ).summary
    assert "HSA_OVERRIDE_GFX_VERSION_1=9.0.10 (gfx90a)" in summary
    assert "('gfx1100', which is no version)" in summary
    assert "the driver shows no GPU" in summary


def test_hip_and_the_driver_disagree(machine):
    """Both are named."""
    machine.gpu(110501)
    result = doctor.architecture(machine, {}, lambda: ["gfx1100"])
    assert told(result)[:2] == ("warning", "HIP reports gfx1100, the silicon is gfx1151")


def test_versions_of_architectures():
    """The driver's numbers, also of GPUs that are newer than the list."""
    assert arch_of_version(120001) == "gfx1201"
    assert arch_of_version(90402) == "gfx942"
    assert arch_of_version(190315) == "gfx193f"


# -- visible devices ----------------------------------------------------------------


def test_hidden_gpus(machine):
    """The variable, how many are left, and how to see them again."""
    machine.gpu(110000).gpu(110000, number=2)
    environ = {"HIP_VISIBLE_DEVICES": "1"}
    assert told(doctor.visible_devices(machine, environ, lambda: 1)) == (
        "warning",
        "HIP_VISIBLE_DEVICES='1': HIP sees 1 of 2 GPUs",
        "unset HIP_VISIBLE_DEVICES, or name the GPUs that are wanted",
    )
    assert doctor.visible_devices(machine, environ, lambda: 2).status == "ok"


def test_hidden_gpus_without_hip(machine):
    """The variable is said even when HIP cannot be asked."""

    def fail():
        raise DeviceError("no libamdhip64")

    machine.gpu(110000)
    result = doctor.visible_devices(machine, {"ROCR_VISIBLE_DEVICES": ""}, fail)
    assert result.summary == "ROCR_VISIBLE_DEVICES='': HIP sees 0 of 1 GPUs"


# -- the cache, and memory -----------------------------------------------------------


def test_a_sound_cache_and_a_damaged_one():
    """How much there is; damage is a warning with the command that removes it."""
    from propolis import Config

    cache = CodeCache(Config.load().cache_dir / "kernels")
    cache.get(Key("unary", "gfx1100", "0" * 64, "HIP 1"), lambda: b"code")
    assert told(doctor.cache())[::2] == ("ok", "")
    next(cache.folder.glob("*.co")).write_bytes(b"?")
    status, summary, remedy = told(doctor.cache())
    assert (status, remedy) == ("warning", "propolis cache verify")
    assert summary.endswith("; 1 are damaged")


MIB = 1 << 20


@pytest.mark.parametrize(
    ("reported", "vram", "gtt", "usable", "note"),
    [
        (16384, 512, 15872, 15872, "; HIP reports 16384 MiB, which counts both"),
        (15872, 512, 15872, 15872, ""),
        (512, 512, 15872, 512, ""),
        (65536 + 30000, 65536, 30000, 65536, "; HIP reports 95536 MiB, which counts both"),
    ],
)
def test_memory_of_an_apu(tmp_path, reported, vram, gtt, usable, note):
    """The larger of carve-out and GTT is what tensors can use, never the sum of both."""
    folder = tmp_path / "0000:c4:00.0"
    folder.mkdir()
    (folder / "mem_info_vram_total").write_text(f"{vram * MIB}\n")
    (folder / "mem_info_gtt_total").write_text(f"{gtt * MIB}\n")
    said = hardware.usable_memory(reported * MIB, folder.name, tmp_path)
    base = f"shared with the host: VRAM {vram} MiB, GTT {gtt} MiB"
    assert said == (usable * MIB, base + note)


def test_memory_of_an_apu_that_does_not_say(tmp_path):
    """Then HIP's word counts."""
    assert hardware.usable_memory(5, "0000:c4:00.0", tmp_path) == (5, "shared with the host")
