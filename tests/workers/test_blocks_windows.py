"""Blocks of layers with a window: who has which, and that what a token sees is there."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st

from propolis_workers.llm.batch.blocks import Blocks
from propolis_workers.llm.batch.blocks import blocks_of_windows
from propolis_workers.llm.batch.blocks import window_blocks
from propolis_workers.llm.batch.scheduler import Scheduler
from propolis_workers.llm.batch.scheduler import Sequence


class Memory:
    """What a cache would hold: of each row the tokens up to the one that was written there."""

    def __init__(self, size: int, window: int) -> None:
        self.size, self.window = size, window
        self.rows: dict[tuple[bool, int, int], int] = {}
        self.shared: set[tuple[bool, int]] = set()

    def run(self, plan) -> None:
        """Write what a step computes, and look at all that it reads."""
        for source, target, tokens, local in plan.copies:
            for row in range(tokens):
                self.rows[local, target, row] = self.rows[local, source, row]
        for part in plan.parts:
            own = part.sequence
            tokens = [*own.tokens, *part.guess]
            end = own.computed + part.count + len(part.guess)
            for position in range(own.computed, end):
                place, row = divmod(position, self.size)
                said = hash(tuple(tokens[: position + 1]))
                if place >= own.full:
                    self.rows[False, own.blocks[place], row] = said
                self.rows[True, own.local[place - own.behind], row] = said
            for position in range(end):
                place, row = divmod(position, self.size)
                said = hash(tuple(tokens[: position + 1]))
                assert said == self.rows[False, own.blocks[place], row]
                if position > own.computed - self.window:
                    assert place >= own.behind
                    assert said == self.rows[True, own.local[place - own.behind], row]


def bookkept(scheduler: Scheduler, blocks: Blocks) -> None:
    """Every block is somebody's, or can be taken; none behind a window is anybody's."""
    used = {block for one in scheduler.running for block in one.blocks}
    local = {block for one in scheduler.running for block in one.local}
    assert (len(used), len(local)) == (blocks.taken, blocks.windows.taken)
    assert blocks.available + blocks.taken == blocks.count
    assert blocks.windows.available + blocks.windows.taken == blocks.windows.count
    for one in scheduler.running:
        assert one.behind == 0 or one.behind <= blocks.seen_from(one.computed)
        if one.computed:
            assert one.behind >= blocks.seen_from(one.computed)


@pytest.mark.slow
@given(
    st.integers(0, 2**32 - 1),
    st.integers(1, 4),
    st.integers(1, 13),
    st.integers(2, 9),
    st.integers(0, 6),
)
@settings(max_examples=60, deadline=None)
def test_any_schedule_reads_what_was_written(seed, size, window, budget, more) -> None:
    """
    In any order of coming, drawing, guessing and going each token sees what was written for it.

    In as few blocks as one sequence needs, or a few more: sequences share, wait, are computed again
    and copy what begins alike.
    """
    rng = np.random.default_rng(seed)
    longest, most = 24, 5
    budget = max(budget, most)
    windows = window_blocks(window, budget, size) + more
    count = -(-longest // size) + 1 + 2 * more
    blocks = Blocks(count, size, first=1, window=window, windows=windows)

    def guess(sequence):
        room = longest - len(sequence.tokens) - 1
        return tuple(int(i) for i in rng.integers(0, 2, max(0, min(3, room))))

    scheduler = Scheduler(blocks, most, budget, guess if rng.random() < 0.5 else None)
    memory, alive, steps = Memory(size, window), [], 0
    while steps < 120 or alive:
        if steps < 120 and rng.random() < 0.3:
            tokens = [int(i) for i in rng.integers(0, 2, rng.integers(1, longest - 2))]
            alive.append(Sequence(tokens))
            scheduler.add(alive[-1])
        if alive and rng.random() < 0.05:
            scheduler.remove(alive.pop(int(rng.integers(len(alive)))))
        if rng.random() < 0.03:
            scheduler.rewind()
        plan = scheduler.plan()
        bookkept(scheduler, blocks)
        memory.run(plan)
        due = [part for part in plan.parts if part.completes]
        scheduler.done(plan)
        for part in due:
            for guessed in (*part.guess, None):
                drawn = int(rng.integers(2))
                part.sequence.tokens.append(drawn)
                if drawn != guessed:
                    break
                scheduler.advance(part.sequence, 1)
            if len(part.sequence.tokens) >= longest:
                scheduler.remove(part.sequence)
                alive.remove(part.sequence)
        assert plan.parts or not alive, "nobody goes on"
        bookkept(scheduler, blocks)
        steps += 1
        assert steps < 5000, "it does not end"
    assert (blocks.taken, blocks.windows.taken) == (0, 0)
    blocks.forget()
    assert (blocks.kept, blocks.windows.kept) == (0, 0)
    assert {blocks.take() for _ in range(count)} == set(range(1, count + 1))
    assert {blocks.windows.take() for _ in range(windows)} == set(range(1, windows + 1))


def computed(scheduler: Scheduler, tokens: list[int]) -> Sequence:
    """A sequence that ran to the end of its tokens, and is not gone yet."""
    sequence = Sequence(tokens)
    scheduler.add(sequence)
    while sequence.left:
        scheduler.done(scheduler.plan())
    return sequence


def test_what_is_behind_the_window_is_given_back() -> None:
    """A long sequence has no more blocks of windows than its window and a step reach."""
    blocks = Blocks(100, 4, first=1, window=9, windows=20)
    scheduler = Scheduler(blocks, 4, 8)
    sequence = computed(scheduler, list(range(300)))
    assert blocks.taken == 75
    assert blocks.windows.taken == len(sequence.local) == 2  # of the 8 keys before the next token
    assert sequence.behind == 73
    assert blocks.windows.kept == 18  # others may begin alike


def test_a_prompt_that_is_found() -> None:
    """It has the blocks that its window sees, and no others."""
    blocks = Blocks(100, 4, first=1, window=9, windows=40)
    scheduler = Scheduler(blocks, 4, 100)
    tokens = list(range(42))
    first = computed(scheduler, tokens)
    whole, local = list(first.blocks), dict(enumerate(first.local, first.behind))
    scheduler.remove(first)
    again = Sequence([*tokens[:40], 7, 8, 9])
    scheduler.add(again)
    (part,) = scheduler.plan().parts
    assert (part.sequence, again.cached, again.full) == (again, 40, 10)
    assert again.blocks[:10] == whole[:10]
    assert again.behind == 8
    assert again.local[:2] == [local[8], local[9]]


def test_windows_that_are_gone_are_computed_again() -> None:
    """Where they are not kept any more, no block of all tokens is taken for what is known."""
    blocks = Blocks(100, 4, first=1, window=9, windows=12)
    scheduler = Scheduler(blocks, 4, 8)
    tokens = list(range(42))
    scheduler.remove(computed(scheduler, tokens))
    blocks.windows.forget()
    again = Sequence([*tokens, 7, 8])
    scheduler.add(again)
    scheduler.plan()
    assert again.cached == 0
    assert (again.full, blocks.taken) == (10, 10)
    while again.left:
        scheduler.done(scheduler.plan())
    scheduler.remove(again)
    third = Sequence([*tokens, 1])
    scheduler.add(third)
    scheduler.plan()
    assert third.cached == 42  # what was computed again can be found again


@pytest.mark.parametrize(
    ("window", "count", "context", "most", "expected"),
    [
        (0, 2048, 8192, 64, 0),  # no layer has a window
        (8192, 2048, 8192, 64, 0),  # one that hides nothing
        (1024, 512, 8192, 64, 128 + 97),  # of one context: short sequences have a quarter
        (1024, 2048, 8192, 4, 4 * 66 + 97),  # of four
        (128, 8192, 32_768, 64, 64 * 10 + 41),  # every sequence has its window
        (128, 2, 32, 1, 0),
    ],
)
def test_how_many(window, count, context, most, expected) -> None:
    """As docs/serving.md says; and one sequence can always run alone."""
    found = blocks_of_windows(window, count, 16, context, most, 512)
    assert found == expected
    assert found == 0 or window_blocks(window, 512, 16) <= found < count


def test_a_common_beginning_is_found_beside_long_prompts() -> None:
    """Where prompts part is learned once; what a long prompt passes does not push that out."""
    blocks = Blocks(400, 4, first=1, window=9, windows=30)
    scheduler = Scheduler(blocks, 4, 16)
    common = list(range(40))
    found = []
    for number in range(6):
        for tokens in ([*common, 100 + number, *range(200)], [200 + number] * 150):
            sequence = computed(scheduler, tokens)
            found.append(sequence.cached)
            scheduler.remove(sequence)
    assert found[::2] == [0, 0, 40, 40, 40, 40]
