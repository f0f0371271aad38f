from __future__ import annotations

import itertools

import pytest

from propolis.errors import ArgumentTypeError
from propolis.errors import ModelError
from propolis.errors import UsageError
from propolis_workers.llm import SamplingParams
from propolis_workers.llm.chunks import Pieces
from propolis_workers.llm.conversation import Conversation


SAMPLED = SamplingParams(temperature=1.2, seed=5)
PENALISED = SamplingParams(temperature=1.0, seed=5, repetition_penalty=1.7, repeat_last_n=-1)


def fresh(llm, messages, **options):
    """The ids of the answer to these messages by a sequence that knows nothing."""
    answer = llm.chat(messages, **options)
    list(answer)
    return answer.finish


@pytest.mark.parametrize("params", [SamplingParams(), SAMPLED, PENALISED])
@pytest.mark.parametrize("system", [None, "be"])
def test_reuse(llm, params, system):
    """Each answer has the tokens of a fresh run over the same messages, computing less."""
    talk = Conversation(llm, system=system)
    ran = []
    for said in ("a", "on", "c"):
        expected = [*talk.messages, {"role": "user", "content": said}]
        turn = talk.say(said, params=params, max_tokens=3)
        text = "".join(turn)
        alone = fresh(llm, expected, params=params, max_tokens=3)
        assert alone.ids == turn.finish.ids
        assert alone.text == text == talk.messages[-1]["content"]
        assert [*expected, {"role": "assistant", "content": text}] == talk.messages
        ran.append((turn.finish.prompt_tokens, alone.prompt_tokens))
    assert ran[0][0] == ran[0][1]
    assert all(own < alone for own, alone in ran[1:])


def test_reset(llm):
    """After a reset nothing of the conversation is left but the system message."""
    talk = Conversation(llm, system="be")
    list(talk.say("ll", max_tokens=4))
    talk.reset()
    assert [{"role": "system", "content": "be"}] == talk.messages
    expected = [*talk.messages, {"role": "user", "content": "x"}]
    turn = talk.say("x", max_tokens=4)
    list(turn)
    assert fresh(llm, expected, max_tokens=4).ids == turn.finish.ids


def test_the_same_again(llm):
    """A prompt that was seen as a whole runs its last token alone."""
    talk = Conversation(llm)
    list(talk.say("a", max_tokens=1))
    talk.reset()
    turn = talk.say("a", max_tokens=4)
    list(turn)
    assert 1 == turn.finish.prompt_tokens
    message = {"role": "user", "content": "a"}
    assert fresh(llm, [message], max_tokens=4).ids == turn.finish.ids


def check_goes_on(llm, talk):
    """The conversation's next answer is that of a fresh run over its messages."""
    expected = [*talk.messages, {"role": "user", "content": "on"}]
    turn = talk.say("on", max_tokens=3)
    list(turn)
    assert fresh(llm, expected, max_tokens=3).ids == turn.finish.ids


def test_context_overflow(llm):
    """A message that does not fit is an error; the conversation goes on without it."""
    talk = Conversation(llm)
    list(talk.say("a", max_tokens=3))
    before = list(talk.messages)
    with pytest.raises(ModelError, match=r"the context is 96: .* shorten"):
        list(talk.say("x" * 90, max_tokens=3))
    assert before == talk.messages
    check_goes_on(llm, talk)


def test_context_full(llm):
    """An answer may end where the context does; it belongs to the conversation."""
    talk = Conversation(llm, context=40)
    turn = talk.say("a", max_tokens=100)
    text = "".join(turn)
    if turn.finish.stop_reason == "CONTEXT_FULL":
        assert 40 == turn.finish.prompt_tokens + len(turn.finish.ids)
    assert text == talk.messages[-1]["content"]
    with pytest.raises(ModelError, match="the context is 40"):
        list(talk.say("a" * 40))
    talk.reset()
    check_goes_on(llm, talk)


def exchanges(talk):
    """What was said, oldest first."""
    return [one["content"] for one in talk.messages if one["role"] == "user"]


@pytest.mark.parametrize("system", [None, "be"])
def test_the_oldest_are_dropped(llm, system):
    """Where the context fills, the oldest exchanges go, the system message stays."""
    talk = Conversation(llm, system=system)
    said, dropped = [], []
    for n in range(12):
        text = f"a{n}"
        expected = [*talk.messages, {"role": "user", "content": text}]
        turn = talk.say(text, max_tokens=4)
        expected = [one for one in expected if one not in turn.dropped]
        list(turn)
        assert fresh(llm, expected, max_tokens=4).ids == turn.finish.ids
        assert turn.finish.stop_reason != "CONTEXT_FULL"
        said.append(text)
        dropped += [one["content"] for one in turn.dropped if one["role"] == "user"]
        assert dropped + exchanges(talk) == said
        assert talk.messages[0]["role"] == ("user" if system is None else "system")
    assert dropped
    assert len(exchanges(talk)) > 1
    check_goes_on(llm, talk)


def test_more_is_dropped_than_must_be(llm):
    """After exchanges were dropped, the next thing said finds room: what is kept is reused."""
    talk, drops = Conversation(llm), []
    for n in range(20):
        turn = talk.say(f"a{n}", max_tokens=1)
        list(turn)
        drops.append(bool(turn.dropped))
    assert any(drops)
    assert not any(a and b for a, b in itertools.pairwise(drops))


def test_room_for_the_answer(llm):
    """Room is made for an answer of max_tokens, or of half the context."""
    talk = Conversation(llm)
    list(talk.say("a", max_tokens=3))
    list(talk.say("b", max_tokens=3))
    tokens = len(
        llm.tokenizer.encode(llm.render([*talk.messages, {"role": "user", "content": "c"}]))
    )
    assert not talk.say("c", max_tokens=96 - tokens).dropped
    assert talk.say("c", max_tokens=96 - tokens + 1).dropped
    assert talk.say("c", max_tokens=10_000).dropped
    assert ["a", "b"] == exchanges(talk)  # until the answer is complete


def test_dropping_does_not_make_everything_fit(llm):
    """What is too long alone is an error, and nothing is dropped for it, nor computed again."""
    talk = Conversation(llm)
    list(talk.say("a", max_tokens=3))
    before, computed = list(talk.messages), talk._engine.position
    with pytest.raises(ModelError, match="the prompt takes 108 tokens, the context is 96"):
        talk.say("x" * 90, max_tokens=3)
    assert before == talk.messages
    assert computed == talk._engine.position > 0
    check_goes_on(llm, talk)


@pytest.mark.parametrize("tokens", [1, 3, 5])
def test_stopped(llm, monkeypatch, tokens):
    """What was shown of an answer that is stopped belongs to the conversation."""
    talk = Conversation(llm)
    list(talk.say("a", max_tokens=3))
    whole = "".join(Conversation(llm).say("on", max_tokens=20))
    turn = talk.say("on", max_tokens=20)
    pieces, decode = [], talk._engine.decode_likeliest

    def interrupted(*given):
        if len(turn.finish.ids) == tokens:
            raise KeyboardInterrupt
        return decode(*given)

    with monkeypatch.context() as patch:
        patch.setattr(talk._engine, "decode_likeliest", interrupted)
        with pytest.raises(KeyboardInterrupt):
            pieces.extend(turn)  # it takes one by one
    text = "".join(pieces)
    assert turn.stop()
    assert turn.stop()
    assert ("INTERRUPTED", text) == (turn.finish.stop_reason, turn.finish.text)
    assert text != whole
    assert [{"role": "user", "content": "on"}, {"role": "assistant", "content": text}] == (
        talk.messages[2:]
    )
    check_goes_on(llm, talk)


def test_stopped_between_pieces(llm):
    """So it does where it is left, and nothing more of it comes then."""
    talk = Conversation(llm)
    turn = talk.say("b", max_tokens=20)
    text = next(iter(turn))
    assert "INTERRUPTED" == turn.finish.stop_reason
    assert turn.stop()
    assert text == talk.messages[-1]["content"]
    assert [] == list(turn)
    assert text == talk.messages[-1]["content"]
    check_goes_on(llm, talk)


def test_stopped_before_anything(llm):
    """Of an answer that shows nothing yet, nothing is kept: the conversation is as it was."""
    talk = Conversation(llm)
    list(talk.say("a", max_tokens=3))
    before = list(talk.messages)
    turn = talk.say("b")
    assert not turn.stop()
    assert before == talk.messages
    assert [] == list(turn)
    assert "INTERRUPTED" == turn.finish.stop_reason
    check_goes_on(llm, talk)


def test_stopped_too_late(llm):
    """A complete answer stays as it is; one of another turn cannot be kept."""
    talk = Conversation(llm)
    turn = talk.say("a", max_tokens=3)
    list(turn)
    assert turn.stop()
    assert turn.finish.stop_reason == "MAX_TOKENS"
    left = talk.say("b", max_tokens=9)
    next(iter(left))
    list(talk.say("c", max_tokens=3))
    before = list(talk.messages)
    assert not left.stop()
    assert before == talk.messages


def test_answer_not_read(llm):
    """An answer that nobody reads is not part of the conversation."""
    talk = Conversation(llm)
    list(talk.say("a", max_tokens=3))
    before = list(talk.messages)
    talk.say("b")
    assert before == talk.messages
    check_goes_on(llm, talk)


def test_answer_read_in_part(llm):
    """An answer that was left is dropped, and nothing of it is left in the cache."""
    talk = Conversation(llm)
    list(talk.say("a", max_tokens=3))
    before = list(talk.messages)
    for _ in talk.say("b", max_tokens=20):
        break
    assert before == talk.messages
    check_goes_on(llm, talk)


def test_answer_finished_later(llm):
    """An answer that was left may be read on, and then joins the conversation."""
    talk = Conversation(llm)
    turn = talk.say("b", max_tokens=6)
    next(iter(turn))
    list(turn)
    message = {"role": "user", "content": "b"}
    assert fresh(llm, [message], max_tokens=6).ids == turn.finish.ids
    assert turn.finish.text == talk.messages[-1]["content"]
    check_goes_on(llm, talk)


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
def test_interrupted(llm, monkeypatch, error):
    """An answer that is interrupted is dropped; the conversation goes on."""
    talk = Conversation(llm)
    list(talk.say("a", max_tokens=3))
    before = list(talk.messages)
    decode, calls = talk._engine.decode_likeliest, iter([False, False, True])

    def interrupted(*given):
        found = decode(*given)
        if next(calls):
            raise error
        return found

    with monkeypatch.context() as patch:
        patch.setattr(talk._engine, "decode_likeliest", interrupted)
        turn = talk.say("b", max_tokens=20)
        with pytest.raises(error):
            list(turn)
    assert before == talk.messages
    check_goes_on(llm, talk)


def short_pieces(_, tokens):
    """Of 8 tokens, and the rest."""
    return [min(8, tokens - at) for at in range(0, tokens, 8)]


def test_interrupted_within_a_step(llm, monkeypatch):
    """So is one that is interrupted while a step is captured, or a prompt is half run."""
    talk = Conversation(llm)
    norm = llm.model.norm
    for calls in (1, 2, 4):
        left = iter([False] * (calls - 1) + [True])

        class Failing:
            def of_sum(self, x, y, left=left):
                if next(left, False):
                    raise KeyboardInterrupt
                return norm.of_sum(x, y)

        with monkeypatch.context() as patch:
            patch.setattr(Pieces, "of", short_pieces)
            patch.setattr(llm.model, "norm", Failing())
            with pytest.raises(KeyboardInterrupt):
                list(talk.say("b", max_tokens=20))
        assert [] == talk.messages
    check_goes_on(llm, talk)


@pytest.mark.parametrize("options", [{"stops": [""]}, {"max_tokens": 0}])
def test_bad_options(llm, options):
    """Options that are refused leave the conversation as it was."""
    talk = Conversation(llm)
    list(talk.say("a", max_tokens=3))
    kept, talk.messages = talk.messages, []
    with pytest.raises(UsageError):
        talk.say("entirely other", **options)
    talk.messages = kept
    check_goes_on(llm, talk)


def test_bad_text(llm):
    """So does a text that is no Unicode."""
    talk = Conversation(llm)
    list(talk.say("a", max_tokens=3))
    with pytest.raises(UsageError, match="lone surrogate"):
        talk.say("\udc80")
    check_goes_on(llm, talk)


def test_a_system_message_that_is_no_text(llm):
    """It is refused by its name, before the model's template meets it."""
    with pytest.raises(ArgumentTypeError, match=r"llm is a str; supported: an LLM, as LLM\.load"):
        Conversation("model.gguf")
    with pytest.raises(ArgumentTypeError, match="system is 5; supported: a text"):
        Conversation(llm, system=5)


def test_stopped_before_it_began(llm):
    """An answer that nobody iterated over is stopped with nothing kept of it."""
    talk = Conversation(llm)
    assert not talk.say("a").stop()
    assert [] == talk.messages


@pytest.mark.parametrize("then", ["say", "reset"])
def test_stale_answer(llm, then):
    """An answer cannot go on once the conversation has: it would write into its cache."""
    talk = Conversation(llm)
    begun, untouched = talk.say("a", max_tokens=9), None
    next(iter(begun))
    if then == "say":
        untouched = talk.say("b")
        list(talk.say("c", max_tokens=3))
    else:
        talk.reset()
    before = list(talk.messages)
    for turn in filter(None, (begun, untouched)):
        with pytest.raises(UsageError, match="the conversation has moved on"):
            list(turn)
    assert before == talk.messages
    check_goes_on(llm, talk)


def test_stops(llm):
    """What a stop string cut off is not in the conversation either."""
    talk = Conversation(llm)
    whole = "".join(Conversation(llm).say("a", max_tokens=8))
    stop = whole[len(whole) // 2]
    turn = talk.say("a", max_tokens=8, stops=[stop])
    text = "".join(turn)
    assert whole.split(stop)[0] == text == talk.messages[-1]["content"]
    assert ("STOP_SEQUENCE", stop) == (turn.finish.stop_reason, turn.finish.stop_string)
    check_goes_on(llm, talk)


def test_no_template(tiny, tmp_path):
    """A model without a chat template cannot talk, and says what it can do."""
    from propolis_workers.llm import LLM

    llm = LLM.load(tiny.gguf(tmp_path / "m.gguf", metadata={"tokenizer.chat_template": None}))
    with pytest.raises(ModelError, match=r"m.gguf has no chat template: .* raw text"):
        Conversation(llm).say("a")
    assert list(llm.complete("a", max_tokens=3))
