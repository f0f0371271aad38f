from __future__ import annotations

import gguf
import numpy as np
import pytest

from propolis import OpImpl
from propolis import Prepared
from propolis import Provenance
from propolis import Runtime
from propolis import Tensor
from propolis import dtypes
from propolis import ops
from propolis.dispatch import DispatchTable
from propolis.dispatch import Handler
from propolis.dispatch.capture import Graph
from propolis.errors import ModelError
from propolis.errors import OpError
from propolis.errors import UsageError
from propolis_workers.llm import LLM
from propolis_workers.llm import chunks
from propolis_workers.llm import engine as engine_module


IDS = [int(i) for i in np.random.default_rng(3).integers(0, 263, 40)]


def error_of(actual: np.ndarray, truth: np.ndarray) -> float:
    """The normalised mean square error."""
    return float(((actual - truth) ** 2).mean() / truth.var())


def test_gguf_logits(tiny, llm):
    """The logits of every token are those of a plain implementation in f64."""
    truth = tiny.reference(IDS)
    logits = llm.engine().logits_of(IDS)
    assert np.float32 == logits.dtype
    assert error_of(logits, truth) < 1e-11


def test_folder_logits(tiny, tiny_folder, llm):
    """A safetensors folder, whose rope pairs halves, has the logits of the GGUF file."""
    logits = LLM.load(tiny_folder).engine().logits_of(IDS)
    assert error_of(logits, tiny.reference(IDS)) < 1e-11
    assert error_of(logits, llm.engine().logits_of(IDS)) < 1e-11


@pytest.mark.parametrize("name", ["F16", "BF16", "Q8_0", "Q4_0"])
def test_stored_dtypes(tiny, tmp_path, name):
    """Each stored dtype gives the logits of its rounded weights, computed in f32."""
    stored = gguf.GGMLQuantizationType[name]
    path = tiny.gguf(tmp_path / "m.gguf", stored=stored)
    rounded = {
        key: gguf.quants.dequantize(gguf.quants.quantize(values, stored), stored)
        for key, values in tiny.gguf_tensors.items()
        if values.ndim == 2
    }
    plain = tiny.gguf(tmp_path / "p.gguf", tensors=rounded)
    actual = LLM.load(path).engine().logits_of(IDS)
    assert error_of(actual, LLM.load(plain).engine().logits_of(IDS)) < 1e-11


@pytest.mark.parametrize("chunk", [1, 7, 39, 40, 41])
def test_chunks(llm, monkeypatch, chunk):
    """A prompt gives the same logits in chunks of any size as in one pass."""
    truth = llm.engine().logits_of(IDS)[-1]
    monkeypatch.setattr(chunks, "CHUNK", chunk)
    engine = llm.engine()
    np.testing.assert_allclose(engine.prefill(IDS), truth, rtol=1e-4, atol=1e-5)
    assert len(IDS) == engine.position


def test_decode(llm):
    """Decoding, captured at the first token and replayed after, gives the eager logits."""
    truth = llm.engine().logits_of(IDS)
    engine = llm.engine()
    engine.prefill(IDS[:5])
    for position, token in enumerate(IDS[5:], 5):
        np.testing.assert_allclose(engine.decode(token), truth[position], rtol=1e-4, atol=1e-5)
        assert position + 1 == engine.position


@pytest.mark.parametrize("drops", [False, True], ids=["kept", "dropped"])
def test_decode_survives_a_quarantine(tiny, tmp_path, drops):
    """An implementation that prepared the weights fails in a captured step: the logits stay."""
    path = tiny.gguf(tmp_path / "m.gguf", stored=gguf.GGMLQuantizationType.Q8_0)
    truth = LLM.load(path).engine().logits_of(IDS[:12])
    runtime = Runtime.start()
    healthy = [True]

    def prepare(weight):
        dense = ops.dequantize(weight).numpy()
        blocks = weight.numpy().copy()
        twice = np.ascontiguousarray(dense.T * 2)

        def restore():
            return Tensor.from_blocks(blocks.reshape(-1), weight.dtype, weight.shape, runtime.cpu)

        return Prepared(twice, twice.nbytes, "doubled", restore if drops else None)

    def qmatmul(out, x, w, /):
        if not healthy[0]:
            msg = "kernel failed"
            raise RuntimeError(msg)
        np.matmul(x.array, w.prepared[prepare] / 2, out=out.array)

    impl = OpImpl(
        op="qmatmul",
        fn=qmatmul,
        dtypes={"x": {dtypes.f32}, "w": {dtypes.q8_0}},
        prepare=prepare,
        priority=9,
        provenance=Provenance("odd", "dist-odd", "1"),
    )
    table = runtime.cpu.table
    table._impls["qmatmul"].append(impl)
    llm = LLM.load(path, runtime=runtime)
    engine = llm.engine()
    for position, token in enumerate(IDS[:12]):
        healthy[0] = position < 5
        np.testing.assert_allclose(engine.decode(token), truth[position], rtol=1e-4, atol=1e-5)
    assert [e.source.plugin for e in table.quarantine.entries.values()] == ["odd"]
    weights = [line for line in table.placement.lines() if line.startswith("weights")]
    assert all("for qmatmul dequantised once to f32 by cpu_ref" in line for line in weights)
    assert weights


def test_decode_from_nothing(llm):
    """A sequence may begin with decoding."""
    engine = llm.engine()
    truth = llm.engine().logits_of(IDS[:2])
    np.testing.assert_allclose(engine.decode(IDS[0]), truth[0], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(engine.decode(IDS[1]), truth[1], rtol=1e-4, atol=1e-5)


class _Counting(Handler):
    """How many calls there were."""

    calls = 0

    def run(self, call, proceed):
        """Count one."""
        self.calls += 1
        proceed()


def test_the_first_step_is_computed_once(llm):
    """Capturing it runs it: it has as many calls as each later one."""
    engine, counting = llm.engine(), _Counting()
    engine.prefill(IDS[:3])
    counts = []
    with DispatchTable.of(llm.model.device).intercept(counting):
        for token in IDS[3:6]:
            counting.calls = 0
            engine.decode(token)
            counts.append(counting.calls)
    assert counts[0] > 0
    assert len(set(counts)) == 1


def test_the_next_answer_keeps_the_captured_step(llm, monkeypatch):
    """One that fits into the last one's memory captures nothing, and says the same."""
    captures = []
    llm._free.clear()
    real = engine_module.capture
    monkeypatch.setattr(engine_module, "capture", lambda d: captures.append(1) or real(d))
    first = list(llm.complete("the", max_tokens=6))
    assert captures == [1]
    assert list(llm.complete("the", max_tokens=6)) == first
    short = llm.complete("a", max_tokens=2)
    assert short._engine.capacity < 7
    list(short)
    assert captures == [1]
    both = llm.complete("the", max_tokens=6), llm.complete("the", max_tokens=6)
    assert both[0]._engine is not both[1]._engine
    pieces = [list(answer) for answer in both]
    assert pieces == [first, first]


def test_prefill_after_decode(llm):
    """A prompt may follow decoding, and decoding that, on one captured step."""
    truth = llm.engine().logits_of(IDS)
    engine = llm.engine()
    engine.prefill(IDS[:3])
    engine.decode(IDS[3])
    np.testing.assert_allclose(engine.prefill(IDS[4:20]), truth[19], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(engine.decode(IDS[20]), truth[20], rtol=1e-4, atol=1e-5)


def test_results_are_copies(llm):
    """Logits that were given out do not change when the sequence goes on."""
    engine = llm.engine()
    first = engine.prefill(IDS[:3])
    second = engine.decode(IDS[3])
    kept = first.copy(), second.copy()
    engine.decode(IDS[4])
    engine.prefill(IDS[5:9])
    np.testing.assert_array_equal(kept[0], first)
    np.testing.assert_array_equal(kept[1], second)


def test_truncate(llm):
    """What comes after a truncation depends only on what was kept."""
    truth = llm.engine().logits_of(IDS[:12])[-1]
    engine = llm.engine()
    engine.prefill(IDS[:10])
    for token in (1, 2, 3, 4):
        engine.decode(token)
    engine.truncate(8)
    assert engine.position == 8
    engine.truncate(20)
    assert engine.position == 8
    engine.prefill(IDS[8:11])
    np.testing.assert_allclose(engine.decode(IDS[11]), truth, rtol=1e-4, atol=1e-5)


def test_sequences_are_independent(llm):
    """Two sequences on one model, decoded in turns, do not see each other."""
    truth = llm.engine().logits_of(IDS[:6]), llm.engine().logits_of(IDS[20:26])
    engines = llm.engine(8), llm.engine(30)
    engines[0].prefill(IDS[:2])
    engines[1].prefill(IDS[20:22])
    for step in range(2, 6):
        for engine, start, wanted in zip(engines, (0, 20), truth, strict=True):
            logits = engine.decode(IDS[start + step])
            np.testing.assert_allclose(logits, wanted[step], rtol=1e-4, atol=1e-5)


def test_a_longer_sequence_later(llm):
    """A sequence goes on as it was when another, longer one is begun on the same model."""
    truth = llm.engine().logits_of(IDS[:4])
    engine = llm.engine(4)
    engine.prefill(IDS[:2])
    engine.decode(IDS[2])
    llm.engine(96).prefill(IDS)
    np.testing.assert_allclose(engine.decode(IDS[3]), truth[3], rtol=1e-4, atol=1e-5)


def test_the_likeliest(llm):
    """Its place and logit are those of all logits, of tokens alone; both kinds of steps mix."""
    one, other = llm.engine(64), llm.engine(64)
    one.prefill(IDS[:5])
    other.prefill(IDS[:5])
    for number, token in enumerate(IDS[5:17]):
        logits = one.decode(token)
        vocabulary = len(logits) if number % 3 else 7
        if number % 4 == 3:
            np.testing.assert_array_equal(other.decode(token), logits)
            continue
        known = logits[:vocabulary]
        assert other.decode_likeliest(token, vocabulary) == (known.argmax(), known.max())
    assert one.position == other.position == 17


def test_a_step_ahead(llm, queue):
    """The likeliest token's step is queued before it is asked for, once for each that is."""
    plain, engine = llm.engine(12), llm.engine(12)
    token = plain.prefill(IDS[:4]).argmax()
    engine.prefill(IDS[:4])
    for number in range(8):
        logits = plain.decode(token)
        del queue[:]
        assert engine.decode_likeliest(token, 263) == (logits.argmax(), logits.max())
        assert len(queue) == (number < 7)  # there is no room for the last one's
        token = int(logits.argmax())
    with pytest.raises(ModelError, match="12 of 12 are taken"):
        engine.decode_likeliest(token, 263)


def _others(engine, token):
    return engine, (token + 1) % 263


def _cut(engine, token):
    engine.truncate(engine.position - 2)
    return engine, token


def _cut_and_appended(engine, token):
    engine.truncate(engine.position - 3)
    engine.logits_of(IDS[30:33])
    return engine, token


def _begun_again(engine, token):
    count = engine.position
    assert engine.begin(30)
    engine.prefill(IDS[20 : 20 + count])
    return engine, token


def _with_logits(engine, token):
    return engine, int(engine.decode(token).argmax())


@pytest.mark.parametrize("change", [_others, _cut, _cut_and_appended, _begun_again, _with_logits])
def test_what_comes_otherwise(llm, queue, change):
    """A step that was queued ahead and not asked for leaves no trace, whatever comes instead."""
    engines = llm.engine(40), llm.engine(40)
    engines[1]._queues = False
    tokens = [int(engine.prefill(IDS[:6]).argmax()) for engine in engines]
    for number in range(12):
        found = [
            engine.decode_likeliest(token, 263)
            for engine, token in zip(engines, tokens, strict=True)
        ]
        assert found[0] == found[1]
        tokens = [token for token, _ in found]
        if number % 3 == 2:
            tokens = [change(*one)[1] for one in zip(engines, tokens, strict=True)]
    assert engines[0].position == engines[1].position
    assert queue


def test_a_step_ahead_that_fails(llm, queue, monkeypatch):
    """It is run again when it is asked for, and told of if it fails then too."""
    engine, plain = llm.engine(12), llm.engine(12)
    first = int(plain.prefill(IDS[:4]).argmax())
    engine.prefill(IDS[:4])
    expected = [plain.decode(first)]
    second = int(expected[0].argmax())
    expected.append(plain.decode(second))
    replay = Graph.replay

    def fails(_):
        msg = "no"
        raise OpError(msg)

    monkeypatch.setattr(Graph, "replay", fails)
    logits = expected[0]  # of the step that is captured, not replayed
    assert engine.decode_likeliest(first, 263) == (logits.argmax(), logits.max())
    with pytest.raises(OpError, match="no"):
        engine.decode_likeliest(second, 263)
    monkeypatch.setattr(Graph, "replay", replay)
    logits = expected[1]
    assert engine.decode_likeliest(second, 263) == (logits.argmax(), logits.max())
    assert engine.position == 6
    assert queue


def test_full(llm):
    """A sequence takes exactly its capacity; what exceeds it leaves it as it was."""
    truth = llm.engine().logits_of(IDS[:10])
    engine = llm.engine(10)
    with pytest.raises(ModelError, match="11 more tokens do not fit: 0 of 10 are taken; shorten"):
        engine.prefill(IDS[:11])
    with pytest.raises(ModelError, match="do not fit"):
        engine.logits_of(IDS[:11])
    assert engine.position == 0
    engine.prefill(IDS[:8])
    with pytest.raises(ModelError, match=r"3 more tokens do not fit: 8 of 10 .* model's is 96"):
        engine.prefill(IDS[8:11])
    assert engine.position == 8
    np.testing.assert_allclose(engine.decode(IDS[8]), truth[8], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(engine.decode(IDS[9]), truth[9], rtol=1e-4, atol=1e-5)
    with pytest.raises(ModelError, match="1 more tokens do not fit: 10 of 10"):
        engine.decode(1)
    assert engine.position == 10
    engine.truncate(9)
    np.testing.assert_allclose(engine.decode(IDS[9]), truth[9], rtol=1e-4, atol=1e-5)


def test_whole_context(llm):
    """The last position of the model's context can be used, and no more can be asked for."""
    engine = llm.engine(1000)
    assert engine.capacity == 96
    engine.prefill(IDS + IDS + IDS[:15])
    assert engine.decode(1).shape == (266,)
    assert engine.position == 96


@pytest.mark.parametrize("context", [0, -1])
def test_bad_capacity(llm, context):
    """A capacity below one token is refused, not taken for another."""
    with pytest.raises(UsageError, match=f"context is {context}; allowed: an integer from 1"):
        llm.engine(context)
    with pytest.raises(ModelError, match=f"context is {context}; supported: 1 to 96"):
        engine_module.Engine(llm.model, context)


def test_empty_prompt(llm):
    """An empty prompt has no logits, and changes nothing."""
    engine = llm.engine()
    with pytest.raises(ModelError, match="the prompt is empty"):
        engine.prefill([])
    assert engine.position == 0
    assert (0, 266) == engine.logits_of([]).shape


@pytest.mark.parametrize("token", [-1, 266])
def test_token_outside_the_vocabulary(llm, token):
    """An id that has no embedding is an error; the sequence goes on without it."""
    truth = llm.engine().logits_of(IDS[:3])[-1]
    engine = llm.engine()
    engine.prefill(IDS[:2])
    with pytest.raises(OpError, match=f"id {token} is outside"):
        engine.decode(token)
    with pytest.raises(OpError, match=f"id {token} is outside"):
        engine.prefill([token])
    assert engine.position == 2
    np.testing.assert_allclose(engine.decode(IDS[2]), truth, rtol=1e-4, atol=1e-5)


def test_memory_of_a_short_sequence(tiny, tmp_path):
    """A model that claims a context of 2**28 costs no more than the sequence needs."""
    path = tiny.gguf(tmp_path / "m.gguf", metadata={"llama.context_length": 1 << 28})
    engine = LLM.load(path).engine(50)
    assert engine.rope[0].cos.shape[0] < 10_000
    assert error_of(engine.logits_of(IDS), tiny.reference(IDS)) < 1e-11


def test_rope_tables_grow(tiny, tmp_path):
    """A longer sequence has its positions, and one begun before goes on with its own."""
    llm = LLM.load(tiny.gguf(tmp_path / "m.gguf", metadata={"llama.context_length": 10_000}))
    truth = llm.engine(10).logits_of(IDS[:4])
    short = llm.engine(4)
    short.prefill(IDS[:2])
    short.decode(IDS[2])
    long = llm.engine()
    (tables,) = long.rope
    assert (10_000, 4) == tables.cos.shape == tables.sin.shape
    angles = np.outer([0, 1, 4095, 4096, 4097, 9999], [1, 0.1, 0.01, 0.001])
    rows = angles[:, 0].astype(int)
    np.testing.assert_allclose(tables.cos.numpy()[rows], np.cos(angles), atol=1e-7)
    np.testing.assert_allclose(tables.sin.numpy()[rows], np.sin(angles), atol=1e-7)
    np.testing.assert_allclose(short.decode(IDS[3]), truth[3], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(long.logits_of(IDS[:4]), truth, rtol=1e-4, atol=1e-5)


def scaled(tiny, length: int) -> np.ndarray:
    """The logits of the first tokens where the base follows the length (dynamic NTK)."""
    trained, base = 16, 10_000.0
    base *= max(2 * length / trained - 1, 1) ** (8 / 6)
    return tiny.reference(IDS[:12], base ** (-np.arange(0, 8, 2) / 8))


def test_each_length_has_its_rotation(tiny, tmp_path):
    """Where angles depend on the length, each sequence keeps those of its own to its end."""
    settings = {"max_position_embeddings": 16, "rope_scaling": {"type": "dynamic", "factor": 2}}
    llm = LLM.load(tiny.folder(tmp_path / "m", config=settings))
    engines = {length: llm.engine(length) for length in (12, 24, 32, 16)}
    for engine in engines.values():
        engine.prefill(IDS[:6])
    for token in IDS[6:12]:
        last = {length: engine.decode(token) for length, engine in engines.items()}
    for length, logits in last.items():
        assert error_of(logits, scaled(tiny, length)[-1]) < 1e-11
    np.testing.assert_array_equal(last[12], last[16])  # as it was trained
    assert error_of(last[32], scaled(tiny, 24)[-1]) > 1e-4


def test_another_length_begins_anew(tiny, tmp_path, llm):
    """A captured step serves the next sequence only where that is turned by the same angles."""
    settings = {"max_position_embeddings": 16, "rope_scaling": {"type": "dynamic", "factor": 2}}
    engine = LLM.load(tiny.folder(tmp_path / "m", config=settings)).engine(32)
    assert [False, False, True] == [engine.begin(n) for n in (16, 31, 32)]
    short = LLM.load(tmp_path / "m").engine(16)
    assert [True, True, False] == [short.begin(n) for n in (4, 16, 17)]
    assert llm.engine(32).begin(4)
