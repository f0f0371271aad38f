"""A quantised file of each architecture, on the CPU and on a simulated GPU."""

from __future__ import annotations

import pytest
import vendor
from gguf import GGMLQuantizationType
from tiny_families import FAMILIES
from tiny_families import Truth
from tiny_families import vocabulary
from tiny_families import write_gguf

from propolis_workers.llm import LLM


QUANTISED = [name for name, family in FAMILIES.items() if family.gguf]

CHILD = """
import json, sys
from propolis import Runtime
from propolis.dispatch import DispatchTable
from propolis.runtime import set_default_runtime
from propolis_workers.llm import LLM
runtime = Runtime.start()
set_default_runtime(runtime)
device = runtime.device("rocm:0")
told = {}
for path in sys.argv[1:]:
    generation = LLM.load(path, device=device).complete("HELLO", max_tokens=12)
    "".join(generation)
    told[path] = generation.finish.ids
told["placement"] = list(DispatchTable.of(device).placement.lines())
print(json.dumps(told))
"""


@pytest.mark.slow
def test_greedy_tokens(hipsim, tmp_path) -> None:
    """Greedy tokens are the same on both, and no op leaves the GPU."""
    kinds = [GGMLQuantizationType[name] for name in ("Q8_0", "Q4_0", "Q5_1", "MXFP4")]
    files = {
        name: write_gguf(
            tmp_path / f"{name}.gguf",
            FAMILIES[name],
            Truth.read(name),
            tokenizer=vocabulary(),
            stored=kinds[number % len(kinds)],
        )
        for number, name in enumerate(QUANTISED)
    }
    told = vendor.told(hipsim, tmp_path, CHILD, *files.values())
    expected = {}
    for name, path in files.items():
        generation = LLM.load(path).complete("HELLO", max_tokens=12)
        "".join(generation)
        expected[name] = generation.finish.ids
    assert expected == {name: told[str(path)] for name, path in files.items()}
    varied = [name for name, ids in expected.items() if len(set(ids)) > 1]
    assert len(varied) > len(expected) / 2, expected  # not of end tokens alone
    assert not [line for line in told["placement"] if "on the cpu" in line]
