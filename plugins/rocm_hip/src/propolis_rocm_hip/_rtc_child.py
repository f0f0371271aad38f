"""
The child process that compiles; see :mod:`propolis_rocm_hip.rtc`.

It reads a program as JSON and writes, to the file descriptor it is given, one line of
JSON and then the code object.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from propolis.errors import DeviceError
from propolis_rocm_hip import _ffi


def main() -> None:
    """Compile what standard input describes."""
    program = json.load(sys.stdin)
    answer: dict[str, Any] = {"missing": "", "call": "", "code": 0, "name": "", "log": ""}
    code = b""
    try:
        code = _compile(_ffi.hiprtc(), program, answer)
    except DeviceError as exc:
        answer["missing"] = str(exc)
    with os.fdopen(int(sys.argv[1]), "wb") as file:
        file.write(json.dumps(answer).encode() + b"\n" + code)


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
