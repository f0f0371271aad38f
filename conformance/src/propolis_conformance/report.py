"""What a user with a card sends: everything that decides how the plugin behaved."""

from __future__ import annotations

import json
import re
import shlex
from collections import Counter
from dataclasses import asdict
from dataclasses import dataclass
from dataclasses import field
from dataclasses import fields
from dataclasses import replace
from datetime import UTC
from datetime import datetime
from typing import TYPE_CHECKING
from typing import Any
from typing import Final

from pydantic import TypeAdapter
from pydantic import ValidationError

from propolis import __version__
from propolis.errors import UsageError
from propolis_conformance.facts import host
from propolis_conformance.facts import libraries
from propolis_conformance.facts import without_places
from propolis_conformance.judge import RANDOM
from propolis_conformance.judge import Result
from propolis_conformance.pool import TIMEOUT
from propolis_conformance.pool import scale_of


if TYPE_CHECKING:
    from collections.abc import Mapping
    from collections.abc import Sequence
    from pathlib import Path

    from propolis_conformance.pool import Request

FORMAT: Final = 1
STATUSES: Final = ("passed", "failed", "expected", "declined", "no recipe", "no truth")


@dataclass(frozen=True, slots=True)
class JudgedPlugin:
    """The plugin that was judged."""

    plugin: str
    distribution: str
    version: str


@dataclass(frozen=True, slots=True)
class JudgedDevice:
    """
    The device that it ran on.

    Attributes:
        id: ``"rocm:0"``.
        name: its marketing name.
        arch: its architecture.
        extra: what its plugin says of it; a ``"simulator"`` there is no hardware.
    """

    id: str
    name: str
    arch: str
    extra: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """
    The results of a run, and what they depend on.

    Attributes:
        format: of the JSON; see ``FORMAT``.
        propolis: version of the core whose suite judged.
        date: the day of the run, in UTC.
        command: repeats the run, with ``--op`` for each of ``ops``.
        ops: what was chosen of the plugin; empty for all.
        quick: the random cases, and combinations of dtypes, were left out.
        random: whether there could be random cases: they need Hypothesis.
        scale: of large sizes and of the number of random cases; 1 unless the device is slow.
        shard: which part of all units was judged, as ``"1/2"``; empty for all.
        plugin: who was judged.
        device: where.
        host: Python, system, driver.
        libraries: versions.
        seconds: how long all took.
        results: of every unit.
    """

    format: int
    propolis: str
    date: str
    command: str
    ops: list[str]
    quick: bool
    plugin: JudgedPlugin
    device: JudgedDevice
    host: dict[str, str]
    libraries: dict[str, str]
    seconds: float
    results: list[Result]
    random: bool = True
    scale: float = 1.0
    shard: str = ""

    @property
    def name(self) -> str:
        """What its files are called: ``"cpu_ref-0.1.0-x86_64"``."""
        arch = re.sub(r"[^\w.+-]", "_", self.device.arch)
        return f"{self.plugin.plugin}-{self.plugin.version}-{arch}"

    @property
    def counts(self) -> dict[str, int]:
        """How many units have each status."""
        tally = Counter(result.status for result in self.results)
        return {status: tally[status] for status in dict.fromkeys((*STATUSES, *tally))}

    @property
    def cases(self) -> int:
        """How many calls were judged."""
        return sum(result.cases for result in self.results)

    @property
    def cut(self) -> int:
        """How many units were not judged to the end, for want of time."""
        return sum(result.cut for result in self.results)

    @property
    def complete(self) -> bool:
        """Whether all that the plugin declares was judged, with all cases."""
        part = self.ops or self.shard or self.quick or self.cut
        return self.random and not part

    @property
    def shortfall(self) -> int:
        """How much was not judged, of what was asked for: what ``--strict`` refuses."""
        untold = ("declined", "no recipe", "no truth")
        counts = self.counts
        return sum(counts[s] for s in untold) + self.cut + (not self.quick and not self.random)

    @property
    def simulator(self) -> str:
        """What played the hardware; empty where it was hardware."""
        return self.device.extra.get("simulator", "")

    @property
    def summary(self) -> str:
        """Counts in one line."""
        counts = ", ".join(f"{n} {status}" for status, n in self.counts.items() if n)
        what = f"{len(self.results)} op x dtype: {counts or 'nothing to judge'}"
        said = f"{what} ({self.seconds:.0f} s, {self.cases} cases)"
        if self.shard:
            said += f"; shard {self.shard} of all"
        if self.cut:
            said += f"; {self.cut} not to the end, for want of time: --seconds gives more"
        if not self.quick and not self.random:
            said += "; no random cases: pip install 'propolis-conformance[random]'"
        return said

    def again(self, unit: str) -> str:
        """The command that judges one unit as this run did."""
        return self._with_ops([unit])

    @property
    def whole_command(self) -> str:
        """The command that repeats the run."""
        return self._with_ops(self.ops)

    def _with_ops(self, ops: Sequence[str]) -> str:
        return " ".join([self.command, *(f"--op {shlex.quote(op)}" for op in ops)])

    def json(self) -> str:
        """JSON with one line for each result, without what is empty."""
        head = asdict(replace(self, results=[]))
        del head["results"]
        head |= {"counts": self.counts, "cases": self.cases}
        lines = [json.dumps(_told(result)) for result in self.results]
        body = json.dumps(head, indent=2).removesuffix("\n}")
        return body + ',\n  "results": [\n    ' + ",\n    ".join(lines) + "\n  ]\n}\n"


def build(
    results: Sequence[Result],
    facts: Mapping[str, Any],
    request: Request,
    seconds: float,
    ops: Sequence[str] = (),
) -> Report:
    """
    The report of a run, cleaned of names of places.

    Args:
        results: of every unit.
        facts: about plugin and device, from the child that loaded them.
        request: what was asked for.
        seconds: how long all took.
        ops: the ops that were chosen; all when empty.
    """
    ours = ("propolis-core", "propolis-conformance", "propolis-cpu-ref", "numpy")
    extra = {str(k): without_places(str(v)) for k, v in facts["device_extra"].items()}
    return Report(
        format=FORMAT,
        propolis=__version__,
        date=datetime.now(UTC).date().isoformat(),
        command=_command(request),
        ops=list(ops),
        quick=request.quick,
        plugin=JudgedPlugin(facts["plugin"], facts["distribution"], facts["version"]),
        device=JudgedDevice(facts["device"], facts["device_name"], facts["arch"], extra),
        host=host(),
        libraries=libraries((facts["distribution"], *ours), facts["files"]),
        seconds=round(seconds, 1),
        random=RANDOM,
        scale=scale_of(request, facts),
        shard=_shard(request),
        results=[
            replace(r, message=without_places(r.message), seconds=round(r.seconds, 2))
            for r in results
        ],
    )


def load(file: Path) -> Report:
    """
    A report that somebody wrote.

    Raises:
        UsageError: it cannot be read, or is no report of a format known here.
    """
    again = "`propolis conformance PLUGIN --report FOLDER` writes one"
    try:
        found = json.loads(file.read_text())
        report = TypeAdapter(Report).validate_python(found)
    except OSError as exc:
        msg = f"{file} cannot be read: {exc.strerror}"
        raise UsageError(msg) from exc
    except ValidationError as exc:
        error = exc.errors()[0]
        where = ".".join(map(str, error["loc"])) or "the document"
        msg = f"{file} is no conformance report: {where}: {error['msg']}; {again}"
        raise UsageError(msg) from exc
    except (ValueError, RecursionError) as exc:
        msg = f"{file} is not JSON: {exc}; {again}"
        raise UsageError(msg) from exc
    if report.format != FORMAT:
        msg = f"{file} has format {report.format}; this version reads {FORMAT}; {again}"
        raise UsageError(msg)
    return report


def _command(request: Request) -> str:
    words = ["propolis", "conformance", request.plugin]
    if request.device is not None:
        words += ["--device", request.device]
    if request.quick:
        words.append("--quick")
    if request.scale is not None:
        words += ["--scale", f"{request.scale:g}"]
    if request.seconds is not None:
        words += ["--seconds", f"{request.seconds:g}"]
    if request.timeout != TIMEOUT:
        words += ["--timeout", f"{request.timeout:g}"]
    if shard := _shard(request):
        words += ["--shard", shard]
    return shlex.join([*words, "--seed", str(request.seed)])


def _shard(request: Request) -> str:
    number, shards = request.shard
    return f"{number}/{shards}" if shards > 1 else ""


def _told(result: Result) -> dict[str, Any]:
    """A result without what is as it is by default, save its status."""
    empty = Result("")
    return {
        f.name: getattr(result, f.name)
        for f in fields(result)
        if f.name == "status" or getattr(result, f.name) != getattr(empty, f.name)
    }
