"""
The child process that compiles; see :mod:`propolis_rocm_hip.rtc`.

It reads a program as JSON and writes, to the first file descriptor it is given, one line of
JSON and then the code object.  The second is a pipe that nobody writes to: when it ends, who
asked is gone, and so are we and the compilers that we started.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from typing import Any

from propolis.errors import DeviceError
from propolis_rocm_hip import _ffi


def main() -> None:
    """Compile what standard input describes."""
    threading.Thread(target=_end_with, args=[int(sys.argv[2])], daemon=True).start()
    program = json.load(sys.stdin)
    answer: dict[str, Any] = {"missing": "", "call": "", "code": 0, "name": "", "log": ""}
    code = b""
    try:
        code = _compile(_ffi.hiprtc(), program, answer)
    except DeviceError as exc:
        answer["missing"] = str(exc)
    with os.fdopen(int(sys.argv[1]), "wb") as file:
        file.write(json.dumps(answer).encode() + b"\n" + code)


def _end_with(pipe: int) -> None:
    """Wait until the other end of a pipe is closed; then end this process and its children."""
    os.read(pipe, 1)
    os.killpg(0, signal.SIGKILL)


def _compile(rtc: Any, program: dict[str, Any], answer: dict[str, Any]) -> bytes:
    """The code object; empty when a call failed, with ``answer`` saying which."""
    headers = program["headers"]
    names = [name.encode() for name in headers] or None
    texts = [text.encode() for text in headers.values()] or None
    source, name = program["source"].encode(), f"{program['name']}.hip".encode()
    result = rtc.hiprtcCreateProgram(source, name, len(headers), texts, names)
    if _failed(rtc, answer, "hiprtcCreateProgram", result):
        return b""
    handle = result[1]
    options = [f"--offload-arch={program['arch']}".encode(), *map(str.encode, program["flags"])]
    result = rtc.hiprtcCompileProgram(handle, len(options), options)
    if _failed(rtc, answer, "hiprtcCompileProgram", result):
        answer["log"] = _log(rtc, handle)
        return b""
    result = rtc.hiprtcGetCodeSize(handle)
    if _failed(rtc, answer, "hiprtcGetCodeSize", result):
        return b""
    code = bytearray(result[1])
    if _failed(rtc, answer, "hiprtcGetCode", rtc.hiprtcGetCode(handle, code)):
        return b""
    return bytes(code)


def _log(rtc: Any, handle: Any) -> str:
    status, size = rtc.hiprtcGetProgramLogSize(handle)
    log = bytearray(size + 1)
    if status or rtc.hiprtcGetProgramLog(handle, log)[0]:
        return ""
    return log.rstrip(b"\0").decode(errors="replace")


def _failed(rtc: Any, answer: dict[str, Any], call: str, result: tuple[Any, ...]) -> bool:
    code = int(result[0])
    if code:
        answer.update(call=call, code=code, name=rtc.hiprtcResult(code).name)
    return bool(code)


if __name__ == "__main__":
    main()
