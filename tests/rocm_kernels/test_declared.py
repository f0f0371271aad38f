"""What Python declares of a module is what is compiled: a build lets nothing else through."""

from __future__ import annotations

import os
import re
import shutil
import struct
import subprocess
from pathlib import Path

import pytest

from propolis.errors import PluginError
from propolis.ops import catalogue
from propolis_rocm_kernels import _code
from propolis_rocm_kernels import _constants
from propolis_rocm_kernels import _declared
from propolis_rocm_kernels import _families
from propolis_rocm_kernels._kernels import Module
from propolis_rocm_kernels._signature import Structure
from propolis_rocm_kernels._signature import expand
from propolis_rocm_kernels._signature import packer
from propolis_rocm_kernels._signature import parameters


SIMULATOR = Path(__file__).parents[2] / "tools" / "hipsim" / "common"
TOY = """
#include "propolis_elementwise.h"

struct Size {
    i64 rows;
    i32 limits[2];
};

PROPOLIS_KERNEL toy_scale(f32* out, const f32* x, i64 n, f32 by, Strided s) {
    if (n > COLUMNS) *out = by * x[locate(s, 0).at[0]];
}
PROPOLIS_KERNEL toy_count(u32* out, Size size) { *out = (u32)size.rows; }
"""
SIZE = Structure("Size", {"rows": "q", "limits": "2i"})


def toy():
    """What Python declares of the toy, rightly."""
    module = Module("toy")
    module.constant("COLUMNS", 32)
    module.kernel("scale", "PPqf1")
    module.kernel("count", ("P", SIZE))
    return module


@pytest.fixture
def build(tmp_path, monkeypatch):
    """Compile a module of a source with the simulator's compiler; what that says of it."""
    compiler = shutil.which(os.environ.get("CXX", "c++"))
    if compiler is None:
        if os.environ.get("PROPOLIS_REQUIRE_NATIVE") == "1":
            pytest.fail("no C++ compiler")
        pytest.skip("no C++ compiler")
    for header in _code.NATIVE.glob("*.h"):
        (tmp_path / header.name).symlink_to(header.resolve())
    monkeypatch.setattr(_code, "NATIVE", tmp_path)
    flags = ["-fsyntax-only", "-std=gnu++20", "-Wall", "-Wextra", "-Wno-unknown-pragmas"]
    simulated = ["-DHIPSIM_HOST=1", "-DPROPOLIS_WARP=32", "-D__hipsim_global__="]
    headers = ["-I.", f"-I{SIMULATOR}", "-include", "hipsim_device.h"]

    def run(module, source=TOY):
        (tmp_path / f"{module.name}.hip").write_text(source)
        text = _code.source_files(module)[f"{module.name}.hip"]
        done = subprocess.run(
            [compiler, *flags, *simulated, *headers, "-x", "c++", "-"],
            cwd=tmp_path,
            input=text,
            env={**os.environ, "LC_ALL": "C"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert bool(done.returncode) == ("error: " in done.stderr), done.stderr
        return done.stderr

    return run


def test_what_agrees_compiles(build) -> None:
    """A module whose kernels, structures and numbers are as declared compiles, unwarned."""
    assert "" == build(toy())


WRONG_SIGNATURES = {
    "PPqf": "Pointer, Pointer, i64, f32",
    "PPqf11": "Pointer, Pointer, i64, f32, StridedOf<1>, StridedOf<1>",
    "PPif1": "Pointer, Pointer, i32, f32, StridedOf<1>",
    "PPQf1": "Pointer, Pointer, u64, f32, StridedOf<1>",
    "PPqd1": "Pointer, Pointer, i64, f64, StridedOf<1>",
    "Pqqf1": "Pointer, i64, i64, f32, StridedOf<1>",
    "PPPf1": "Pointer, Pointer, Pointer, f32, StridedOf<1>",
    "PPqf2": "Pointer, Pointer, i64, f32, StridedOf<2>",
}


def test_a_wrong_signature_stops_the_build(build) -> None:
    """Another number of parameters, or another type of one: the message names the kernel."""
    module, source = toy(), TOY
    for signature in WRONG_SIGNATURES:
        module.kernel(f"not_{signature}", signature)
        source += f"PROPOLIS_KERNEL toy_not_{signature}(f32*, const f32*, i64, f32, Strided) {{}}\n"
    said = build(module, source)
    assert "ops_toy.py:" in said
    errors = [line for line in said.splitlines() if " error: " in line]
    for signature, types in WRONG_SIGNATURES.items():
        message = f"kernel toy_not_{signature} is declared with ({types}), and takes something else"
        assert 1 == sum(message in line for line in errors)
    assert len(WRONG_SIGNATURES) == len(errors)


def test_a_kernel_that_is_not_there_stops_the_build(build) -> None:
    """A declared name that the source does not define is named."""
    module = toy()
    module.kernel("scaled", "PPqf1")
    assert "toy_scaled" in build(module)


WRONG_FIELDS = {
    "Kind": ({"rows": "q", "limits": "2I"}, "Kind::limits is declared as 2 u32 at byte 8,"),
    "Count": ({"rows": "q", "limits": "3i"}, "Count::limits is declared as 3 i32 at byte 8,"),
    "Order": ({"limits": "2i", "rows": "q"}, "Order::rows is declared as 1 i64 at byte 8,"),
    "More": ({"rows": "q", "limits": "2i", "extra": "q"}, "More is declared with 24 bytes,"),
    "Fewer": ({"rows": "q"}, "Fewer is declared with 8 bytes,"),
}


def test_a_wrong_structure_stops_the_build(build) -> None:
    """A field of another type, number or place, one too many or too few: the message names it."""
    module, source = toy(), TOY
    for name, (fields, _) in WRONG_FIELDS.items():
        module.kernel(f"takes_{name}", ("P", Structure(name, fields)))
        source += f"struct {name} {{ i64 rows; i32 limits[2]; }};\n"
        source += f"PROPOLIS_KERNEL toy_takes_{name}(u32*, {name}) {{}}\n"
    said = build(module, source)
    for _, message in WRONG_FIELDS.values():
        assert message in said
    assert "no member named 'extra'" in said


@pytest.mark.parametrize("how", ["constexpr int COLUMNS = 16;", "#define COLUMNS 16"])
def test_a_wrong_constant_stops_the_build(build, how) -> None:
    """A number of Python's that the source says again, and otherwise, is named."""
    said = build(toy(), how + TOY)
    twice = re.search(r"toy\.hip:1:\d+: error: redefinition of .*COLUMNS", said)
    assert twice or "COLUMNS is 32 in Python, and something else here" in said


def test_headers_may_not_have_other_numbers(build) -> None:
    """What headers share with Python is held as firmly as what one module does."""
    assert f"MAX_RANK is {_constants.MAX_RANK} in Python" in build(
        toy(), "#define MAX_RANK 5\n" + TOY
    )


def test_an_undeclared_constant_stops_the_build(build) -> None:
    """A number that Python does not give is none: the compiler names it."""
    module = toy()
    del module.constants["COLUMNS"]
    assert "COLUMNS" in build(module)


def test_declarations_decide_what_is_fresh(tmp_path, monkeypatch) -> None:
    """Code objects and cached modules are of the declarations: another one makes another digest."""
    for header in _code.NATIVE.glob("*.h"):
        (tmp_path / header.name).symlink_to(header.resolve())
    monkeypatch.setattr(_code, "NATIVE", tmp_path)
    (tmp_path / "toy.hip").write_text(TOY)
    digests = {_code.source_hash(toy()), _code.source_hash(toy())}
    assert 1 == len(digests)
    for change in (
        lambda m: m.kernel("scale", "PPqf2"),
        lambda m: m.constant("COLUMNS", 64),
        lambda m: m.kernel("more", "P"),
    ):
        changed = toy()
        change(changed)
        digests.add(_code.source_hash(changed))
    monkeypatch.setattr(_constants, "MAX_RANK", 7)
    digests.add(_code.source_hash(toy()))
    assert 5 == len(digests)


def test_the_order_of_declarations_is_none() -> None:
    """Two processes compile the same text, in whatever order they declare what."""
    module, other = toy(), Module("toy")
    for name, signature in reversed(module.kernels.items()):
        other.kernel(name.removeprefix("toy_"), signature)
    other.constant("COLUMNS", 32)
    files = {"toy.hip": TOY}
    assert _declared.compiled_text(module, files) == _declared.compiled_text(other, files)


def test_modules_get_the_numbers_that_they_name() -> None:
    """A shared number stands before the modules that use it: others stay as compiled."""
    modules = _families.modules()
    texts = {name: _code.source_files(m)[f"{name}.hip"] for name, m in modules.items()}
    has = {n for n, text in texts.items() if " COLUMN_LANES = 32;" in text}
    assert {"reduce", "reduce_extreme"} == has
    assert all(" BLOCK = 256;" in text for text in texts.values())
    assert " Q4_0_BYTES = 18;" in texts["quantized"]
    assert all(any(f" {name} = " in t for t in texts.values()) for name in _constants.constants())


def test_modules_are_found_and_named_by_family() -> None:
    """Who looks for an op of a family finds ops_<family>.py, or one whose name begins so."""
    for name, module in _families.modules().items():
        assert name == module.name
    families = {spec.family for spec in catalogue().values()}
    for family in _families.families():
        file = family.__name__.rpartition(".ops_")[2]
        assert file == family.MODULE.name
        assert file.split("_")[0] in families
        of = {catalogue()[made.op].family for made in family.OPS}
        assert of <= {file.split("_")[0]}, file  # none where a neighbour launches its kernels


@pytest.mark.parametrize("lost", ["source", "declarations"])
def test_half_a_module_is_refused(lost, tmp_path, monkeypatch) -> None:
    """A source that no ops_*.py declares, and one that is declared and missing, are named."""
    for module in _families.modules():
        (tmp_path / f"{module}.hip").touch()
    if lost == "source":
        (tmp_path / "cast.hip").unlink()
    else:
        (tmp_path / "toy.hip").touch()
    monkeypatch.setattr(_code, "NATIVE", tmp_path)
    lacks = "cast.hip for ops_cast.py" if lost == "source" else "ops_toy.py for toy.hip"
    with pytest.raises(PluginError, match=f"; add {lacks}$"):
        _families.modules()


def test_signatures_have_structures() -> None:
    """A structure is one parameter, and its fields where arguments are packed."""
    assert ["P", SIZE, "i"] == list(parameters(("P", SIZE, "i")))
    assert "Pq2ii" == expand(("P", SIZE, "i"))
    assert {"rows": 0, "limits": 8} == SIZE.starts
    packs = packer(("P", SIZE, "1"))
    assert struct.calcsize(expand(("P", SIZE, "1"))) == packs.size
    assert 5 == len(packs.unpack(bytes(packs.size)))  # the layout is one
