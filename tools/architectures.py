"""The table of docs/llm.md: which architectures are read from what, and judged by which models."""

from __future__ import annotations

import json
from pathlib import Path

from propolis_workers.llm.models import architectures


GOLDEN = Path(__file__).parents[1] / "tests/data/families"


def table() -> list[str]:
    """Its lines, an architecture each."""
    judged: dict[str, list[str]] = {}
    for path in sorted(GOLDEN.glob("*.json")):
        kind = json.loads(path.read_text(encoding="utf-8"))["config"]["model_type"]
        judged.setdefault(kind, []).append(path.stem)
    lines = ["| architecture | GGUF | `model_type` | judged by |", "|---|---|---|---|"]
    for name, one in architectures().items():
        docs = (one.from_gguf.__globals__["__doc__"] or "").strip().partition("\n")[0]
        models = [model for kind in one.folder for model in judged.get(kind, ())]
        gguf, folder = (
            ", ".join(f"`{said}`" for said in kinds) for kinds in (one.gguf, one.folder)
        )
        lines.append(
            f"| {docs.removesuffix('.')} (`{name}`) | {gguf} | {folder} | {', '.join(models)} |"
        )
    return lines
