from __future__ import annotations

import json
import os
import sys
import threading
import time

import pytest
from patience import patience

from propolis.errors import PluginError
from propolis.plugins import _child
from propolis.plugins import discover
from propolis.plugins import vetting
from propolis.plugins.vetting import vet
from propolis.records import ProbeResult


@pytest.fixture
def ask(site, tmp_path):
    """Install a plugin with that source once, and vet it."""

    def run(source="", *, timeout=60.0, **options):
        if source is not None:
            site.plugin("probed", source)
        (candidate,) = [c for c in discover() if c.name == "probed"]
        return vet(candidate, timeout=patience(timeout), cache_dir=tmp_path / "cache", **options)

    return run


def counted(tmp_path, answer="ProbeResult(True)"):
    """A probe that leaves a mark each time it runs."""
    return f"""
    def propolis_probe():
        with open({str(tmp_path / "runs")!r}, "a") as file:
            file.write("x")
        return {answer}
    """


def runs(tmp_path):
    """How often it did."""
    file = tmp_path / "runs"
    return len(file.read_text()) if file.exists() else 0


# -- answers -------------------------------------------------------------------


def test_a_plugin_without_a_probe(ask):
    """It is enough that it imports."""
    assert ask() == ProbeResult(ok=True)


def test_yes_and_no(ask):
    """The probe's own answer and reason arrive."""
    assert ask("def propolis_probe(): return ProbeResult(False, 'no card: buy one')") == (
        ProbeResult(ok=False, reason="no card: buy one")
    )


def test_no_without_a_reason(ask):
    """A plugin that does not say why is said not to."""
    silent = ProbeResult(ok=False, reason="it gave no reason")
    assert ask("def propolis_probe(): return ProbeResult(False)") == silent


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("import no_such_module", r"ModuleNotFoundError: No module named 'no_such_module'"),
        ("raise SystemExit('bye')", "SystemExit: bye"),
        ("import sys; sys.exit()", "SystemExit"),
        ("def propolis_probe(): raise ValueError('odd')", "ValueError: odd"),
        ("def propolis_probe(): return None", "propolis_probe() returned a NoneType, not a Probe"),
        ("def propolis_probe(): return ProbeResult(True, files=(3,))", "TypeError: "),
        ("def propolis_probe(x): return ProbeResult(True)", "TypeError: propolis_probe() missing"),
        (
            "from propolis import Tensor; import numpy; Tensor.from_numpy(numpy.zeros(2))",
            "PluginError: plugins are loading: a plugin's import and its probe must not start",
        ),
    ],
)
def test_refusals_of_python_code(site, source, reason):
    """Whatever a plugin's code raises is its reason."""
    site.plugin("probed", source)
    try:
        answer = _child.ask("fake_probed")
    finally:
        vetting.in_child = False
    assert (answer["ok"], answer["files"]) == (False, [])
    assert answer["reason"].startswith(reason)


def test_the_probe_of_an_object(site):
    """An entry point may name an object inside a module."""
    site.module("inner", "class box:\n    class plugin:\n        pass\n")
    try:
        assert _child.ask("inner : box.plugin ")["ok"]
    finally:
        vetting.in_child = False


def test_a_runtime_in_the_child_is_refused(ask):
    """A plugin that starts one while imported would be vetted by a child of the child, forever."""
    started = time.monotonic()
    answer = ask("from propolis import default_runtime; default_runtime()")
    assert not answer.ok
    assert "must not start a runtime" in answer.reason
    assert time.monotonic() - started < patience(15)


# -- children that do not answer -----------------------------------------------


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("os.abort()", "its probe killed the process (SIGABRT): last words; "),
        ("__import__('ctypes').string_at(0)", "its probe killed the process (SIGSEGV)"),
        ("os.kill(os.getpid(), 40)", "its probe killed the process (signal 40): last words"),
        ("os._exit(3)", "its probe ended with exit code 3 and no answer: last words"),
    ],
)
def test_a_child_that_dies(ask, code, reason):
    """A native library may end the process; this one lives, and knows how it ended."""
    answer = ask(
        f"""
        import os
        def propolis_probe():
            print("last words", flush=True)
            {code}
        """
    )
    assert not answer.ok
    assert answer.reason.startswith(reason)


@pytest.fixture(params=["told", "looks"])
def told(request, monkeypatch):
    """Linux says when a process ends; elsewhere, and in old kernels, somebody has to look."""
    if request.param == "looks":
        monkeypatch.delattr(os, "pidfd_open", raising=False)


@pytest.mark.usefixtures("told")
def test_a_child_that_answers(ask):
    """Its answer is what the probe said."""
    answer = ask(
        """
        from propolis import ProbeResult
        def propolis_probe():
            return ProbeResult(ok=False, reason="not here")
        """
    )
    assert (answer.ok, answer.reason) == (False, "not here")


@pytest.mark.usefixtures("told")
def test_a_child_that_hangs(ask):
    """It is killed in time, with everything it started; the reason names the setting."""
    started = time.monotonic()
    answer = ask(
        """
        import os, time
        def propolis_probe():
            if os.fork() == 0:
                time.sleep(300)
            time.sleep(300)
        """,
        timeout=1.5,
    )
    assert answer.reason.startswith("its probe hung: no answer in ")
    assert "propolis plugins --reprobe" in answer.reason
    assert time.monotonic() - started < patience(20)


def test_a_process_that_a_probe_leaves_behind(ask, tmp_path):
    """It holds everything the child had open: neither it nor that may hold this process up."""
    started = time.monotonic()
    answer = ask(
        f"""
        import os, time
        def propolis_probe():
            pid = os.fork()
            if pid == 0:
                time.sleep(300)
                os._exit(0)
            open({str(tmp_path / "pid")!r}, "w").write(str(pid))
            return ProbeResult(True)
        """
    )
    assert answer == ProbeResult(ok=True)
    assert time.monotonic() - started < patience(20)
    pid = int((tmp_path / "pid").read_text())
    for _ in range(100):
        if not alive(pid):
            break
        time.sleep(0.05)
    assert not alive(pid)


def alive(pid):
    """Whether a process runs (a zombie that nobody has buried does not)."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8") as file:  # noqa: PTH123
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_child_that_prints_much(ask):
    """Megabytes of output fill no pipe; the answer arrives."""
    source = """
    import sys
    def propolis_probe():
        for _ in range(50_000):
            print("x" * 100)
            print("y" * 100, file=sys.stderr)
        return ProbeResult(True, "z" * 1_000_000)
    """
    answer = ask(source)
    assert answer.ok
    assert len(answer.reason) == 1_000_000


def test_what_a_dying_child_printed_last(ask):
    """Undecodable bytes and blank lines do not hide the last line."""
    answer = ask(
        r"""
        import os
        def propolis_probe():
            os.write(1, b"rocBLAS error: \xff no kernels\n\n  \n")
            os.abort()
        """
    )
    assert "(SIGABRT): rocBLAS error: \ufffd no kernels;" in answer.reason


def test_a_child_that_cannot_be_started(ask, monkeypatch):
    """No interpreter is a reason for rejection, not an error of the host's."""
    monkeypatch.setattr("sys.executable", "/no/such/python")
    answer = ask()
    assert not answer.ok
    assert answer.reason.startswith("its probe cannot be started: ")


def test_the_working_folder_shadows_nothing(ask, tmp_path, monkeypatch):
    """A json.py where the user stands is no business of the child's."""
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "json.py").write_text("raise RuntimeError('the wrong json')")
    monkeypatch.chdir(folder)
    assert ask() == ProbeResult(ok=True)


def test_paths_that_are_not_strings(ask, monkeypatch, tmp_path):
    """A Path on sys.path reaches the child; the empty entry is the working folder."""
    monkeypatch.setattr("sys.path", ["", tmp_path, *__import__("sys").path])
    assert ask() == ProbeResult(ok=True)


# -- the cache -----------------------------------------------------------------


def test_yes_is_remembered(ask, tmp_path):
    """The second start asks no child; ``fresh`` does."""
    first = ask(counted(tmp_path))
    assert first == ask(None)
    assert runs(tmp_path) == 1
    ask(None, fresh=True)
    assert runs(tmp_path) == 2


def test_a_crash_is_remembered(ask, tmp_path):
    """A plugin that aborts does so once, not at every start."""
    answer = ask(counted(tmp_path, "__import__('os').abort()"))
    assert ask(None) == answer
    assert runs(tmp_path) == 1


@pytest.mark.parametrize(
    "answer",
    [
        "ProbeResult(False, 'no driver')",
        "__import__('os')._exit(1)",
        "__import__('os').kill(__import__('os').getpid(), 9)",
    ],
    ids=["no", "no answer", "killed from outside"],
)
def test_what_may_change_is_asked_again(ask, tmp_path, answer):
    """A driver may be loaded; the kernel's killer may have better luck next time."""
    assert not ask(counted(tmp_path, answer)).ok
    assert not ask(None).ok
    assert runs(tmp_path) == 2


def test_the_answer_depends_on_the_plugins_files(ask, site, tmp_path):
    """An edit of the module asks again, though no version changed."""
    ask(counted(tmp_path))
    module = site.folder / "fake_probed.py"
    module.write_text(module.read_text() + "\n# edited\n")
    ask(None)
    assert runs(tmp_path) == 2


def test_the_answer_depends_on_a_packages_files(site, tmp_path):
    """Every module and native library of a package counts."""
    package = site.folder / "fake_package"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "native.so").write_text("1")
    site.distribution("packaged", plugins={"packaged": "fake_package:x"})
    (candidate,) = [c for c in discover() if c.name == "packaged"]
    before = vetting.fingerprint(candidate, "1.0")
    assert before == vetting.fingerprint(candidate, "1.0")
    (package / "native.so").write_text("12")
    assert before != vetting.fingerprint(candidate, "1.0")


def test_the_answer_does_not_depend_on_the_interpreters_name(site, monkeypatch):
    """`python` and `python3` of an environment are one: what one took out is out for the other."""
    site.distribution("named", plugins={"named": "json:x"})
    (candidate,) = [c for c in discover() if c.name == "named"]
    before = vetting.fingerprint(candidate, "1.0")
    monkeypatch.setattr(sys, "executable", sys.executable + "3")
    assert before == vetting.fingerprint(candidate, "1.0")
    monkeypatch.setattr(sys, "prefix", "/another")
    assert before != vetting.fingerprint(candidate, "1.0")


def test_the_answer_depends_on_the_plugins_own_variables(site, monkeypatch):
    """Those that begin with its name are its settings; others are not, and count for nothing."""
    site.distribution("own", plugins={"own_kernels": "json:x"})
    (candidate,) = [c for c in discover() if c.name == "own_kernels"]
    before = vetting.fingerprint(candidate, "1.0")
    monkeypatch.setenv("OTHER_KERNELS_LEVEL", "1")
    assert before == vetting.fingerprint(candidate, "1.0")
    monkeypatch.setenv("OWN_KERNELS_LEVEL", "1")
    first = vetting.fingerprint(candidate, "1.0")
    monkeypatch.setenv("OWN_KERNELS_LEVEL", "2")
    assert 3 == len({before, first, vetting.fingerprint(candidate, "1.0")})


def test_the_answer_depends_on_the_libraries_it_names(ask, tmp_path):
    """A library that is replaced asks again."""
    library = tmp_path / "libfoo.so"
    library.write_text("1")
    assert ask(counted(tmp_path, f"ProbeResult(True, files=({str(library)!r},))")).files
    ask(None)
    assert runs(tmp_path) == 1
    library.write_text("two")
    ask(None)
    library.unlink()
    ask(None)
    assert runs(tmp_path) == 3


def test_a_library_may_be_named_as_the_linker_does():
    """A bare name means the file that is loaded under it."""
    with open("/proc/self/maps", encoding="utf-8") as maps:  # noqa: PTH123
        path = next(line.split()[-1] for line in maps if "/libc.so.6" in line)
    assert _child._absolute("libc.so.6") == path
    assert _child._absolute("/some/lib.so") == "/some/lib.so"
    assert _child._absolute("libnothing.so") == "libnothing.so"


@pytest.mark.parametrize("name", ["ROCM_PATH", "HSA_OVERRIDE_GFX_VERSION"])
def test_the_answer_depends_on_the_environment(ask, tmp_path, monkeypatch, name):
    """What decides how ROCm behaves asks again."""
    ask(counted(tmp_path))
    monkeypatch.setenv(name, "other")
    ask(None)
    assert runs(tmp_path) == 2


def test_who_hung_is_waited_for_again_only_by_who_says_so(ask, monkeypatch):
    """`propolis plugins --reprobe` does, doctor does not; other answers are asked for anew."""
    answers = [
        ProbeResult(ok=False, reason=f"{vetting._HUNG}: no answer", answered=False),
        ProbeResult(ok=True),
        ProbeResult(ok=True, reason="again"),
    ]
    monkeypatch.setattr(vetting, "_ask_child", lambda *_: (answers.pop(0), True))
    assert not ask().ok
    assert not ask(None, fresh="unless hung").ok
    assert ask(None, fresh=True).ok
    assert ask(None, fresh="unless hung").reason == "again"


def test_a_longer_timeout_asks_a_hanging_probe_again(ask):
    """Who raises probe_timeout gets another answer than the remembered one."""
    wait = patience(1)
    source = f"import time\ndef propolis_probe(): time.sleep({wait}); return ProbeResult(True)"
    assert not ask(source, timeout=0.3).ok
    assert ask(None, timeout=60.0).ok


@pytest.mark.parametrize(
    "content",
    ["", "{", "[]", "null", '"text"', '{"KEY": 3}', '{"KEY": {"files": 5}}', "\xff", "[" * 100_000],
    ids=lambda content: content[:9],
)
def test_a_damaged_cache_is_an_empty_one(tmp_path, content):
    """Nothing in the file can stop a start; the next answer repairs it."""
    cache = vetting._Cache(tmp_path / "probes.json")
    cache.path.write_bytes(content.encode("latin-1"))
    assert cache.get("KEY") is None
    cache.put("KEY", ProbeResult(ok=True))
    assert cache.get("KEY") == ProbeResult(ok=True)


def test_a_damaged_cache_asks_again(ask, tmp_path):
    """The start goes on as if there were none."""
    ask(counted(tmp_path))
    (tmp_path / "cache" / "probes.json").write_text("{")
    assert ask(None).ok
    assert runs(tmp_path) == 2


def test_a_cache_that_cannot_be_written(ask, tmp_path):
    """A read-only home costs a probe a start and leaves no litter."""
    (tmp_path / "cache").write_text("a file where the folder should be")
    assert ask(counted(tmp_path)).ok
    assert ask(None).ok
    assert runs(tmp_path) == 2


def test_a_full_disk_leaves_no_litter(tmp_path, monkeypatch):
    """The old file stays, the new one goes."""
    cache = vetting._Cache(tmp_path / "probes.json")
    cache.put("a", ProbeResult(ok=True))

    def full(*_args):
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(vetting.Path, "replace", full)
    cache.put("b", ProbeResult(ok=True))
    assert [p.name for p in tmp_path.iterdir()] == ["probes.json"]
    assert cache.get("a") == ProbeResult(ok=True)
    assert cache.get("b") is None


def test_the_cache_does_not_grow_for_ever(tmp_path):
    """The oldest answers go first."""
    cache = vetting._Cache(tmp_path / "probes.json")
    entries = {str(i): {"ok": True, "reason": "", "files": [], "stamps": []} for i in range(400)}
    cache.path.write_text(json.dumps(entries))
    cache.put("new", ProbeResult(ok=True))
    kept = list(json.loads(cache.path.read_text()))
    assert len(kept) == 256
    assert kept[-2:] == ["399", "new"]
    cache.path.write_text(json.dumps(dict(list(entries.items())[:200])))
    cache.put("new", ProbeResult(ok=True))
    assert len(json.loads(cache.path.read_text())) == 201


def test_the_cache_from_many_threads(tmp_path):
    """Workers that start together never read half a file."""
    cache = vetting._Cache(tmp_path / "probes.json")
    cache.put("0", ProbeResult(ok=True))
    torn = []

    def work(number):
        for i in range(30):
            cache.put(f"{number}-{i}", ProbeResult(ok=True, reason="r" * 500))
            if not cache._read():
                torn.append(number)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert torn == []
    assert [p.name for p in tmp_path.iterdir()] == ["probes.json"]


def test_fingerprints_of_what_cannot_be_found(site):
    """A plugin whose module is missing, or is a built-in's, has a fingerprint all the same."""
    site.distribution("odd", plugins={"gone": "no_such_module", "main": "__main__", "sys": "sys"})
    keys = {vetting.fingerprint(c, "1.0") for c in discover() if c.distribution == "odd"}
    assert len(keys) == 3


def test_this_process_is_no_child(monkeypatch, ask):
    """The guard is the child's alone."""
    assert vetting.in_child is False
    monkeypatch.setattr(vetting, "in_child", True)
    with pytest.raises(PluginError, match=r"Tensor\.from_numpy without a device does"):
        ask()
