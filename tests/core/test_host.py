"""What of the host a process may take, as files under /proc and /sys say it."""

from __future__ import annotations

import os

import pytest

from propolis.host import free_memory
from propolis.host import usable_cores


MEMINFO = "MemTotal:  9000 kB\nMemFree:  10 kB\nMemAvailable:  4000 kB\nSwapFree: 8000 kB\n"


@pytest.fixture
def host(tmp_path, monkeypatch):
    """Return a function that writes files of a host with 64 cores, and gives its root."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(64)))

    def made(files):
        for name, text in files.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return tmp_path

    return made


V2 = "sys/fs/cgroup/"
V1 = "sys/fs/cgroup/memory/"

MEMORY = {
    "nothing is said": ({}, None),
    "no groups": ({"proc/meminfo": MEMINFO}, 4000 * 1024),
    "a group of version 2, without its cache": (
        {
            "proc/meminfo": MEMINFO,
            "proc/self/cgroup": "0::/a/b\n",
            V2 + "a/b/memory.max": "1000000\n",
            V2 + "a/b/memory.current": "700000\n",
            V2 + "a/b/memory.stat": "anon 5\ninactive_file 1000\nactive_file 200\nshmem 9\n",
        },
        301_200,
    ),
    "the group above has less": (
        {
            "proc/self/cgroup": "0::/a/b\n",
            V2 + "a/b/memory.max": "max\n",
            V2 + "a/b/memory.current": "1\n",
            V2 + "a/memory.max": "500\n",
            V2 + "a/memory.current": "100\n",
        },
        400,
    ),
    "no limit": (
        {
            "proc/meminfo": MEMINFO,
            "proc/self/cgroup": "0::/\n",
            V2 + "memory.max": "max\n",
            V2 + "memory.current": "100\n",
        },
        4000 * 1024,
    ),
    "the system has less than the group": (
        {
            "proc/meminfo": MEMINFO,
            "proc/self/cgroup": "0::/\n",
            V2 + "memory.max": "99999999999\n",
            V2 + "memory.current": "0\n",
        },
        4000 * 1024,
    ),
    "a group of version 1": (
        {
            "proc/self/cgroup": "7:cpuset:/\n4:memory:/box\n0::/\n",
            V1 + "box/memory.limit_in_bytes": "1000\n",
            V1 + "box/memory.usage_in_bytes": "900\n",
            V1 + "box/memory.stat": "inactive_file 1\ntotal_inactive_file 50\n",
            V1 + "memory.limit_in_bytes": "9223372036854771712\n",
            V1 + "memory.usage_in_bytes": "5\n",
        },
        150,
    ),
    "a container of version 1, whose path is the host's": (
        {
            "proc/self/cgroup": "4:memory:/docker/0123\n",
            V1 + "memory.limit_in_bytes": "1000\n",
            V1 + "memory.usage_in_bytes": "100\n",
        },
        900,
    ),
    "more is taken than allowed": (
        {
            "proc/self/cgroup": "0::/\n",
            V2 + "memory.max": "100\n",
            V2 + "memory.current": "150\n",
        },
        0,
    ),
    "a path that leads out": (
        {
            "proc/meminfo": MEMINFO,
            "proc/self/cgroup": "0::/../x\nnonsense\n",
            "sys/fs/x/memory.max": "1\n",
            "sys/fs/x/memory.current": "0\n",
        },
        4000 * 1024,
    ),
}


@pytest.mark.parametrize("case", MEMORY)
def test_free_memory(host, case):
    """The smallest of what the system and every control group leave; cache counts as free."""
    files, expected = MEMORY[case]
    assert expected == free_memory(host(files))


CORES = {
    "no quota": ({}, 64),
    "version 2": ({"proc/self/cgroup": "0::/a\n", V2 + "a/cpu.max": "250000 100000\n"}, 3),
    "the group above": ({"proc/self/cgroup": "0::/a/b\n", V2 + "a/cpu.max": "100000 100000\n"}, 1),
    "unlimited": ({"proc/self/cgroup": "0::/\n", V2 + "cpu.max": "max 100000\n"}, 64),
    "half a core": ({"proc/self/cgroup": "0::/\n", V2 + "cpu.max": "50000 100000\n"}, 1),
    "more than there are": ({"proc/self/cgroup": "0::/\n", V2 + "cpu.max": "9000000 1000\n"}, 64),
    "version 1": (
        {
            "proc/self/cgroup": "3:cpu,cpuacct:/box\n",
            "sys/fs/cgroup/cpu/box/cpu.cfs_quota_us": "200000\n",
            "sys/fs/cgroup/cpu/box/cpu.cfs_period_us": "100000\n",
            "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
            "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
        },
        2,
    ),
}


@pytest.mark.parametrize("case", CORES)
def test_usable_cores(host, case):
    """Cores that a process may run on, or that quotas allow where that is fewer."""
    files, expected = CORES[case]
    assert expected == usable_cores(host(files))
