"""How solutions are chosen, compiled where somebody sees it, kept on disk, and measured."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor

import pytest
from click.testing import CliRunner

from propolis import dtypes
from propolis.errors import OutOfMemoryError
from propolis_rocm_hip import progress
from propolis_rocm_miopen import _kept
from propolis_rocm_miopen import events
from propolis_rocm_miopen._ffi import GEMM
from propolis_rocm_miopen._kept import FILE
from propolis_rocm_miopen._kept import Kept
from propolis_rocm_miopen._kept import Shelf
from propolis_rocm_miopen._kept import Wanted
from propolis_rocm_miopen._problem import problem
from propolis_rocm_miopen.cli import miopen as tune
from propolis_rocm_miopen.handle import Handle


GIVEN = problem(dtypes.f32, (1, 4, 8, 8), (6, 4, 3, 3), (1, 6, 8, 8), 1, 1, 1, 1)
OTHER = problem(dtypes.f16, (1, 4, 9), (4, 2, 2), (1, 4, 18), 2, 0, 1, 2, 0)


@pytest.fixture
def cache(rocm, tmp_path, monkeypatch):
    """An empty folder of caches, for the handles that a test makes."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("PROPOLIS_CACHE_DIR", str(folder))
    monkeypatch.setenv("MIOPEN_CUSTOM_CACHE_DIR", str(tmp_path / "miopen"))
    return folder


def said(event, logged):
    """The fields of each line of that kind."""
    return [fields for name, fields in logged if name == event.name]


@pytest.fixture
def logged(monkeypatch):
    """What was logged, as (event, fields)."""
    lines = []
    emit = events.Event.emit
    del emit
    monkeypatch.setattr(events.Event, "emit", lambda self, **f: lines.append((self.name, f)))
    return lines


def test_a_choice_lasts(rocm, cache, simulator) -> None:
    """The next handle takes what this one chose, without asking for offers again."""
    first = Handle(rocm, gemm=True).choose(GIVEN, Wanted())
    assert (cache / FILE).exists()
    later = Handle(rocm, gemm=True)
    asked = []
    later.offers = lambda *_: asked.append(1) or iter(())
    assert later.choose(GIVEN, Wanted()).kept == first.kept
    assert asked == []
    assert later.choose(GIVEN, Wanted()) is later.choose(GIVEN, Wanted())


@pytest.mark.parametrize("text", ["", "[]", "{", '{"x": 1}', '{"KEY": {"solutions": [[1], 2]}}'])
def test_a_damaged_file_is_an_empty_one(rocm, cache, text) -> None:
    """What cannot be read is chosen again, and the file is whole afterwards."""
    Handle(rocm, gemm=True).choose(GIVEN, Wanted())
    (key,) = json.loads((cache / FILE).read_text())
    (cache / FILE).write_text(text.replace("KEY", key))
    handle = Handle(rocm, gemm=True)
    assert handle.shelf.all() == {}
    assert not isinstance(handle.choose(GIVEN, Wanted()), str)
    assert [GIVEN] == [kept.problem for kept in handle.shelf.all().values()]


def test_another_library_knows_nothing(tmp_path, monkeypatch) -> None:
    """What was chosen holds for a file, a version, an architecture and MIOpen's variables."""
    library = tmp_path / "libMIOpen.so.1"
    library.touch()
    at = tmp_path, library, "3.5.0", "gfx1100"
    for given in (GIVEN, OTHER):
        Shelf(*at).put(Kept(Wanted(exact=True), given, 91, 4096, 0, tuned=True))
    known = Shelf(*at).all()
    assert {(Wanted(exact=True), GIVEN), (Wanted(exact=True), OTHER)} == set(known)
    assert Kept(Wanted(exact=True), OTHER, 91, 4096, 0, tuned=True) in known.values()
    assert Shelf(tmp_path, library, "3.4.0", "gfx1100").all() == {}
    assert Shelf(tmp_path, library, "3.5.0", "gfx942").all() == {}
    monkeypatch.setenv("MIOPEN_LOG_LEVEL", "6")
    assert Shelf(*at).all() == known
    monkeypatch.setenv("MIOPEN_DEBUG_CONV_GEMM", "0")
    assert Shelf(*at).all() == {}


def test_a_folder_that_cannot_be_written(tmp_path, logged) -> None:
    """A choice that cannot be kept is said once, and used."""
    (tmp_path / "file").touch()
    shelf = Shelf(tmp_path / "file" / "below", tmp_path / "library", "3.5.0", "gfx1100")
    for _ in range(2):
        shelf.put(Kept(Wanted(), GIVEN, 91, 0, 0, tuned=False))
    assert 1 == len(said(events.MIOPEN_NOT_KEPT, logged))


def test_what_is_no_longer_wanted_is_chosen_anew(rocm, cache, simulator, monkeypatch) -> None:
    """A remembered product is not taken where rocBLAS failed since, whatever a variable says."""
    monkeypatch.setenv("MIOPEN_DEBUG_CONV_GEMM", "1")  # which stays: the file is the same one
    given = problem(dtypes.f32, (1, 4, 8, 8), (6, 4, 1, 1), (1, 6, 8, 8), 1, 0, 1, 1)
    assert Handle(rocm, gemm=True).choose(given, Wanted()).kept.algorithm == GEMM
    assert Handle(rocm, gemm=False).choose(given, Wanted(naive=True)).kept.algorithm != GEMM
    later = Handle(rocm, gemm=False).choose(given, Wanted())
    assert isinstance(later, str) or later.kept.algorithm != GEMM


def test_the_setting_measures_what_is_remembered(rocm, cache, simulator, monkeypatch) -> None:
    """Shapes that were met before it was set are measured when they are met again."""
    assert not Handle(rocm, gemm=True).choose(GIVEN, Wanted()).kept.tuned
    monkeypatch.setenv("PROPOLIS_TUNE", "1")
    assert Handle(rocm, gemm=True).choose(GIVEN, Wanted()).kept.tuned


def test_processes_take_turns(tmp_path) -> None:
    """Nothing is lost of what two write at a time, nor what was measured for what is expected."""
    library = tmp_path / "lib"
    library.touch()

    def shape(n):
        return problem(dtypes.f32, (1, 4, n, 8), (6, 4, 3, 3), (1, 6, n, 8), 1, 1, 1, 1)

    def fill(first):
        shelf = Shelf(tmp_path, library, "1", "gfx")
        for n in range(first, 60, 2):
            shelf.put(Kept(Wanted(), shape(n), 1, 0, 1, n % 3 == 0))

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(fill, (10, 11)))
    shelf = Shelf(tmp_path, library, "1", "gfx")
    assert {known for _, known in shelf.all()} == {shape(n) for n in range(10, 60)}
    shelf.put(Kept(Wanted(), shape(12), 2, 0, 1, tuned=False))
    assert shelf.all()[Wanted(), shape(12)].solution == 1


def test_many_shapes(tmp_path, monkeypatch) -> None:
    """The file has a bound: the oldest of those that were only expected to be fastest goes."""
    monkeypatch.setattr(_kept, "MOST", 3)
    (tmp_path / "lib").touch()
    shelf = Shelf(tmp_path, tmp_path / "lib", "1", "gfx")
    for solution in range(5):
        shelf.put(Kept(Wanted(), GIVEN._replace(groups=solution + 1), solution, 0, 1, solution < 2))
    assert [0, 1, 4] == [kept.solution for kept in shelf.all().values()]


def test_a_solution_that_is_gone_is_chosen_anew(rocm, cache) -> None:
    """A number that this MIOpen does not know, or whose workspace changed, is not believed."""
    handle = Handle(rocm, gemm=True)
    handle.shelf.put(Kept(Wanted(), GIVEN, 12345, 0, 0, tuned=True))
    handle.shelf.put(Kept(Wanted(exact=True), GIVEN, 91, 7, 0, tuned=True))
    handle = Handle(rocm, gemm=True)
    assert 12345 != handle.choose(GIVEN, Wanted()).kept.solution
    assert 7 != handle.choose(GIVEN, Wanted(exact=True)).kept.workspace


def test_too_large_a_workspace(rocm, cache, monkeypatch) -> None:
    """Solutions that want more memory than calls may have are left out, with the reason."""
    monkeypatch.setattr("propolis_rocm_miopen.handle.WORKSPACE", 16)
    for kind in ("WINOGRAD", "DIRECT"):
        monkeypatch.setenv(f"MIOPEN_DEBUG_CONV_{kind}", "0")
    found = Handle(rocm, gemm=True).choose(GIVEN, Wanted())
    assert "it wants a workspace of" in found


def test_compiling_is_seen(rocm, cache, logged, monkeypatch) -> None:
    """Whoever waits is told for what and how long, while it goes on and at its end; once."""
    monkeypatch.setattr(progress, "FIRST", 0.02)
    monkeypatch.setattr(progress, "AGAIN", 0.02)
    monkeypatch.setenv("HIPSIM_MIOPEN_COMPILE_MS", "600")
    given = GIVEN._replace(x=(1, 4, 8, 23), y=(1, 6, 8, 23))  # compiled by no other test
    Handle(rocm, gemm=True).choose(given, Wanted())
    working = said(events.MIOPEN_WORKING, logged)
    assert len(working) > 1
    assert f"compiling {given}" in working[0]["what"]
    seconds = [fields["seconds"] for fields in working]
    assert seconds == sorted(seconds)
    assert len(said(events.MIOPEN_DONE, logged)) == 1
    logged.clear()
    # MIOpen keeps what it compiled.
    Handle(rocm, gemm=True).choose(given, Wanted())
    assert said(events.MIOPEN_WORKING, logged) == []


def test_nothing_is_measured_unless_asked(rocm, cache, simulator, monkeypatch) -> None:
    """Choosing finds nothing out by trying: that would take minutes for each shape."""
    simulator.hipsim_miopen_inject(b"find", b"0")
    monkeypatch.setenv("HIPSIM_MIOPEN_FIND_MS", "60000")
    Handle(rocm, gemm=True).choose(GIVEN, Wanted())
    assert simulator.hipsim_miopen_count(b"find") == 0
    monkeypatch.delenv("HIPSIM_MIOPEN_FIND_MS")
    monkeypatch.setenv("PROPOLIS_TUNE", "1")
    found = Handle(rocm, gemm=True).choose(OTHER, Wanted())
    assert simulator.hipsim_miopen_count(b"find") == 1
    assert found.kept.tuned


def test_what_cannot_be_measured(rocm, cache, simulator, logged, monkeypatch) -> None:
    """
    One solution whose kernel cannot be built ends MIOpen's measuring with an error, as in builds
    without Winograd's sources: the shape is served by what is expected to be fastest, and said.
    """
    monkeypatch.setenv("PROPOLIS_TUNE", "1")
    simulator.hipsim_miopen_inject(b"find", b"1:7")
    found = Handle(rocm, gemm=True).choose(GIVEN, Wanted())
    simulator.hipsim_miopen_inject(b"find", b"0")
    assert not found.kept.tuned
    (line,) = said(events.MIOPEN_NOT_MEASURED, logged)
    assert str(GIVEN) == line["what"]
    assert "miopenFindConvolutionForwardAlgorithm" in line["reason"]


def test_no_memory_to_measure_in(rocm, cache, logged, monkeypatch) -> None:
    """A card too full for the tensors of a measurement still convolves, by what is expected."""

    def full(*_):
        raise OutOfMemoryError("full")

    monkeypatch.setenv("PROPOLIS_TUNE", "1")
    monkeypatch.setattr(Handle, "_find", full)
    assert not Handle(rocm, gemm=True).choose(GIVEN, Wanted()).kept.tuned
    assert "full" in said(events.MIOPEN_NOT_MEASURED, logged)[0]["reason"]


def test_tune(rocm, cache, simulator, runtime, monkeypatch) -> None:
    """`propolis tune miopen` measures what models left behind, once, and says what came of it."""
    Handle(rocm, gemm=True).choose(GIVEN, Wanted())
    simulator.hipsim_miopen_inject(b"find", b"0")
    rocm._kept.pop(Handle, None)
    try:
        done = CliRunner().invoke(tune, [])
        assert done.exit_code == 0, done.output
        assert f"1/1 {GIVEN}: solution" in done.output
        assert "as before" in done.output
        assert simulator.hipsim_miopen_count(b"find") == 1
        again = CliRunner().invoke(tune, [])
        assert "nothing to measure" in again.output
        more = CliRunner().invoke(tune, ["--again"])
        assert f"1/1 {GIVEN}" in more.output
        wrong = CliRunner().invoke(tune, ["--device", "cpu"])
        assert "cpu is no AMD GPU" in str(wrong.exception)
    finally:
        rocm._kept.pop(Handle, None)


def test_a_shape_in_words() -> None:
    """Errors, logs and the file name a shape as people write it."""
    assert "transposed conv f16 1x4x1x9 by 4x2x1x2, stride 1x2, padding 0x0, 2 groups" == str(OTHER)
