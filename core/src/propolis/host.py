"""
What of the host a process may take: memory that is free, and cores.

Both are what the kernel says of the whole machine, and what the control groups of this
process (a container, a systemd unit) allow of it: the smallest counts.  Control groups are
read as version 1 and version 2 lay them out; each of those above ours limits us too.
"""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import TYPE_CHECKING
from typing import Final


if TYPE_CHECKING:
    from collections.abc import Iterable
    from collections.abc import Iterator

ROOT: Final = Path("/")

# Version 1 has a tree for each controller, version 2 one for all: where they are mounted,
# and the names of a group's files.
_MEMORY: Final = (
    ("memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_"),
    ("", "memory.max", "memory.current", ""),
)


def free_memory(root: Path = ROOT) -> int | None:
    """
    Bytes that this process may still take before something is killed for it.

    Swap does not count: what runs there does not end in reasonable time.

    Args:
        root: where ``proc`` and ``sys`` are.

    Returns:
        the smallest of what the system has available and of what each control group may
        still take, both with the page cache, which the kernel gives back first; None where
        nothing says so.
    """
    free = [*_available(root), *_left_in_groups(root)]
    return max(min(free), 0) if free else None


def usable_cores(root: Path = ROOT) -> int:
    """
    Cores that this process may keep busy, at least one.

    Args:
        root: where ``proc`` and ``sys`` are.

    Returns:
        those it may run on (its affinity mask), or fewer where a control group's quota is
        less: half a core counts as one.
    """
    return max(1, min([len(os.sched_getaffinity(0)), *_quotas(root)]))


def _available(root: Path) -> Iterator[int]:
    for line in _read(root / "proc/meminfo").splitlines():
        name, _, value = line.partition(":")
        if name == "MemAvailable":
            yield int(value.split()[0]) * 1024


def _left_in_groups(root: Path) -> Iterator[int]:
    for controller, limit, usage, prefix in _MEMORY:
        for group in _groups(root, controller):
            allowed, taken = _number(group / limit), _number(group / usage)
            if allowed is not None and taken is not None:
                cache = (f"{prefix}inactive_file", f"{prefix}active_file")
                yield allowed - taken + _sum(group / "memory.stat", cache)


def _quotas(root: Path) -> Iterator[int]:
    """Cores by the quotas of control groups; groups without one give none."""
    for group in _groups(root, ""):
        quota, _, period = _read(group / "cpu.max").partition(" ")
        if quota.isdigit() and period.strip().isdigit():
            yield math.ceil(int(quota) / int(period))
    for group in _groups(root, "cpu"):
        quota_us, period_us = (_number(group / f"cpu.cfs_{n}_us") for n in ("quota", "period"))
        if quota_us is not None and quota_us > 0 and period_us:
            yield math.ceil(quota_us / period_us)


def _groups(root: Path, controller: str) -> Iterator[Path]:
    """
    The folders of this process's group and of those above it, as far as they can be seen.

    In a container the path may be the host's, of which only the last part, or nothing, is
    there: the mount's root is then the container's own group.
    """
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, controllers, path = (*line.split(":", 2), "", "")[:3]
        if controller not in controllers.split(","):
            continue
        mount = root / "sys/fs/cgroup" / controller
        inner = Path(path.strip("/"))
        for part in (inner, *inner.parents) if path.strip("/") else (inner,):
            if ".." not in part.parts and (mount / part).is_dir():
                yield mount / part


def _sum(file: Path, names: Iterable[str]) -> int:
    pairs = (line.split() for line in _read(file).splitlines())
    return sum(int(pair[1]) for pair in pairs if len(pair) == 2 and pair[0] in names)


def _number(file: Path) -> int | None:
    """The one number in a file; None where it says ``max``, or is not there."""
    text = _read(file).strip()
    return int(text) if text.lstrip("-").isdigit() else None


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="ascii")
    except (OSError, ValueError):  # another system, or a sandbox that hides it
        return ""


__all__ = ["free_memory", "usable_cores"]
