"""The LLM worker on the simulated GPU, through the unchanged plugins: SmolLM2, and faults."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tiny_model import Tiny

from propolis import Config
from propolis import Runtime
from propolis_workers.llm import LLM


KERNELS = Path(__file__).parents[2] / "build" / "cache" / "propolis" / "kernels"

HERE = Path(__file__).parent
PROGRAM = str(HERE / "decode.py")
GOLDEN = HERE.parent / "data/smollm2/greedy_llamacpp_f32.json"
PROMPT, TOKENS = [1, 2, 3], 3
OPS = [
    "add_rms_norm",
    "add_rms_norm_qmatmul",
    "add_rms_norm_qmatmul_rope_kv_append",
    "argmax",
    "assign",
    "attention",
    "cast",
    "embedding",
    "gather",
    "qattention",
    "qmatmul",
    "rms_norm",
    "rope",
    "rope_kv_append",
    "silu_mul",
]


# -- SmolLM2 ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def golden():
    """A short answer of llama.cpp's, which the CPU reference gives too (see test_golden.py)."""
    runs = json.loads(GOLDEN.read_text(encoding="utf-8"))["runs"]
    return next(run for run in runs if run["name"] == "chat1")


@pytest.fixture(scope="module", params=[(32, 8), (64, 3)], ids=["warp32", "warp64"])
def smollm(simulate, golden, request):
    """That answer drawn on the device, whole or its first tokens, and what it cost."""
    warp, tokens = request.param
    assert tokens <= len(golden["output_ids"])
    arguments = "steps", "", json.dumps(golden["prompt_ids"]), str(tokens)
    return json.loads(simulate(PROGRAM, *arguments, warp=warp))


@pytest.mark.slow
@pytest.mark.model
def test_greedy_tokens(smollm, golden):
    """The tokens are llama.cpp's; at warp 32 to the end of the answer."""
    assert golden["output_ids"][: len(smollm["ids"])] == smollm["ids"]


@pytest.mark.slow
@pytest.mark.model
def test_placement(smollm):
    """Every op of the model runs on the device; none is decomposed, none falls to the CPU."""
    placement = smollm["placement"]
    assert placement["device"] == "rocm:0"
    assert OPS == list(placement["ops"])
    assert not placement["decomposed"]
    assert not placement["cpu_instead"]
    assert not placement["fallbacks"]
    assert smollm["lines"][0].startswith(f"placement: {len(OPS)} of {len(OPS)} ops on rocm:0 by ")


@pytest.mark.slow
@pytest.mark.model
def test_decode_steps(smollm):
    """
    The first step is captured whole; the others are one launch, and allocate nothing.

    Each is queued before the tokens of the one before it are waited for.
    """
    captured, *replayed = smollm["costs"]
    assert captured[0] > smollm["calls"]
    assert smollm["queued"] == 1
    assert smollm["ahead"]
    assert len(replayed) == len(smollm["ids"]) - 2
    for launches, device_allocations, pool_allocations in replayed:
        assert (launches, device_allocations, pool_allocations) == (1, 0, 0)


@pytest.mark.slow
@pytest.mark.model
def test_a_device_that_is_too_small(propolis):
    """A model that does not fit is refused with the sizes, and with what to do."""
    done = propolis("llm", "generate", "x", "--device", "rocm:0", HIPSIM_MEMORY=str(64 << 20))
    assert done.returncode == 3
    assert done.stdout == ""
    assert " needs " in done.stderr
    assert "67.11 MB are free on rocm:0" in done.stderr
    assert "take a smaller model" in done.stderr
    assert "Traceback" not in done.stderr


# -- faults, on a tiny model ----------------------------------------------------------


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """The tiny model with one layer, so that every launch of a run can fail once."""
    tiny = Tiny()
    gone = {name: None for name in tiny.gguf_tensors if name.startswith("blk.1.")}
    path = tmp_path_factory.mktemp("model") / "tiny.gguf"
    return tiny.gguf(path, metadata={"llama.block_count": 1}, tensors=gone)


@pytest.fixture(scope="module")
def truth(model):
    """The CPU's greedy tokens."""
    engine = LLM.load(model, runtime=Runtime.start(Config(device="cpu"))).engine(32)
    logits, drawn = engine.prefill(PROMPT), []
    while len(drawn) < TOKENS:
        drawn.append(int(logits.argmax()))
        logits = engine.decode(drawn[-1])
    return drawn


@pytest.fixture
def decode(simulate, model):
    """Run decode.py on that model."""

    def run(*command, warp=32, **environ):
        arguments = str(model), json.dumps(PROMPT), str(TOKENS)
        return json.loads(simulate(PROGRAM, *command, *arguments, warp=warp, **environ))

    return run


@pytest.mark.slow
def test_every_allocation_fails_once(decode, truth):
    """
    Whichever it is, the error gives the sizes, and the next run is as if nothing had been.

    But for one: without its memory, no step is queued ahead of the one that is waited for.
    """
    runs = decode("faults", "malloc", "error")
    assert len(runs) > 40
    told = [run[0] for run in runs if run[0] != truth]
    assert len(runs) - len(told) <= 1
    for kind, message in told:
        assert kind == "OutOfMemoryError"
        assert message.startswith("rocm:0: ")
        assert "use a smaller model or context" in message
    assert [truth] * len(runs) == [after for _, after, _ in runs]


@pytest.mark.slow
def test_every_launch_fails_once(decode, truth):
    """
    Whichever it is, it is repeated and the tokens are right, or an error says why there are none.

    There are none where the call cannot be repeated, as it writes into what it was given.  A
    recorded step that was queued ahead, and failed, is queued again when it is asked for.
    """
    runs = decode("faults", "launch", "allow")
    assert len(runs) > 40
    served = [run for run in runs if run[0] == truth]
    refused = [run[0] for run in runs if run[0] != truth]
    assert all(fell == 0 for _, _, fell in served)  # no op loses its place for it
    assert len(refused) == 3  # keys and values, in the prompt and in a step; the next step's token
    for kind, message in refused:
        assert kind in {"PluginError", "DeviceError"}
        assert "hipErrorLaunchOutOfResources (701)" in message
        assert "kv_append: rocm_kernels " in message or "assign: rocm_kernels " in message
    assert [truth] * len(runs) == [after for _, after, _ in runs]


@pytest.mark.parametrize(
    "launch", [1, *(pytest.param(n, marks=pytest.mark.slow) for n in (9, 20, 32, 42))]
)
def test_a_device_that_is_lost(propolis, model, launch, tmp_path):
    """In the prompt, in the captured step or in a replay: one clear error, and an end."""
    # The next process of that cache waits for each call; kernels are compiled once, for all tests.
    (tmp_path / "propolis").mkdir()
    (tmp_path / "propolis" / "kernels").symlink_to(KERNELS)
    lost = {"HIPSIM_DEVICE_LOST": str(launch), "XDG_CACHE_HOME": str(tmp_path)}
    arguments = ["llm", "generate", "--raw", "abc", "-n", "3", "-m", str(model)]
    done = propolis(*arguments, "--device", "rocm:0", **lost)
    assert done.returncode == 3
    last = done.stderr.splitlines()[-1]
    assert last.startswith("error: rocm:0")
    assert "hipErrorLaunchFailure (719)" in last
    assert "start the process again" in last
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_slow_copies(decode, truth):
    """Copies that take their time, and queues that are late, change no token."""
    found = decode("steps", HIPSIM_SLOW_COPIES="2000", HIPSIM_SHUFFLE="7")
    assert truth == found["ids"]


@pytest.fixture(scope="module")
def six(model):
    """The CPU's greedy tokens of the six sequences of decode.py's batch, each alone."""
    llm = LLM.load(model, runtime=Runtime.start(Config(device="cpu")))
    answers = []
    for key in range(6):
        engine = llm.engine(64)
        logits, drawn = engine.prefill([*PROMPT, key, *PROMPT[: key % 3]]), []
        while len(drawn) < TOKENS + 3 * key:
            drawn.append(int(logits.argmax()))
            if drawn[-1] in llm.tokenizer.eos_ids:
                break
            logits = engine.decode(drawn[-1])
        answers.append(drawn)
    return answers


@pytest.mark.slow
@pytest.mark.parametrize("warp", [32, 64])
def test_many_at_once(decode, six, warp):
    """Six sequences over a paged cache for fewer: the CPU's tokens, every op on the device."""
    found = decode("batch", "", "0", warp=warp)
    assert six == found["ids"]
    assert [{}, []] == found["elsewhere"]
    assert found["taken"] == 0


@pytest.mark.slow
@pytest.mark.parametrize("launch", [3, 30, 61, 90])
def test_many_at_once_when_a_launch_fails(decode, six, launch):
    """In a prompt, a captured step or a replay: it is computed again, and the tokens are right."""
    found = decode("batch", "launch", str(launch))
    assert six == found["ids"]
    assert found["taken"] == 0
