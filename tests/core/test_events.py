"""The events of the sources are those of the registries, each with all its fields."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from propolis import events
from propolis_rocm_hip import events as rocm_events
from propolis_rocm_miopen import events as miopen_events
from propolis_workers import events as worker_events


ROOT = Path(__file__).parents[2]
SOURCES = sorted(p for p in ROOT.glob("*/src") if p.is_dir()) + sorted(ROOT.glob("plugins/*/src"))
REGISTRIES = (events, worker_events, rocm_events, miopen_events)
CONSTANTS = {
    name: value
    for registry in REGISTRIES
    for name, value in vars(registry).items()
    if isinstance(value, events.Event)
}


def emitted() -> list[tuple[str, str, tuple[str, ...]]]:
    """Every ``events.NAME.emit(...)`` (or ``line``) of the sources: where, NAME, its keywords."""
    found = []
    for path in (path for source in SOURCES for path in source.rglob("*.py")):
        text = path.read_text()
        if not re.search(r"\.(emit|line)\(", text):
            continue  # parsing all of them takes seconds, each time that tests are collected
        tree = ast.parse(text)
        aliases: dict[str, list[str]] = {}  # event = events.A if ... else events.B
        for node in ast.walk(tree):
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                names = re.findall(r"\bevents\.([A-Z_]+)\b(?!\.emit)", ast.unparse(node.value))
                aliases.setdefault(node.targets[0].id, []).extend(names)
        for node in ast.walk(tree):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
                continue
            owner, method = ast.unparse(node.func.value), node.func.attr
            if method != "emit" and not (method == "line" and owner.startswith("events.")):
                continue
            keywords = tuple(keyword.arg or "**" for keyword in node.keywords)
            names = aliases.get(owner, [owner.removeprefix("events.")])
            found += [(f"{path.name}:{node.lineno}", name, keywords) for name in names]
    return found


@pytest.mark.parametrize("call", emitted(), ids=lambda call: f"{call[0]}-{call[1]}")
def test_an_event_is_registered_and_carries_its_fields(call):
    """All of them, and no others."""
    _, name, keywords = call
    assert name in CONSTANTS
    assert sorted(keywords) == sorted(CONSTANTS[name].fields)


def test_every_event_is_emitted():
    """What the docs list can happen."""
    assert {name for _, name, _ in emitted()} == CONSTANTS.keys()


def test_nothing_else_logs():
    """Only the registry takes the logger, so that no line is unlisted."""
    users = [
        path.name
        for source in SOURCES
        for path in source.rglob("*.py")
        if "get_logger" in path.read_text() or "structlog.get" in path.read_text()
    ]
    assert sorted(users) == ["events.py", "log.py"]


def test_names_are_dotted_and_unique():
    """A constant is named after its event."""
    names = [event.name for registry in REGISTRIES for event in registry.ALL]
    assert len(set(names)) == len(names) == len(CONSTANTS)
    for constant, event in CONSTANTS.items():
        assert re.fullmatch(r"[a-z]+\.[a-z_]+", event.name)
        assert constant == event.name.upper().replace(".", "_")


@pytest.mark.parametrize(
    ("page", "listed"),
    [
        ("logging.md", (*events.ALL, *worker_events.ALL)),
        ("rocm.md", rocm_events.ALL),
        ("rocm-miopen.md", miopen_events.ALL),
    ],
    ids=["ours", "rocm", "miopen"],
)
def test_the_docs_list_them(page, listed):
    """Each has its row on its page, with level and fields, and no row is of none."""
    text = (ROOT / "docs" / page).read_text()
    rows = re.findall(r"^\| `([a-z_.]+)` \| (\w+) \| .* \| ([^|]*) \|$", text, re.MULTILINE)
    assert rows == [(e.name, e.level, ", ".join(e.fields)) for e in listed]


def test_an_event_is_one_line():
    """Its name, its level and its fields."""
    with capture_logs() as logs:
        events.DEVICE_LOST.emit(device="rocm:0", reason="hang")
    expected = {"event": "device.lost", "log_level": "error", "device": "rocm:0", "reason": "hang"}
    assert logs == [expected]
