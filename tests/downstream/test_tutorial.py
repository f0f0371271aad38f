"""The tutorial of docs/plugins, run from its first line to its last."""

from __future__ import annotations

import re
import shlex
import subprocess
import uuid
from pathlib import Path

from console import prints_as_shown


PAGE = Path(__file__).parents[2] / "docs/plugins/tutorial.md"
PART = re.compile(
    r"^`(?P<path>[\w./-]+)`, (?:new|whole):\n\n```python\n(?P<text>.*?)^```$"
    r"|^```console\n(?P<console>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
FENCE = re.compile(r"^```\w+$", re.MULTILINE)


def test_the_tutorial_does_what_it_says(fresh) -> None:
    """Its files, written as shown, and its commands, in one shell, print what is shown."""
    page = PAGE.read_text()
    parts = list(PART.finditer(page))
    assert len(FENCE.findall(page)) == len(parts), "a block is neither a file nor a console"
    mark = uuid.uuid4().hex
    script, shown = [], []
    for part in parts:
        if part["path"]:
            script.append(f"cat > {shlex.quote(part['path'])} <<'{mark}'\n{part['text']}{mark}")
            continue
        for command in re.split(r"^\$ ", part["console"], flags=re.MULTILINE)[1:]:
            line, _, output = command.partition("\n")
            script.append(f"{line}\nprintf '\\n%s %s\\n' {mark} $?")
            shown.append((line, output))
    env = fresh()
    # Not the environment's own folder: the tutorial makes one.
    folder = env.folder / "tutorial"
    folder.mkdir()
    done = subprocess.run(
        ["/bin/bash"],
        input="\n".join(script),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        cwd=folder,
        env={**env.variables, "COLUMNS": "100"},
        timeout=300,
    )
    answers = re.split(rf"\n{mark} (\d+)\n", done.stdout)
    codes, outputs = answers[1::2], answers[:-1:2]
    assert len(shown) == len(codes), done.stdout
    for (line, expected), printed, code in zip(shown, outputs, codes, strict=True):
        assert code == "0", f"{line} ended with {code}:\n{printed}"
        assert prints_as_shown(expected, printed), f"{line}\n{printed}"
