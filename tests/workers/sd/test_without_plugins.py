"""Both workers on a GPU, with any of the plugins that serve its ops taken away."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import vendor
from patience import patience

from propolis_workers.llm import LLM
from propolis_workers.sd import GenerateParams


ALL = ("rocm_kernels", "rocm_blas", "rocm_miopen", "flash_attn_ck")
SUBSETS = [
    (),
    *((one,) for one in ALL),
    *(tuple(p for p in ALL if p != one) for one in ALL),
    ALL,
]
PROMPT = "a red circle"
DRAWN = {"prompt": PROMPT, "steps": 2, "guidance": 7.5, "width": 64, "height": 64, "seed": 1}
CACHE = Path(__file__).parents[3] / "build" / "cache"

# Both in one process: what one leaves on the device is nothing to the other.
CHILD = """
import json, sys
import numpy as np
from propolis import Runtime
from propolis.dispatch import DispatchTable
from propolis.runtime import set_default_runtime
from propolis_workers.llm import LLM
from propolis_workers.sd import GenerateParams, StableDiffusion
gguf, folder, wanted, out = sys.argv[1:]
runtime = Runtime.start()
set_default_runtime(runtime)
device = runtime.device("rocm:0")
llm = LLM.load(gguf, device=device)
generation = llm.complete("hello", max_tokens=8)
"".join(generation)
images = StableDiffusion.load(folder, device=device).generate(GenerateParams(**json.loads(wanted)))
np.save(out, np.array(images.pixels))
lines = list(DispatchTable.of(device).placement.lines())
print(json.dumps({"ids": generation.finish.ids, "placement": lines}))
"""


@pytest.fixture(scope="module")
def on_the_cpu(tiny_gguf, pipelines):
    """The tokens and the pixels that the CPU gives."""
    generation = LLM.load(tiny_gguf).complete("hello", max_tokens=8)
    "".join(generation)
    images = pipelines("sd15").generate(GenerateParams(**DRAWN))
    return generation.finish.ids, np.array(images.pixels).astype(int)


@pytest.mark.slow
@pytest.mark.parametrize("plugins", SUBSETS, ids=lambda names: "+".join(names) or "none")
def test_any_subset_runs_both(hipsim, tiny_gguf, complete, on_the_cpu, plugins, tmp_path) -> None:
    """
    The tokens are the CPU's, and so are the pixels, within one of 255.

    With the kernels everything runs on the device; without them the placement says what does not.
    """
    environ = vendor.environment(hipsim, tmp_path, ",".join(("rocm_hip", *plugins)))
    done = subprocess.run(
        [
            *(sys.executable, "-c", CHILD),
            *(str(tiny_gguf), str(complete("sd15")), json.dumps(DRAWN), str(tmp_path / "out.npy")),
        ],
        # Modules of the simulator, compiled once a checkout, and what probes have said.
        env={**environ, "XDG_CACHE_HOME": str(CACHE), "PROPOLIS_FALLBACK": "allow"},
        capture_output=True,
        text=True,
        timeout=patience(300),
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    ids, pixels = on_the_cpu
    assert told["ids"] == ids
    assert np.abs(np.load(tmp_path / "out.npy").astype(int) - pixels).max() <= 1
    summary, *rest = told["placement"]
    if "rocm_kernels" in plugins:
        served, of = summary.removeprefix("placement: ").partition(" ops on ")[0].split(" of ")
        assert served == of, told["placement"]
        assert not [line for line in rest if "on the cpu" in line]
    else:
        assert any(line.startswith("placement: on the cpu instead: ") for line in rest)
