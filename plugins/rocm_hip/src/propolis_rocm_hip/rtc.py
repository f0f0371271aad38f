"""
hipRTC: compile HIP source for an architecture that no code object was shipped for.

The compiler runs in a child process: on source or options that it cannot take it may
abort (libraries of ROCm 5 do, for an architecture they do not know), and it may hang.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from dataclasses import asdict
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from typing import Final

from propolis.errors import DeviceError
from propolis.preparing import preparing
from propolis_rocm_hip import _ffi
from propolis_rocm_hip.cache import Key


if TYPE_CHECKING:
    from collections.abc import Iterator
    from collections.abc import Mapping

TIMEOUT: Final = 600.0
"""Seconds that a compilation may take; the largest kernel families take tens."""

_FORMAT: Final = "1"


class CompileError(DeviceError):
    """
    hipRTC does not compile a source.

    Attributes:
        log: all that the compiler said.
    """

    def __init__(self, message: str, log: str = "") -> None:
        super().__init__(message)
        self.log = log


@dataclass(frozen=True, slots=True)
class Program:
    """
    What is to be compiled.

    Attributes:
        name: of the module.
        source: HIP source.
        headers: what it includes, by the name it includes it by.
        flags: compiler options beside the architecture.
        arch: the architecture.
    """

    name: str
    source: str
    headers: Mapping[str, str]
    flags: tuple[str, ...]
    arch: str


def cache_key(program: Program) -> Key:
    """What a compiled program is kept under: everything that decides the result."""
    parts = json.dumps(
        {
            **asdict(program),
            "headers": sorted(program.headers.items()),
            "compiler": compiler(),
            "format": _FORMAT,
        },
        sort_keys=True,
    )
    digest = hashlib.sha256(parts.encode()).hexdigest()
    return Key(module=program.name, arch=program.arch, digest=digest, compiler=compiler())


def compiler() -> str:
    """
    Which hipRTC compiles: HIP's version, and the size and time of the library's file.

    Raises:
        DeviceError: there is no HIP library.
    """
    version = _ffi.call("rocm", "hipRuntimeGetVersion")
    path = Path(_ffi.library_path("hiprtc"))
    try:
        stat = path.stat()
    except OSError:  # a bare name, which the system's loader finds
        return f"HIP {version}"
    return f"HIP {version} ({stat.st_size} {stat.st_mtime_ns})"


def compile_program(program: Program, timeout: float = TIMEOUT) -> bytes:
    """
    The code object of a program.

    Raises:
        CompileError: the source has errors, or the compiler crashed or hung; the message
            has the first error, ``log`` all of them.
        DeviceError: there is no hipRTC.
    """
    what = f"hipRTC: {program.name} for {program.arch}"
    request = json.dumps({**asdict(program), "flags": list(program.flags)}).encode()
    # Files, not pipes: a compiler's own children keep a pipe open.
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as answer, _alive() as alive:
        with subprocess.Popen(
            [
                *(sys.executable, "-P", "-m", "propolis_rocm_hip._rtc_child"),
                *(str(answer.fileno()), str(alive)),
            ],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
            pass_fds=[answer.fileno(), alive],
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(p or os.curdir for p in sys.path)},
        ) as child:
            try:
                with preparing(what):
                    child.communicate(request, timeout=timeout)
            except subprocess.TimeoutExpired:
                msg = f"{what}: no answer in {timeout:g} s: the compiler hangs"
                raise CompileError(msg) from None
            finally:
                _end_group(child.pid)
        answer.seek(0)
        output.seek(0)
        return _judge(what, child.returncode, answer.read(), output.read().decode(errors="replace"))


@contextlib.contextmanager
def _alive() -> Iterator[int]:
    """A pipe to read from that ends when this process does, however that happens."""
    read, write = os.pipe()
    try:
        yield read
    finally:
        os.close(read)
        os.close(write)


def _end_group(pid: int) -> None:
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def _judge(what: str, status: int, answer: bytes, output: str) -> bytes:
    """The code object in the child's answer; what it says in its place is an error."""
    head, newline, code = answer.partition(b"\n")
    if not newline:
        how = f"crashed ({signal.strsignal(-status)})" if status < 0 else f"exited {status}"
        last = output.strip().splitlines()[-1:] or ["it said nothing"]
        msg = (
            f"{what}: the compiler {how}: {last[0]}; a ROCm that is older than the architecture "
            f"does so: install a newer one"
        )
        raise CompileError(msg, output)
    said = json.loads(head)
    if said["missing"]:
        raise DeviceError(said["missing"])
    if said["code"]:
        log = said["log"] or output
        lines = [line for line in log.splitlines() if "error" in line] or log.splitlines()[:1]
        first = lines[0].strip() if lines else "it gives no reason"
        msg = f"{what}: {said['call']}: {said['name']} ({said['code']}): {first}"
        raise CompileError(msg, log)
    return code


__all__ = ["CompileError", "Program", "cache_key", "compile_program", "compiler"]
