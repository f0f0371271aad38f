import json
import os
import subprocess
import sys
import threading
from dataclasses import replace

import pytest
import structlog
from patience import patience

from propolis_rocm_hip.cache import CodeCache
from propolis_rocm_hip.cache import Key


KEY = Key(module="unary", arch="gfx1100", digest="0123456789abcdef" * 4, compiler="HIP 1")


@pytest.fixture
def cache(tmp_path):
    """An empty cache."""
    return CodeCache(tmp_path / "kernels")


def never():
    """A compiler that must not be asked."""
    msg = "compiled, although the cache had it"
    raise AssertionError(msg)


def test_an_object_is_made_once(cache):
    """The second process finds what the first one made, byte for byte."""
    assert cache.get(KEY, lambda: b"\0code\n\n") == b"\0code\n\n"
    assert CodeCache(cache.folder).get(KEY, never) == b"\0code\n\n"


def test_every_key_has_its_own(cache):
    """Another architecture, or other contents, are another object."""
    others = [replace(KEY, arch="gfx90a"), replace(KEY, digest="f" * 64), replace(KEY, module="m")]
    for number, key in enumerate([KEY, *others]):
        assert cache.get(key, lambda n=number: b"%d" % n) == b"%d" % number
    assert len(cache.entries()) == 4


def test_what_a_maker_raises_passes_through(cache):
    """A compiler's error is the caller's; nothing is kept, and the next call tries again."""
    with pytest.raises(ZeroDivisionError):
        cache.get(KEY, lambda: 1 // 0)
    assert cache.get(KEY, lambda: b"now") == b"now"


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda data: data[:-1], "its checksum is wrong"),
        (lambda data: data[:-3] + b"x" + data[-2:], "its checksum is wrong"),
        (lambda data: data[:20], "it is cut short"),
        (lambda _: b"", "it is cut short"),
        (lambda data: b"[]\n" + data, "it does not say what it holds"),
        (lambda _: b"{\xff}\n", "'utf-8' codec can't decode"),
        (lambda _: b"[" * 60_000 + b"\n", "it does not say what it holds"),
        (lambda data: data.replace(b"gfx1100", b"gfx1101"), "it is for another key"),
    ],
)
def test_a_damaged_entry_is_made_again(cache, damage, reason):
    """Whatever happened to the file, no damaged code reaches the GPU; a log line says why."""
    cache.get(KEY, lambda: b"code")
    path = cache.folder / KEY.filename
    path.write_bytes(damage(path.read_bytes()))
    with structlog.testing.capture_logs() as logs:
        assert cache.get(KEY, lambda: b"again") == b"again"
    assert [log["event"] for log in logs] == ["rocm.cache_entry_damaged"]
    assert reason in logs[0]["reason"]
    assert cache.get(KEY, never) == b"again"


def test_a_folder_that_cannot_be_made_costs_time_only(tmp_path):
    """Where nothing can be written, everything is compiled, and a log line says so."""
    (tmp_path / "file").write_text("in the way")
    cache = CodeCache(tmp_path / "file" / "kernels")
    with structlog.testing.capture_logs() as logs:
        assert cache.get(KEY, lambda: b"code") == b"code"
    assert [log["event"] for log in logs] == ["rocm.cache_not_written"]
    assert cache.entries() == []


def test_what_was_not_used_goes_first(cache):
    """The limit holds after every write, and a read counts as use."""
    keys = [replace(KEY, digest=f"{n:064x}") for n in range(4)]
    for age, key in enumerate(keys[:3]):
        cache.get(key, lambda: bytes(1000))
        os.utime(cache.folder / key.filename, (1000 + age, 1000 + age))
    cache.get(keys[0], never)
    one = cache.entries()[0].nbytes
    cache.limit = 3 * one
    cache.get(keys[3], lambda: bytes(1000))
    left = {entry.key.digest for entry in cache.entries()}
    assert left == {keys[0].digest, keys[2].digest, keys[3].digest}


def test_collecting_everything(cache):
    """A limit of nothing leaves nothing."""
    cache.get(KEY, lambda: b"code")
    assert [entry.key for entry in cache.gc(0)] == [KEY]
    assert cache.entries() == []


def test_threads_compile_once(cache):
    """Of threads that want the same object one compiles and the others wait."""
    made = []

    def make():
        made.append(1)
        return b"code"

    threads = [threading.Thread(target=cache.get, args=(KEY, make)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert made == [1]


WORKER = """
import sys, time
from pathlib import Path
from propolis_rocm_hip.cache import CodeCache, Key
folder = Path(sys.argv[1])
def make():
    (folder.parent / f"made-{time.time_ns()}").touch()
    time.sleep(0.2)
    return b"code" * 1000
for number in range(3):
    key = Key("unary", "gfx1100", f"{number:064x}", "HIP 1")
    assert CodeCache(folder).get(key, make) == b"code" * 1000
"""


@pytest.mark.slow
def test_processes_compile_once(cache, tmp_path):
    """Of processes that start at once each object is compiled by one."""
    command = [sys.executable, "-c", WORKER, str(cache.folder)]
    workers = [subprocess.Popen(command) for _ in range(4)]
    assert [worker.wait(patience(60)) for worker in workers] == [0, 0, 0, 0]
    assert len(list(tmp_path.glob("made-*"))) == 3
    assert [entry.problem for entry in cache.entries(verify=True)] == ["", "", ""]


def test_nothing_is_left_of_a_write_that_fails(cache, monkeypatch):
    """A full disk leaves no half-written file behind."""
    monkeypatch.setattr(os, "fsync", lambda _: (_ for _ in ()).throw(OSError("disk full")))
    with structlog.testing.capture_logs() as logs:
        assert cache.get(KEY, lambda: b"code") == b"code"
    assert "disk full" in logs[0]["reason"]
    assert [p.name for p in cache.folder.iterdir() if "lock" not in p.name] == []


# -- the command -----------------------------------------------------------------


@pytest.fixture
def filled(cli):
    """The user's cache with a sound entry and a damaged one."""
    from propolis import Config

    cache = CodeCache(Config.load().cache_dir / "kernels")
    cache.get(KEY, lambda: b"code")
    cache.get(replace(KEY, module="binary", digest="a" * 64), lambda: b"code")
    path = cache.folder / KEY.filename
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    return cache


def test_listing(cli, filled):
    """Each object with its size, last use, module, architecture and compiler."""
    code, out, _ = cli("cache", "ls")
    assert code == 0
    assert "unary for gfx1100, HIP 1" in out
    assert "binary for gfx1100, HIP 1" in out
    assert out.splitlines()[-1] == f"2 code objects, 0.0 MiB in {filled.folder}"


def test_listing_for_machines(cli, filled):
    """The same as JSON."""
    code, out, _ = cli("cache", "ls", "--json")
    assert code == 0
    assert {entry["module"] for entry in json.loads(out)} == {"unary", "binary"}


def test_verifying(cli, filled):
    """What is damaged goes, and the exit code says that something was."""
    code, out, _ = cli("cache", "verify")
    assert code == 1
    assert out.splitlines() == [
        f"removed {KEY.filename}: its checksum is wrong",
        "1 of 2 code objects are sound",
    ]
    assert cli("cache", "verify")[:2] == (0, "1 of 1 code objects are sound\n")


def test_verifying_for_machines(cli, filled):
    """The damaged entries as JSON."""
    code, out, _ = cli("cache", "verify", "--json")
    assert code == 1
    assert [entry["problem"] for entry in json.loads(out)] == ["its checksum is wrong"]


def test_shrinking(cli, filled):
    """Down to a size, or to the cache's own limit."""
    assert cli("cache", "gc")[:2] == (0, "0.0 MiB freed\n")
    code, out, _ = cli("cache", "gc", "--max-mib", "0")
    assert code == 0
    assert sorted(out.splitlines()) == [
        "0.0 MiB freed",
        "removed binary for gfx1100, HIP 1",
        "removed unary for gfx1100, HIP 1",
    ]
    assert cli("cache", "ls", "--json")[1].strip() == "[]"
    assert cli("cache", "gc", "--json")[1].strip() == "[]"


def test_a_file_that_is_no_entry(cli, filled):
    """It is listed as what it is."""
    (filled.folder / "stray.co").write_bytes(b"?")
    assert "stray.co: it is cut short" in cli("cache", "ls")[1]
