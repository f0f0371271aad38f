"""What llama.cpp answered with this file's weights dequantised to f32."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest

from propolis_workers.llm import LLM


pytestmark = pytest.mark.model

DATA = Path(__file__).parents[1] / "data/smollm2/greedy_llamacpp_f32.json"
GOLDEN = json.loads(DATA.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def smollm() -> LLM:
    """The packaged model."""
    return LLM.load()


def test_file(smollm):
    """The file is the one that the answers are about."""
    assert GOLDEN["model_sha256"] == hashlib.sha256(smollm.path.read_bytes()).hexdigest()


@pytest.mark.parametrize(
    "run",
    [
        pytest.param(run, id=run["name"], marks=[pytest.mark.slow] * (len(run["output_ids"]) > 64))
        for run in GOLDEN["runs"]
    ],
)
def test_greedy(smollm, run):
    """Greedy tokens are llama.cpp's, from the text of the prompt on to the last."""
    generation = smollm.complete(run["prompt"], max_tokens=len(run["output_ids"]))
    assert run["prompt_ids"] == generation._prompt
    text = "".join(generation)
    assert run["output_ids"] == generation.finish.ids
    assert run["text"].removesuffix("<|im_end|>") == text
    ended = run["text"].endswith("<|im_end|>")
    assert ("EOS" if ended else "MAX_TOKENS") == generation.finish.stop_reason


def test_chat(smollm):
    """The model's own template gives the prompt of the second run, and so its answer."""
    run = next(run for run in GOLDEN["runs"] if run["name"] == "chat1")
    message = {"role": "user", "content": "What is the capital of France?"}
    assert run["prompt"] == smollm.render([message])
    generation = smollm.chat([message])
    assert "The capital of France is Paris." == "".join(generation)
    assert run["output_ids"] == generation.finish.ids


def test_logits(smollm):
    """The logits after each of 32 tokens are llama.cpp's, up to the rounding of f32."""
    golden = GOLDEN["logits"]
    logits = smollm.engine(32).logits_of(golden["ids"]).astype(np.float64)
    truth = np.array(golden["first20"])
    error = ((logits[:, :20] - truth) ** 2).mean() / (truth**2).mean()
    assert error <= 1e-9
    assert golden["argmax"] == logits.argmax(1).tolist()
    top = logits.max(1)
    np.testing.assert_allclose(top, golden["max"], rtol=1e-5)
    logsumexp = top + np.log(np.exp(logits - top[:, None]).sum(1))
    np.testing.assert_allclose(logsumexp, golden["logsumexp"], rtol=1e-5)
