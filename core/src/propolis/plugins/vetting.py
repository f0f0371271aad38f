"""
Try a plugin in a child process before letting it into this one.

Native libraries can abort, crash or hang the process that loads them (rocBLAS
aborts on an architecture it has no kernels for), and no ``except`` catches that.
So the first process that meets a plugin imports it and calls its probe in a child;
the answer is kept on disk for as long as nothing it depends on changes.  Several that are new are
asked in one child, one after the other; who does not say yes there is asked again in a child alone,
so that nobody is blamed for another.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import json
import os
import platform
import select
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING
from typing import Any
from typing import Literal
from typing import NamedTuple

import importlib_metadata

from propolis.errors import PluginError
from propolis.files import replace_text
from propolis.plugins.discovery import module_of
from propolis.plugins.discovery import required
from propolis.records import API_LEVEL
from propolis.records import ProbeResult


if TYPE_CHECKING:
    from collections.abc import Iterable
    from collections.abc import Sequence

    from propolis.plugins.discovery import Candidate


Reprobe = bool | Literal["unless hung"]
"""Whether to ask probes again whose answers are known."""

# What decides how ROCm libraries behave, besides the files themselves.
_ENVIRONMENT = (
    "HSA_OVERRIDE_GFX_VERSION",
    "LD_LIBRARY_PATH",
    "ROCM_PATH",
    "HIP_VISIBLE_DEVICES",
    "ROCR_VISIBLE_DEVICES",
)

# How a process ends that someone else ended (the kernel, short of memory; a user):
# no fault of the plugin, so no answer to keep.
_FROM_OUTSIDE = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)

_CACHED_ANSWERS = 256
_HUNG = "its probe hung"
_AGAIN = "; `propolis plugins --reprobe` asks again"

# Set in the child.  A plugin that starts a runtime while it is imported would be
# vetted by a child of the child, and so on without end.
in_child = False


def vet_together(
    candidates: Sequence[Candidate], *, timeout: float, cache_dir: Path, fresh: Reprobe = False
) -> dict[Candidate, ProbeResult]:
    """
    What is known of plugins, and what those that are new say in one child process, if it is yes.

    The others are for :func:`vet`.  A process takes a third of a second, whoever is asked in it.

    Args:
        candidates: the plugins, in the order in which they are to be imported.
        timeout: seconds until a child that hangs is killed.
        cache_dir: where answers are kept.
        fresh: see :func:`vet`.
    """
    cache = _Cache(cache_dir / "probes.json")
    keys = {candidate: fingerprint(candidate, str(timeout)) for candidate in candidates}
    found = {c: known for c, key in keys.items() if (known := cache.known(key, fresh))}
    unknown = [candidate for candidate in candidates if candidate not in found]
    if in_child or len(unknown) < 2:  # one is asked alone anyway
        return found
    # What cannot be started, or read, is said of each alone.
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        answers = _run_child([candidate.value for candidate in unknown], timeout).answers
        for candidate, answer in zip(unknown, map(json.loads, answers), strict=False):
            result = _result(answer)
            if result.ok:
                found[candidate] = result
                cache.put(keys[candidate], result)
    return found


def vet(
    candidate: Candidate, *, timeout: float, cache_dir: Path, fresh: Reprobe = False
) -> ProbeResult:
    """
    Whether a plugin imports and its probe says yes, in a child process.

    Args:
        candidate: the plugin.
        timeout: seconds until a child that hangs is killed.
        cache_dir: where answers are kept.
        fresh: ask again even if the answer is known; ``"unless hung"``: save where that is
            that none came.

    Raises:
        PluginError: this is the child process.
    """
    if in_child:
        msg = (
            "plugins are loading: a plugin's import and its probe must not start a runtime "
            "(Tensor.from_numpy without a device does)"
        )
        raise PluginError(msg)
    cache = _Cache(cache_dir / "probes.json")
    key = fingerprint(candidate, str(timeout))
    known = cache.known(key, fresh)
    if known is not None:
        return known
    try:
        result, lasting = _ask_child(candidate, timeout)
    except OSError as exc:  # no processes, no memory, no folder for temporary files
        reason = f"its probe cannot be started: {exc}"
        return ProbeResult(ok=False, reason=reason, answered=False)
    if lasting:
        cache.put(key, result)
    return result


def _ask_child(candidate: Candidate, timeout: float) -> tuple[ProbeResult, bool]:
    """The child's answer, and whether it holds until something changes."""
    end = _run_child([candidate.value], timeout)
    if end.code is None:
        reason = f"{_HUNG}: no answer in {timeout:g} s (probe_timeout){_AGAIN}"
        return ProbeResult(ok=False, reason=reason, answered=False), True
    return _judge(end.code, b"".join(end.answers), end.last_line)


class _End(NamedTuple):
    """
    How a child ended.

    Attributes:
        code: its exit code; None where it hung, and was killed.
        answers: of those that were asked, in order, as far as it came: JSON.
        last_line: what it printed last, for a reason.
    """

    code: int | None
    answers: list[bytes]
    last_line: str


def _run_child(values: Sequence[str], timeout: float) -> _End:
    """
    Ask the plugins with these entry-point values.

    Raises:
        OSError: no child can be started.
    """
    path = list(map(os.fspath, sys.path))
    # Files, not pipes: a process that the probe leaves behind keeps a pipe open, and
    # a probe that prints much fills it.
    with (
        tempfile.TemporaryFile() as output,
        tempfile.TemporaryFile() as answer,
        tempfile.TemporaryFile() as request,
    ):
        asked = {"values": values, "path": path, "answer": answer.fileno()}
        request.write(json.dumps(asked).encode())
        request.seek(0)
        with subprocess.Popen(
            # -P: nothing in the working folder takes a module's place.
            [sys.executable, "-P", "-m", "propolis.plugins._child"],
            stdin=request,
            stdout=output,
            stderr=subprocess.STDOUT,
            pass_fds=[answer.fileno()],
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(p or os.curdir for p in path)},
        ) as child:
            try:
                hung = not _ends(child, timeout)
            finally:
                # The whole group: a probe may have started processes of its own.
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(child.pid, signal.SIGKILL)
        answer.seek(0)
        code = None if hung else child.returncode
        return _End(code, answer.read().splitlines(keepends=True), _last_line(output))


def _ends(child: subprocess.Popen[bytes], timeout: float) -> bool:
    """
    Whether a process ends in time.

    ``Popen.wait`` looks every 50 ms, half of which is a part of each start that people notice;
    Linux says it at once.
    """
    if hasattr(os, "pidfd_open"):
        with contextlib.suppress(OSError):  # an old kernel
            ended = os.pidfd_open(child.pid)
            try:
                watched = select.poll()
                watched.register(ended, select.POLLIN)
                timeout = 1.0 if watched.poll(timeout * 1e3) else 0.0
            finally:
                os.close(ended)
    try:
        child.wait(timeout)
    except subprocess.TimeoutExpired:
        return False
    return True


def _judge(code: int, answer: bytes, last_line: str) -> tuple[ProbeResult, bool]:
    """What the child's end and its answer mean, and whether that holds."""
    if code < 0:
        reason = f"its probe killed the process ({_signal_name(-code)}){last_line}"
        lasting = -code not in _FROM_OUTSIDE
        reason = reason + _AGAIN if lasting else reason
        return ProbeResult(ok=False, reason=reason, answered=False), lasting
    try:
        said: dict[str, Any] = json.loads(answer)
        result = _result(said)
    except (ValueError, KeyError, TypeError):
        reason = f"its probe ended with exit code {code} and no answer{last_line}"
        return ProbeResult(ok=False, reason=reason, answered=False), False
    # A plain "no" may be cured by means we cannot see (a group, a driver): ask again.
    return result, result.ok


def _result(said: dict[str, Any]) -> ProbeResult:
    """A result from its JSON fields."""
    files = tuple(said["files"])
    return ProbeResult(bool(said["ok"]), str(said["reason"]), files, bool(said["answered"]))


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # most real-time signals have no name
        return f"signal {number}"


def _last_line(output: Any) -> str:
    """What the child printed last, for the reason."""
    output.seek(0, os.SEEK_END)
    output.seek(max(0, output.tell() - 2000))
    lines = output.read().decode(errors="replace").split("\n")
    said = next((line.strip() for line in reversed(lines) if line.strip()), "")
    return f": {said}" if said else ""


def fingerprint(candidate: Candidate, *more: str) -> str:
    """Changes when the plugin, Python, the driver, the hardware, the API level or ``more`` does."""
    own = f"{candidate.name.upper()}_"  # what the plugin's own variables begin with
    names = sorted({*_ENVIRONMENT, *(n for n in os.environ if n.startswith(own))})
    parts = [
        repr(candidate),
        sys.prefix,  # not the interpreter's name: `python` and `python3` are one
        sys.version,
        str(API_LEVEL),
        *more,
        platform.release(),
        *(f"{name}={os.environ.get(name)}" for name in names),
        *_contents(candidate),
        *_amd_gpus(),
    ]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def _contents(candidate: Candidate) -> Iterable[str]:
    """The distribution's RECORD, and the stamps of its files where it is installed editable."""
    with contextlib.suppress(importlib_metadata.PackageNotFoundError, ValueError):
        distribution = importlib_metadata.distribution(candidate.distribution)
        yield distribution.read_text("RECORD") or ""
        # One whose module has gone is not there any more, which the child will say.
        for name in map(module_of, required(distribution)):
            if importlib.util.find_spec(name) is None:
                yield name
    module = candidate.value.partition(":")[0].partition(".")[0].strip()
    try:
        spec = importlib.util.find_spec(module)  # finds the top-level module, runs nothing
    except (ImportError, ValueError):
        return  # the child will say what is wrong
    if spec is None:
        return
    yield stamp(spec.origin or "")
    for folder in spec.submodule_search_locations or ():
        for file in sorted(Path(folder).rglob("*")):
            if file.suffix in (".py", ".so"):
                yield stamp(str(file))


def _amd_gpus() -> Iterable[str]:
    """Driver version and the architecture of each GPU, as the kernel driver shows them."""
    files = [
        Path("/sys/module/amdgpu/version"),
        *sorted(Path("/sys/class/kfd/kfd/topology/nodes").glob("*/properties")),
    ]
    for file in files:
        try:
            yield file.read_text()
        except OSError:
            continue


def stamp(file: str) -> str:
    """What changes when a file does."""
    try:
        stat = os.stat(file)  # noqa: PTH116  (thousands of calls: no Path objects)
    except (OSError, ValueError):  # no name of a file
        return f"{file} absent"
    return f"{file} {stat.st_mtime_ns} {stat.st_size}"


class _Cache:
    """Answers by fingerprint; an unreadable file is an empty cache."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def get(self, key: str) -> ProbeResult | None:
        entry = self._read().get(key)
        try:
            if entry is None or [stamp(f) for f in entry["files"]] != entry["stamps"]:
                return None
            return _result(entry)
        except (KeyError, TypeError):
            return None

    def known(self, key: str, fresh: Reprobe) -> ProbeResult | None:
        """What need not be asked again."""
        found = self.get(key)
        hung = found is not None and not found.answered and found.reason.startswith(_HUNG)
        return found if not fresh or (fresh == "unless hung" and hung) else None

    def put(self, key: str, result: ProbeResult) -> None:
        entries = self._read()
        for oldest in list(entries)[: max(0, len(entries) - _CACHED_ANSWERS + 1)]:
            del entries[oldest]
        entries[key] = {
            "ok": result.ok,
            "reason": result.reason,
            "files": list(result.files),
            "answered": result.answered,
            "stamps": [stamp(f) for f in result.files],
        }
        with contextlib.suppress(OSError):  # a read-only home costs a probe per start
            replace_json(self.path, entries)

    def _read(self) -> dict[str, Any]:
        entries = read_json(self.path)
        return entries if isinstance(entries, dict) else {}


def read_json(path: Path) -> Any:
    """What a cache file holds; None where it cannot be read."""
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError, RecursionError):
        return None


def fault_of(path: Path, kind: type) -> str:
    """Why a cache file counts for nothing: it is there, and no such value can be read; or none."""
    try:
        with path.open("rb"):
            pass
    except (FileNotFoundError, NotADirectoryError):
        return ""
    except OSError as exc:
        return f"{path} cannot be read ({exc.strerror})"
    return "" if isinstance(read_json(path), kind) else f"{path} is damaged"


def replace_json(path: Path, value: Any) -> None:
    """Write a cache file as a whole: several workers may start at once."""
    replace_text(path, json.dumps(value))
