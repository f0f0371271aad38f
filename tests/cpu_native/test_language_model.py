"""SmolLM2 on the kernels: the reference's tokens, at the numerics that each mode promises."""

from __future__ import annotations

import numpy as np
import pytest

from propolis_cpu_native._implementation import MANY
from propolis_cpu_native._native import matrix_instructions
from propolis_workers.llm import LLM
from propolis_workers.llm.batch.engine import BatchEngine
from propolis_workers.llm.batch.engine import Request
from propolis_workers.llm.default_model import find_model
from propolis_workers.llm.engine import Engine
from propolis_workers.llm.memory import weight_bytes
from propolis_workers.llm.sampling import SamplingParams
from propolis_workers.weights import GGUFFile


pytestmark = [pytest.mark.model, pytest.mark.slow]

PROMPT = "What is the capital of France? And of Italy? Answer both."


@pytest.fixture
def logits(runtime):
    """After each token of a prompt, and of one decoded."""

    def of(**settings):
        started = runtime(**settings)
        model = LLM.load(find_model(started.config), runtime=started)
        ids = list(model.tokenizer.encode(PROMPT))
        engine = Engine(model.model, 64)
        rows = engine.logits_of(ids)
        return np.concatenate([rows, engine.decode(int(rows[-1].argmax()))[None]])

    return of


def nmse(a, b):
    """Squares of errors over squares of what is right."""
    return ((a.astype(np.float64) - b) ** 2).sum() / (b.astype(np.float64) ** 2).sum()


def test_logits(logits):
    """NMSE to the reference: 1e-9 where numerics are exact, 1e-3 where activations are rounded."""
    reference = logits(plugins=["cpu_ref"])
    exact = logits(numerics="exact")
    fast = logits()
    assert nmse(exact, reference) <= 1e-9
    assert nmse(fast, reference) <= 1e-3
    assert (exact.argmax(1) == reference.argmax(1)).all()


def test_where_a_prompt_is_parted_does_not_matter(runtime):
    """Logits of a prompt are the same bits at once, by token and in parts: by AMX short ones."""
    started = runtime()
    model = LLM.load(find_model(started.config), runtime=started)
    tokens = MANY - 1 if matrix_instructions() == "AMX" else 100
    ids = list(model.tokenizer.encode(PROMPT * 8))[:tokens]
    whole = Engine(model.model, 128).logits_of(ids)
    for size in (1, 3, 13, 40):
        engine = Engine(model.model, 128)
        for first in range(0, len(ids), size):
            got = engine.prefill(ids[first : first + size])
            np.testing.assert_array_equal(np.ravel(got), whole[min(first + size, len(ids)) - 1])


def test_answers_in_a_batch_are_those_alone(runtime):
    """Sixteen at once, with prompts of several lengths, and each by itself; by AMX where exact."""
    tiles = matrix_instructions() == "AMX"
    started = runtime(numerics="exact" if tiles else "fast")
    model = LLM.load(find_model(started.config), runtime=started)
    ids = list(model.tokenizer.encode("Once upon a time there was a bee that lived near a river"))
    prompts = [ids[first : first + 3 + first % 5] for first in range(8)] * 2

    def answers(groups):
        found = {}
        for group in groups:
            engine = BatchEngine(model, context=64, most=16)
            for key in group:
                wanted = Request(prompt=prompts[key], params=SamplingParams(), max_tokens=24)
                engine.add(key, wanted)
            while engine.busy:
                found.update((d.key, d.finish.ids) for d in engine.step() if d.finish)
        return found

    assert answers([range(16)]) == answers([[key] for key in range(16)])


def test_a_prompt_has_norms_and_products_as_one(runtime):
    """Of more rows than one too: on the CPU every op that is looked up costs time."""
    started = runtime()
    model = LLM.load(find_model(started.config), runtime=started)
    Engine(model.model, 64).prefill(list(model.tokenizer.encode(PROMPT)))
    apart = {"add_rms_norm", "silu_mul"} & set(started.cpu.table.bound)
    joined = {"add_rms_norm_qmatmul", "add_rms_norm_qmatmul_rope_kv_append"}
    assert joined <= set(started.cpu.table.bound)
    assert not apart - {"add_rms_norm"}  # that of the last sum, before the output


def test_the_embedding_is_the_output(runtime):
    """It is there once, repacked, which is reckoned before it is read; the file's is not kept."""
    started = runtime()
    path = find_model(started.config)
    model = LLM.load(path, runtime=started)
    table = model.model.embedding.table
    assert model.model.output.weight is table
    (tiles,) = table.prepared.values()
    with GGUFFile.open(path) as file:
        found = weight_bytes(file, "token_embd.weight", "output.weight", started.cpu)
        # Norms are kept in f32, and repacked blocks as the file has them.
        assert found == sum(info.nbytes for info in file.tensors.values())
        assert tiles.nbytes == file.tensors["token_embd.weight"].nbytes


def test_keys_and_values_are_kept_in_halves(runtime):
    """In f16 unless numerics are exact: the kernels read them as they are."""
    for settings, kept in (({}, "f16"), ({"numerics": "exact"}, "f32")):
        started = runtime(**settings)
        assert LLM.load(find_model(started.config), runtime=started).config.kv_dtype.name == kept


def test_a_decode_step_is_one_plan(runtime):
    """A captured step replays as one plan, from the embedding to the logits."""
    started = runtime()
    model = LLM.load(find_model(started.config), runtime=started)
    engine = Engine(model.model, 64)
    engine.logits_of(list(model.tokenizer.encode(PROMPT)))
    engine.decode(1)
    engine.decode(2)
    assert len(engine._steps[None][0]._joined) == 1


def test_a_batch_decodes_in_one_plan(runtime):
    """A step of several sequences is one plan too, to the likeliest tokens; it copies no halves."""
    started = runtime()
    model = LLM.load(find_model(started.config), runtime=started)
    engine = BatchEngine(model, context=64, most=4)
    ids = list(model.tokenizer.encode("Once upon a time there was"))
    for number in range(3):
        engine.add(number, Request(prompt=ids[number:], params=SamplingParams(), max_tokens=6))
    while engine.busy:
        engine.step()
    _, graph, _ = engine.steps.decodes[4]
    assert len(graph._joined) == 1
    before = started.cpu.table.placement.strided_copies
    graph.replay()
    assert started.cpu.table.placement.strided_copies == before
