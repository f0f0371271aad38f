"""
A server under load: many clients for minutes or hours, every answer checked.

Starts ``propolis serve``, asks each question alone, and then lets clients ask them in random
order, as streams, for as long as is wanted.  Reports errors, answers that differ from those alone,
times to the first token and between tokens, tokens a second against one client, and how memory
grew.  Another server of OpenAI's API that runs already is the peer: the same clients ask it in turn
with ours, each for half of the time, twice.

    python benches/soak.py [--minutes 10 | --hours 1] [--clients 64] [--device cpu] [--json FILE]
        [--peer http://127.0.0.1:8000] [--fault HIPSIM_FAIL_LAUNCH=1:500 ...] [--kill 20]

With ``--fault``, a variable of the server's environment that makes the simulator fail, or
``--kill``, which kills the engine every so many seconds, errors are expected, but each must be told
in words, and no answer may be wrong.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import re
import signal
import socket
import statistics
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass
from dataclasses import field
from pathlib import Path
from typing import Any

import httpx2


QUESTIONS = [
    f"{verb} {thing}"
    for verb in ("Explain", "What is", "Write one sentence about", "Name three uses of")
    for thing in ("honey", "a bridge", "gravity", "the moon", "a violin", "salt", "trains", "wool")
]


@dataclass
class Tally:
    """What a run of clients saw."""

    answers: int = 0
    tokens: int = 0
    errors: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    cut: list[str] = field(default_factory=list)
    first: list[float] = field(default_factory=list)
    between: list[float] = field(default_factory=list)
    seconds: float = 0.0
    memory: list[int] = field(default_factory=list)

    def report(self) -> dict[str, Any]:
        """The figures."""
        return {
            "answers": self.answers,
            "errors": len(self.errors),
            "wrong": len(self.wrong),
            "cut": len(self.cut),
            "told": Counter(re.sub(r"\d+", "N", error)[:120] for error in self.errors),
            "tokens_per_second": round(self.tokens / self.seconds, 1) if self.seconds else 0,
            "first_token_ms": _spread(self.first),
            "between_tokens_ms": _spread(self.between),
            "memory_mb": [round(value / 1e6) for value in self.memory],
        }


def main() -> None:
    """Serve, ask, report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--hours", type=float)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--model")
    parser.add_argument("--peer", metavar="URL")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--fault", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--kill", type=float, metavar="SECONDS", help="kill the engine so often")
    asked = parser.parse_args()
    seconds = asked.hours * 3600 if asked.hours else asked.minutes * 60
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "propolis", "serve", "--port", str(port), "--context", "512"]
    command += ["--device", asked.device, "--sequences", "32", "--cache-tokens", "8192"]
    command += ["-m", asked.model] if asked.model else []
    environ = {k: v for k, v in os.environ.items() if k != "OPENBLAS_CORETYPE"}
    environ |= dict(fault.split("=", 1) for fault in asked.fault)
    server = subprocess.Popen(command, env=environ)
    try:
        report = asyncio.run(_measure(f"http://127.0.0.1:{port}", server.pid, asked, seconds))
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait(60)
    print(json.dumps(report, indent=1))
    if asked.json:
        asked.json.write_text(json.dumps(report, indent=1) + "\n")
    ours = [part for name, part in report.items() if name.startswith("propolis")]
    faulty = bool(asked.fault or asked.kill)
    if any(part["wrong"] or part["cut"] or (part["errors"] and not faulty) for part in ours):
        sys.exit(1)


class Contender:
    """A server, and what its clients saw."""

    def __init__(self, name: str, url: str, pid: int | None) -> None:
        self.name, self.pid = name, pid
        limits = httpx2.Limits(max_connections=None)
        self.http = httpx2.AsyncClient(base_url=url, timeout=600, limits=limits)
        self.truth: dict[str, str] = {}
        self.alone, self.many = Tally(), Tally()

    async def ask_alone(self, tokens: int) -> None:
        """Each question once, one after the other; one before, which is slow and does not count."""
        with contextlib.suppress(ValueError):  # of a device that fails
            await _ask(self.http, "What is soap?", tokens, Tally())
        started = time.perf_counter()
        for question in QUESTIONS:
            while question not in self.truth:
                try:
                    self.truth[question] = await _ask(self.http, question, tokens, self.alone)
                except ValueError as exc:  # of a device that fails: asked again
                    self.alone.errors.append(str(exc))
                    await asyncio.sleep(0.5)
        self.alone.seconds += time.perf_counter() - started

    async def ask_together(self, asked: argparse.Namespace, seconds: float) -> None:
        """Many clients for some time."""
        started = time.perf_counter()
        end = started + seconds
        many = self.many
        beside = [_watch(self.pid, many, seconds / 20)] if self.pid else []
        if self.pid and asked.kill:
            beside.append(_kill(self.pid, asked.kill))
        tasks = [asyncio.create_task(one) for one in beside]
        numbers = range(asked.clients)
        await asyncio.gather(
            *(_client(self.http, self.truth, asked.tokens, many, end, n) for n in numbers)
        )
        many.seconds += time.perf_counter() - started
        for task in tasks:
            task.cancel()


async def _measure(url: str, pid: int, asked: argparse.Namespace, seconds: float) -> dict[str, Any]:
    contenders = [Contender("propolis", url, pid)]
    if asked.peer:
        contenders.append(Contender("peer", asked.peer, None))
    turns = len(contenders)
    await _ready(contenders[0].http)
    for one in contenders:
        await one.ask_alone(asked.tokens)
    for _ in range(turns):
        for one in contenders:
            await one.ask_together(asked, seconds / turns)
    report = {}
    for one in contenders:
        await one.http.aclose()
        for error in (one.many.cut + one.many.wrong)[:5]:
            print(f"{one.name}: {error}", file=sys.stderr)
        report[f"{one.name}, one client"] = one.alone.report()
        report[f"{one.name}, {asked.clients} clients"] = one.many.report()
    return report


async def _client(
    http: httpx2.AsyncClient,
    truth: dict[str, str],
    tokens: int,
    tally: Tally,
    end: float,
    seed: int,
) -> None:
    rng = random.Random(seed)  # noqa: S311  (which question)
    while time.perf_counter() < end:
        question = rng.choice(QUESTIONS)
        try:
            text = await _ask(http, question, tokens, tally)
        except ValueError as exc:
            tally.errors.append(str(exc))
            await asyncio.sleep(1)
            continue
        except httpx2.HTTPError as exc:  # nobody said why
            tally.cut.append(f"{question}: {exc!r}")
            await asyncio.sleep(1)
            continue
        if text != truth[question]:
            tally.wrong.append(f"{question}: {text!r} is not {truth[question]!r}")


async def _ask(http: httpx2.AsyncClient, question: str, tokens: int, tally: Tally) -> str:
    body = {
        "messages": [{"role": "user", "content": question}],
        "temperature": 0,
        "max_tokens": tokens,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    text, last = "", time.perf_counter()
    began, pieces, used = False, 0, None
    async with http.stream("POST", "/v1/chat/completions", json=body) as answer:
        if answer.status_code != 200:
            said = (await answer.aread()).decode()
            if answer.status_code == 400:  # it would be so the next time too
                msg = f"the server refuses the question: {said}"
                raise SystemExit(msg)
            raise ValueError(said)
        async for line in answer.aiter_lines():
            if not line.startswith("data: {"):
                continue
            event = json.loads(line[6:])
            if "error" in event:
                raise ValueError(event["error"]["message"])
            piece = "".join(c["delta"].get("content") or "" for c in event["choices"])
            if piece:
                now = time.perf_counter()
                (tally.between if began else tally.first).append(now - last)
                last, began = now, True
                text += piece
                pieces += 1
            if event.get("usage"):
                used = event["usage"]["completion_tokens"]
    tally.tokens += pieces if used is None else used  # not every server tells
    tally.answers += 1
    return text


async def _ready(http: httpx2.AsyncClient) -> None:
    while True:
        try:
            if (await http.get("/v1/ready")).status_code == 200:
                return
        except httpx2.HTTPError:
            pass
        await asyncio.sleep(0.2)


async def _kill(pid: int, pause: float) -> None:
    """Kill the process that computes now and then."""
    while True:
        await asyncio.sleep(pause)
        for child in _children(pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)


async def _watch(pid: int, tally: Tally, pause: float) -> None:
    """Note the memory of the server and its engine now and then."""
    while True:
        await asyncio.sleep(pause)
        tally.memory.append(sum(map(_resident, [pid, *_children(pid)])))


def _children(pid: int) -> list[int]:
    path = Path(f"/proc/{pid}/task")
    found = "".join((task / "children").read_text() for task in path.iterdir())
    return [int(child) for child in found.split()]


def _resident(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (FileNotFoundError, ProcessLookupError):
        return 0


def _spread(seconds: list[float]) -> dict[str, float]:
    if len(seconds) < 2:
        return {}
    cuts = statistics.quantiles(seconds, n=100)
    return {"p50": round(cuts[49] * 1e3, 1), "p99": round(cuts[98] * 1e3, 1)}


if __name__ == "__main__":
    main()
