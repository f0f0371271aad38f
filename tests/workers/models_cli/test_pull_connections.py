"""Pulls whose connections are cut, answered with something else, or put off."""

from __future__ import annotations

import json
import os

import pytest
from fake_hub import BIG
from fake_hub import FILE
from fake_hub import REPO
from fake_hub import left
from fake_hub import sleep_as


def test_cut_once(repository, models, folder):
    """A connection that is cut is taken up where it ended, within the same pull."""
    repository.cut = [100_000]
    assert models("pull", REPO).code == 0
    assert (folder / REPO / FILE).read_bytes() == BIG
    ranges = [headers["Range"] for headers in repository.downloads()]
    assert len(ranges) == 2
    assert ranges[0] is None
    assert 0 < int(ranges[1].removeprefix("bytes=").rstrip("-")) <= 100_000


def test_reset(repository, models, folder):
    """So is one that the other side resets, however often, as long as each brings something."""
    repository.reset = True
    repository.cut = [100_000, 0, 0, 50_000, 20_000]
    done = models("pull", REPO)
    assert done.code == 0, done.err
    assert (folder / REPO / FILE).read_bytes() == BIG


@pytest.mark.slow
def test_cut_often(hub, models, folder, monkeypatch):
    """A pull outlives more cuts than Python's stack has frames."""
    monkeypatch.setattr("propolis_workers.models.hub.CHUNK", 10)
    content = os.urandom(12_000)
    hub.files[REPO] = {FILE: content}
    hub.cut = [10] * 1100
    done = models("pull", REPO)
    assert done.code == 0, done.err
    assert (folder / REPO / FILE).read_bytes() == content


def test_cut_for_good(repository, models, folder):
    """What came before a pull gave up is kept, listed, and where the next pull goes on."""
    repository.cut = [200_000] + [0] * 20
    done = models("pull", REPO)
    assert done.code == 1
    assert "the connection was cut" in done.err
    assert "pull again, which goes on" in done.err
    (part,) = left(folder)
    came = (folder / part).stat().st_size
    assert 0 < came <= 200_000
    assert "incomplete" in models("list").out
    repository.cut, repository.asked = [], []
    done = models("pull", REPO)
    assert done.code == 0
    assert f"({0.3:.2f} MB, {came / 1e6:.2f} MB of it are here)" in done.err
    (headers,) = repository.downloads()
    assert headers["Range"] == f"bytes={came}-"
    assert left(folder) == [f"{REPO}/{FILE}"]
    assert (folder / REPO / FILE).read_bytes() == BIG


@pytest.mark.parametrize("span", [None, "bytes 5-9/300000", "items 1-2"])
def test_another_part(repository, models, folder, span):
    """What is answered with another part than was asked for is begun anew, not put behind."""
    repository.cut, repository.spans = [100_000], [span]
    done = models("pull", REPO)
    assert done.code == 0, done.err
    assert (folder / REPO / FILE).read_bytes() == BIG
    assert repository.downloads()[-1]["Range"] is None


def test_another_part_takes_nothing(repository, models, folder):
    """Until the whole file is on its way, what came before stays."""
    repository.cut, repository.spans = [200_000, 100_000, *[0] * 20], ["bytes 5-9/300000"]
    assert models("pull", REPO).code == 1
    (part,) = left(folder)
    assert (folder / part).stat().st_size == 200_000
    repository.cut = []
    assert models("pull", REPO).code == 0
    assert (folder / REPO / FILE).read_bytes() == BIG


def test_no_ranges(repository, models, folder):
    """A server that knows no ranges gives all of it again; all that came is counted."""
    repository.cut, repository.ranges = [200_000], False
    done = models("pull", REPO, "--json")
    assert (folder / REPO / FILE).read_bytes() == BIG
    assert json.loads(done.out)["fetched_bytes"] > len(BIG)


@pytest.mark.parametrize(
    ("status", "headers", "pause"),
    [
        (429, {"Retry-After": "7"}, 7),
        (429, {"RateLimit": '"resolvers";r=0;t=55'}, 56),
        (503, {}, 1),
        (502, {"Retry-After": "soon"}, 1),
        (503, {"Retry-After": "Wed, 21 Oct 2015 07:28:00 GMT"}, 0),
        (520, {"Retry-After": "9" * 5000}, 1),
    ],
)
def test_busy(repository, models, folder, monkeypatch, status, headers, pause):
    """Who is busy is asked again after as long as it says, and it is told who waits for whom."""
    waited = []
    sleep_as(monkeypatch, waited.append)
    repository.busy = [(status, headers)]
    done = models("pull", REPO)
    assert (done.code, waited) == (0, [pause])
    assert (
        f"{repository.url} answered {status}: {FILE} of {REPO} is asked for again in {pause} s\n"
        in done.err
    )
    assert (folder / REPO / FILE).read_bytes() == BIG


def test_busy_with_its_list(repository, models, folder, monkeypatch):
    """So is who is busy when it is asked what there is."""
    monkeypatch.setattr(
        "propolis_workers.models.hub._wait",
        lambda what, *_: repository.refused.clear() or said.append(what),
    )
    said = []
    repository.refused[REPO] = (429, "")
    assert models("pull", REPO).code == 0
    assert said == [REPO]
    assert (folder / REPO / FILE).read_bytes() == BIG


def test_busy_for_good(repository, models, folder, monkeypatch):
    """Who stays busy is not asked for ever, and an hour is not waited for."""
    waited = []
    sleep_as(monkeypatch, waited.append)
    repository.busy = [(503, {})] * 20
    done = models("pull", REPO)
    assert (done.code, waited) == (1, [1, 2, 4, 8, 16])
    assert "answered 503: try it later" in done.err
    repository.busy = [(429, {"Retry-After": "3600"})]
    done = models("pull", REPO)
    assert (done.code, len(waited)) == (1, 5)
    assert "answered 429, and to ask again in 3600 s: pull again then" in done.err


def test_changed_meanwhile(repository, models, folder):
    """What came of another version of a file is not gone on with."""
    repository.cut = [200_000] + [0] * 20
    models("pull", REPO)
    repository.files[REPO][FILE] = BIG[::-1]
    repository.cut = []
    assert models("pull", REPO).code == 0
    assert (folder / REPO / FILE).read_bytes() == BIG[::-1]


def test_longer_than_said(repository, models, folder):
    """A file that goes on after its size ends the pull, not the disk."""
    entry = repository.entry(FILE, BIG)
    entry["size"] = 1000
    repository.listed[REPO] = [entry]
    done = models("pull", REPO)
    assert done.code == 1
    assert "goes on after the 1000 bytes" in done.err
    assert sum((folder / file).stat().st_size for file in left(folder)) <= 1000
