from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from propolis import Tensor
from propolis.errors import ModelError
from propolis.errors import UsageError
from propolis_workers.llm import Finish
from propolis_workers.llm import Generation
from propolis_workers.llm import SamplingParams
from propolis_workers.llm import answer as answer_module
from propolis_workers.llm.rows import Likely
from propolis_workers.llm.rows import Rows
from propolis_workers.llm.tokenizer import Tokenizer


GREEDY = SamplingParams()


class Scripted:
    """An engine whose likeliest next tokens are given; it notes what it is asked to run."""

    def __init__(self, script, *, vocab=266, capacity=1000, position=0) -> None:
        self.script = iter(script)
        self.vocab = vocab
        self.capacity = capacity
        self.position = position
        self.ran: list[int] = []
        self.model = SimpleNamespace(config=SimpleNamespace(context_length=2000, vocab_size=vocab))

    def prefill(self, ids) -> np.ndarray:
        """Take a prompt; the logits are all for the next token of the script."""
        self.ran += ids
        self.position += len(ids)
        assert self.position <= self.capacity
        logits = np.zeros(self.vocab, np.float32)
        logits[next(self.script)] = 1
        return logits

    def decode(self, token) -> np.ndarray:
        """Take a token, as a prompt of one."""
        return self.prefill([token])

    def decode_likeliest(self, token, vocabulary) -> tuple[int, float]:
        """The same, where nobody asks for more."""
        logits = self.decode(token)[:vocabulary]
        return int(logits.argmax()), float(logits.max())

    def prefill_drawn(self, ids, vocabulary, chance) -> np.ndarray:
        """The host draws."""
        return self.prefill(ids)

    def decode_drawn(self, token, vocabulary, chance) -> None:
        """The host draws."""

    def decode_likely(self, token, vocabulary, count, temperature) -> Likely:
        """The same, where the likeliest do."""
        rows = Rows(Tensor.from_numpy(self.decode(token)[None, None]), vocabulary)
        return rows.top([0], count, [temperature])[0]


@pytest.fixture(scope="module")
def tokenizer(tiny) -> Tokenizer:
    """The tiny vocabulary: token n below 256 is byte n."""
    return Tokenizer.from_gguf(tiny.metadata)


def run(tokenizer, script, *, prompt=(72,), params=GREEDY, max_tokens=100, stops=(), **engine):
    """Generate from a script: pieces, finish, and the engine."""
    machine = Scripted(script, **engine)
    generation = Generation(
        *(machine, tokenizer, list(prompt)), params=params, max_tokens=max_tokens, stops=stops
    )
    return list(generation), generation.finish, machine


def test_eos(tokenizer, tiny):
    """The end token ends the answer: it is counted among the ids, not in the text, nor run."""
    end = tiny.tokens.index("<|im_end|>")
    pieces, finish, engine = run(tokenizer, [*b"Hey", end])
    assert ["H", "e", "y"] == pieces
    assert ("EOS", None, "Hey") == (finish.stop_reason, finish.stop_string, finish.text)
    assert [*b"Hey", end] == finish.ids
    assert [72, *b"Hey"] == engine.ran


def test_eos_at_once(tokenizer, tiny):
    """An answer may be empty."""
    pieces, finish, engine = run(tokenizer, [tiny.tokens.index("<|endoftext|>")])
    assert ([], "EOS", "", [72]) == (pieces, finish.stop_reason, finish.text, engine.ran)
    assert 1 == len(finish.ids)


def test_without_eos(tiny):
    """A vocabulary that names no end token, and has none that is known, runs to the limit."""
    changes = {"tokenizer.ggml.tokens": [*tiny.tokens[:-3], "<x>", "<y>", "<z>"]}
    metadata = tiny.metadata | changes | {"tokenizer.ggml.eos_token_id": None}
    tokenizer = Tokenizer.from_gguf(metadata)
    assert not tokenizer.eos_ids
    pieces, finish, _ = run(tokenizer, [*b"ab", *[265] * 10], max_tokens=5)
    assert (["a", "b"], "MAX_TOKENS", 5) == (pieces, finish.stop_reason, len(finish.ids))


@pytest.mark.parametrize("limit", [1, 2, 5])
def test_max_tokens(tokenizer, limit):
    """Exactly so many tokens are drawn, and the last is not run."""
    pieces, finish, engine = run(tokenizer, b"abcdefgh", max_tokens=limit)
    assert [*"abcdefgh"[:limit]] == pieces
    assert ("MAX_TOKENS", "abcdefgh"[:limit]) == (finish.stop_reason, finish.text)
    assert [72, *b"abcdefgh"[: limit - 1]] == engine.ran


@pytest.mark.parametrize("limit", [0, -1, 1.5, True])
def test_bad_max_tokens(tokenizer, limit):
    """A limit below one token is refused."""
    with pytest.raises(UsageError, match=f"max_tokens is {limit}; allowed: an integer from 1"):
        run(tokenizer, b"abc", max_tokens=limit)


@pytest.mark.parametrize(
    ("stops", "text", "matched"),
    [
        (["cd"], "ab", "cd"),
        (["bcdef"], "a", "bcdef"),
        (["abcdefgh"], "", "abcdefgh"),
        (["x", "fg", "gh"], "abcde", "fg"),
        (["a"], "", "a"),
        (["h"], "abcdefg", "h"),
        (["hi"], "abcdefgh", None),
        (["cx", "b"], "a", "b"),
    ],
)
def test_stop_sequence(tokenizer, stops, text, matched):
    """A stop string ends the text before it, across tokens, and be it the whole text."""
    pieces, finish, _ = run(tokenizer, b"abcdefgh", max_tokens=8, stops=stops)
    assert text == "".join(pieces) == finish.text
    assert matched == finish.stop_string
    assert ("STOP_SEQUENCE" if matched else "MAX_TOKENS") == finish.stop_reason


def test_stop_within_a_token(tokenizer, tiny):
    """A stop string that ends within a token cuts that token's text."""
    the = tiny.tokens.index("Ġthe")
    pieces, finish, _ = run(tokenizer, [97, the, 98], stops=["a t"])
    assert ([], "a t") == (pieces, finish.stop_string)
    assert [97, the] == finish.ids


@pytest.mark.parametrize("ending", ["EOS", "MAX_TOKENS", "CONTEXT_FULL"])
def test_stop_found_at_the_end(tokenizer, tiny, ending):
    """A match that only the end of the text settles is a stop like any other."""
    script = [*b"ab", tiny.tokens.index("<|im_end|>")]
    limits = {"MAX_TOKENS": {"max_tokens": 2}, "CONTEXT_FULL": {"capacity": 3}}
    # After "ab" the longer stop string could still come.
    pieces, finish, _ = run(tokenizer, script, stops=["b", "bxx"], **limits.get(ending, {}))
    assert (["a"], "a") == (pieces, finish.text)
    assert ("STOP_SEQUENCE", "b") == (finish.stop_reason, finish.stop_string)


def test_context_full(tokenizer):
    """Prompt and answer together have exactly the context's tokens."""
    _, finish, engine = run(tokenizer, b"abcdefgh", prompt=b"xyz", capacity=8)
    assert ("CONTEXT_FULL", "abcde") == (finish.stop_reason, finish.text)
    assert 8 == 3 + len(finish.ids)
    assert 7 == engine.position
    _, finish, _ = run(tokenizer, b"abcdefgh", prompt=b"xyz", capacity=8, max_tokens=5)
    assert ("MAX_TOKENS", "abcde") == (finish.stop_reason, finish.text)
    _, finish, _ = run(tokenizer, b"abcdefgh", prompt=b"z", position=6, capacity=8)
    assert ("CONTEXT_FULL", "a") == (finish.stop_reason, finish.text)


@pytest.mark.parametrize(("position", "capacity"), [(0, 3), (0, 2), (5, 8)])
def test_prompt_fills_the_context(tokenizer, position, capacity):
    """A prompt that leaves no room for an answer is an error, and is not run."""
    end = position + 3
    message = f"takes {end} tokens, the context is {capacity}: .* shorten .* model's is 2000"
    engine = Scripted(b"abc", position=position, capacity=capacity)
    generation = Generation(engine, tokenizer, [1, 2, 3], params=GREEDY, max_tokens=5)
    with pytest.raises(ModelError, match=message):
        list(generation)
    assert not engine.ran


def test_utf8(tokenizer):
    """Characters are never split, whatever their bytes; broken ones become U+FFFD."""
    text = "aż🐝é"
    pieces, finish, _ = run(tokenizer, text.encode(), max_tokens=len(text.encode()))
    assert [*text] == pieces
    pieces, finish, _ = run(tokenizer, "é🐝".encode()[:5], max_tokens=5)
    assert ["é", "\ufffd"] == pieces
    assert "é\ufffd" == finish.text
    pieces, _, _ = run(tokenizer, [0xF0, *b"a"], max_tokens=2)
    assert "\ufffda" == "".join(pieces)


def test_stop_in_a_broken_character(tokenizer):
    """A stop string is found in what the end of the text makes of half a character."""
    _, finish, _ = run(tokenizer, [97, 0xC3], max_tokens=2, stops=["\ufffd"])
    assert ("a", "STOP_SEQUENCE") == (finish.text, finish.stop_reason)


def test_padded_vocabulary(tokenizer):
    """Rows of the embedding that are no tokens are never drawn."""
    params = SamplingParams(temperature=1.0, seed=0)
    script = [299] * 50
    _, finish, _ = run(tokenizer, script, vocab=300, max_tokens=50, params=params)
    assert max(finish.ids) < tokenizer.vocab_size


def test_history_of_penalties(tokenizer):
    """The repetition penalty sees the prompt, what came before it, and the answer."""
    seen = []

    class Recording(answer_module.Sampler):
        def sample(self, logits, history):
            seen.append(list(history))
            return super().sample(logits, history)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(answer_module, "Sampler", Recording)
        generation = Generation(
            *(Scripted(b"ab", position=2), tokenizer, [7, 8]),
            params=SamplingParams(repetition_penalty=1.1),
            max_tokens=2,
            history=[5, 6],
        )
        list(generation)
    assert [[5, 6, 7, 8], [5, 6, 7, 8, 97]] == seen


def test_rates(tokenizer, monkeypatch):
    """Rates count the prompt until the first token, and the other tokens after it."""
    ticks = iter([10.0, 12.0, 12.5, 13.0])
    monkeypatch.setattr(answer_module.time, "perf_counter", lambda: next(ticks))
    _, finish, _ = run(tokenizer, b"abc", prompt=[1] * 8, max_tokens=3)
    assert (8, 2.0, 1.0) == (finish.prompt_tokens, finish.prefill_seconds, finish.decode_seconds)
    assert (4.0, 2.0) == (finish.prefill_rate, finish.decode_rate)


def test_rates_of_nothing(tokenizer):
    """One token has no decode rate, and an answer not begun has no rates at all."""
    assert (0.0, 0.0) == (Finish().prefill_rate, Finish().decode_rate)
    _, finish, _ = run(tokenizer, b"a", max_tokens=1)
    assert finish.prefill_rate > 0
    assert 0.0 == finish.decode_rate


def test_second_loop(tokenizer):
    """A second loop over an answer goes on where the first stopped."""
    engine = Scripted(b"abcdef")
    generation = Generation(engine, tokenizer, [1], params=GREEDY, max_tokens=4)
    for piece in generation:
        if piece == "b":
            break
    assert "cd" == "".join(generation)
    assert [] == list(generation)
    assert "abcd" == generation.finish.text
    assert [1, *b"abc"] == engine.ran


def test_errors_pass_through(tokenizer):
    """An error of the engine ends the answer; what was drawn before stays known."""
    script = iter(b"ab")

    def failing():
        yield from script
        raise ModelError("gone")

    generation = Generation(Scripted(failing()), tokenizer, [1], params=GREEDY, max_tokens=9)
    with pytest.raises(ModelError, match="gone"):
        list(generation)
    assert "ab" == generation.finish.text


def test_seeds(llm):
    """The same seed draws the same tokens; another seed, others."""
    params = [SamplingParams(temperature=1.5, seed=seed) for seed in (1, 1, 2)]
    answers = [llm.complete("the", params=p, max_tokens=20) for p in params]
    texts = ["".join(answer) for answer in answers]
    assert answers[0].finish.ids == answers[1].finish.ids
    assert texts[0] == texts[1]
    assert answers[0].finish.ids != answers[2].finish.ids


def test_greedy_is_the_argmax(llm, tiny):
    """Greedy tokens are those of the plain implementation, one by one."""
    ids = llm.tokenizer.encode("the an")
    generation = llm.complete("the an", max_tokens=12)
    list(generation)
    for token in generation.finish.ids:
        assert int(np.argmax(tiny.reference(ids)[-1])) == token
        ids.append(token)


def test_context_of_a_model(llm):
    """``context`` counts prompt and answer; the model's own is the most there is."""
    prompt = "x" * 90
    generation = llm.complete(prompt, max_tokens=100)
    list(generation)
    assert ("CONTEXT_FULL", 6) == (generation.finish.stop_reason, len(generation.finish.ids))
    generation = llm.complete(prompt, max_tokens=6)
    list(generation)
    assert "MAX_TOKENS" == generation.finish.stop_reason
    generation = llm.complete(prompt, max_tokens=100, context=92)
    list(generation)
    assert ("CONTEXT_FULL", 2) == (generation.finish.stop_reason, len(generation.finish.ids))
    with pytest.raises(ModelError, match="takes 96 tokens, the context is 96"):
        list(llm.complete("x" * 96))
    with pytest.raises(ModelError, match="takes 97 tokens, the context is 96"):
        list(llm.complete("x" * 97))
    for wrong in (0, "9", 2.5):
        with pytest.raises(UsageError, match=f"context is {wrong!r}; allowed: an integer from 1"):
            llm.complete(prompt, context=wrong)


def test_numbers_of_numpy(llm):
    """Lengths that numpy computed are as good as Python's."""
    generation = llm.complete("x" * 90, max_tokens=np.int64(3), context=np.uint16(93))
    list(generation)
    assert 3 == len(generation.finish.ids)


def test_an_answer_that_was_left(llm):
    """It is no complete one, nor one that was cut for its length."""
    generation = llm.complete("a", max_tokens=50)
    next(iter(generation))
    assert "INTERRUPTED" == generation.finish.stop_reason


def test_an_answer_that_was_not_begun(llm):
    """Nobody takes an answer that was not generated yet for an empty one."""
    with pytest.raises(UsageError, match="iterate over the answer first"):
        _ = llm.complete("a").finish


def test_bos(tiny, tmp_path):
    """A file that asks for it has its beginning token before raw text, once, and not in chats."""
    from propolis_workers.llm import LLM

    path = tiny.gguf(tmp_path / "m.gguf", metadata={"tokenizer.ggml.add_bos_token": True})
    llm = LLM.load(path)
    generation = llm.complete("", max_tokens=1)
    list(generation)
    assert 1 == generation.finish.prompt_tokens
    assert 1 == len(llm.complete("a", max_tokens=1)._prompt) - 1
    start = tiny.tokens.index("<|im_start|>")
    chat = llm.chat([{"role": "user", "content": "a"}], max_tokens=1)._prompt
    assert [start, *b"user\na"] == chat[:7]


def test_added_eos(tiny, tmp_path):
    """A file that asks for an end token after texts does not get one after a prompt."""
    from propolis_workers.llm import LLM

    path = tiny.gguf(tmp_path / "m.gguf", metadata={"tokenizer.ggml.add_eos_token": True})
    assert [97] == LLM.load(path).complete("a")._prompt


def test_empty_prompt(llm):
    """Without a beginning token an empty prompt is an error that says so."""
    with pytest.raises(ModelError, match="the prompt is empty"):
        list(llm.complete(""))
