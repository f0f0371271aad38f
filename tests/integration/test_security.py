"""What SECURITY.md promises of all that ships, and no test of a single part could hold."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from propolis_workers.weights._file import PICKLE_SUFFIXES


ROOT = Path(__file__).parents[2]
SHIPPED = sorted(file for file in ROOT.glob("*/**/src/**/*.py") if "/." not in str(file))
# Modules that run what they read, and modules that talk to other machines.
UNPICKLERS = {"dill", "joblib", "marshal", "pickle", "shelve", "torch"}
NETWORK = {"asyncio", "ftplib", "http", "httpx", "huggingface_hub", "requests", "smtplib", "socket"}
NETWORK |= {"fastapi", "httpx2", "openai", "socketserver", "ssl", "starlette", "urllib", "urllib3"}
NETWORK |= {"aiohttp", "grpc", "ray", "uvicorn", "xmlrpc"}
# What listens: it may import what answers, and nothing that asks others.
SERVER = "workers/src/propolis_workers/serve/"
LISTENS = {"asyncio", "fastapi", "http", "socket", "starlette", "uvicorn"}
# Ray's own cluster is asked by Ray: what it runs listens, and may ask nobody else.
RAY = "workers/src/propolis_workers/ray.py"
# Of the server one file connects: to the URL of --hive-url, which it takes apart.
ASKS = SERVER + "heartbeat.py"
# And of all others one: to the hub, when `propolis models pull` is told to.
HUB = "workers/src/propolis_workers/models/hub.py"


def imports(tree: ast.AST) -> set[str]:
    """The top-level modules that a file imports, anywhere in it."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            found.add(node.module.partition(".")[0])
    return found


def modules(tree: ast.AST) -> set[str]:
    """The modules that a file imports, by their whole names."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


def calls(tree: ast.AST) -> list[ast.Call]:
    """Every call of a file."""
    return [node for node in ast.walk(tree) if isinstance(node, ast.Call)]


@pytest.fixture(scope="module")
def trees() -> dict[str, ast.AST]:
    """What every distribution ships, parsed."""
    assert len(SHIPPED) > 100
    return {str(file.relative_to(ROOT)): ast.parse(file.read_text()) for file in SHIPPED}


def test_nothing_unpickles_or_runs_what_it_read(trees) -> None:
    """No shipped file imports what unpickles, lets numpy do so, or evaluates text as Python."""
    for file, tree in trees.items():
        assert not imports(tree) & UNPICKLERS, file
        for call in calls(tree):
            name = ast.unparse(call.func)
            assert name not in ("eval", "exec", "compile", "os.system", "os.popen"), file
            keywords = {word.arg: ast.unparse(word.value) for word in call.keywords}
            assert keywords.get("allow_pickle", "False") == "False", file
            assert keywords.get("shell", "False") == "False", file
            assert name not in ("np.load", "numpy.load") or "allow_pickle" in keywords, file


def test_nothing_talks_to_other_machines(trees) -> None:
    """No shipped file imports what opens a connection; the server's alone import what listens."""
    found = {}
    for file, tree in trees.items():
        barred = NETWORK - LISTENS if file.startswith(SERVER) else NETWORK
        if file == ASKS:
            barred = NETWORK - {"http", "urllib"}
        if file == RAY:
            barred = NETWORK - {"ray"}
        if file == HUB:
            barred = NETWORK - {"huggingface_hub", "httpx2"}
        found[file] = imports(tree) & barred
    assert not {file: names for file, names in found.items() if names}


def test_the_server_asks_nobody(trees) -> None:
    """It listens where it is told to, and connects to its own child, and a hive it was told of."""
    connects = {"open_connection", "create_connection", "connect", "urlopen", "HTTPConnection"}
    # Of urllib nothing that asks; a connection of http.client follows no redirect and no proxy.
    assert not {"urllib.request", "http.cookiejar"} & modules(trees[ASKS])
    assert {"http.client", "urllib.parse"} <= modules(trees[ASKS])
    for file, tree in trees.items():
        assert file == ASKS or "http.client" not in modules(tree), file
        if file.startswith(SERVER) and file != ASKS:
            for call in calls(tree):
                if ast.unparse(call.func).rpartition(".")[2] in connects:
                    assert {"sock"} <= {word.arg for word in call.keywords}, file  # a pair's end


def test_a_hub_is_asked_by_pull_alone(trees) -> None:
    """What talks to the hub is imported by what pulls, and that by the command, when it runs."""
    pulls = HUB.replace("hub.py", "pull.py")
    command = HUB.replace("hub.py", "cli.py")
    for asked, allowed in (("hub", {pulls}), ("pull", {command})):
        name = f"propolis_workers.models.{asked}"
        assert allowed == {file for file, tree in trees.items() if name in modules(tree)}
    top = {
        name
        for node in trees[command].body
        if "import" in type(node).__name__.lower()
        for name in modules(node)
    }
    assert "propolis_workers.models.pull" not in top


def test_the_page_names_what_is_refused() -> None:
    """The endings of pickles on the page are those that the readers refuse."""
    page = (ROOT / "SECURITY.md").read_text()
    assert not {suffix for suffix in PICKLE_SUFFIXES if f"`{suffix}`" not in page}
