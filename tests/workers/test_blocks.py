"""Who has which block of a paged cache, and what is found there again."""

from __future__ import annotations

import numpy as np
import pytest

from propolis.errors import UsageError
from propolis_workers.llm.batch.blocks import Blocks


def filled(blocks: Blocks, tokens: list[int]) -> list[int]:
    """Take what a sequence needs, and keep its full blocks."""
    match = blocks.match(tokens)
    own = list(match.blocks)
    if match.source is not None:
        blocks.give_back([match.source])
    while len(own) * blocks.size < len(tokens):
        block = blocks.take(own[-1] if own else None)
        assert block is not None
        own.append(block)
    for full in range(len(match.blocks) + 1, len(tokens) // blocks.size + 1):
        blocks.keep(own[:full], tokens)
    return own


def test_a_sequence_is_one_piece_while_it_can_be() -> None:
    """Each block is the neighbour of the one before, for two sequences that grow in turn too."""
    blocks = Blocks(64, 4)
    first, second = [blocks.take()], [blocks.take()]
    for _ in range(15):
        for own in (first, second):
            own.append(blocks.take(own[-1]))
    for own in (first, second):
        assert list(range(own[0], own[0] + 16)) == own
    assert blocks.taken == 32


def test_all_are_given_and_no_more() -> None:
    """Every block can be taken once; then there is none."""
    blocks = Blocks(5, 4, first=3)
    assert {3, 4, 5, 6, 7} == {blocks.take() for _ in range(5)}
    assert blocks.take() is None
    blocks.give_back([4])
    assert blocks.take(6) == 4


def test_what_begins_alike_is_found() -> None:
    """Full blocks of the same tokens are shared, and the last token is always computed."""
    blocks = Blocks(16, 4)
    tokens = list(range(12))
    own = filled(blocks, tokens)
    match = blocks.match(tokens)
    assert (match.blocks, match.tokens) == (own[:2], 8)  # its third ends with the last token
    assert (match.source, match.more) == (own[2], 3)
    longer = blocks.match([*tokens, 99])
    assert (longer.blocks, longer.tokens, longer.more) == (own, 12, 0)
    other = blocks.match([0, 1, 2, 3, 9, 9, 9, 9, 9])
    assert (other.blocks, other.source) == (own[:1], None)


def test_a_part_of_a_block_can_be_copied() -> None:
    """Where sequences part within a block, the one that shares most of it is named."""
    blocks = Blocks(16, 4)
    one = filled(blocks, [0, 1, 2, 3, 4, 5, 6, 7])
    two = filled(blocks, [0, 1, 2, 3, 4, 5, 8, 9])
    assert one[0] == two[0]
    blocks.give_back(two)
    match = blocks.match([0, 1, 2, 3, 4, 5, 8, 7, 7])
    assert (match.source, match.more) == (two[1], 3)
    taken = [blocks.take() for _ in range(blocks.available)]
    assert two[1] not in taken  # until it is given back


def test_what_nobody_uses_stays_until_its_room_is_needed() -> None:
    """It is found again; the oldest goes first, and of a sequence its end before its beginning."""
    blocks = Blocks(6, 2)
    old, new = filled(blocks, [1, 2, 3, 4]), filled(blocks, [5, 6, 7, 8])
    blocks.give_back(old)
    blocks.give_back(new)
    assert (blocks.available, blocks.kept, blocks.taken) == (6, 4, 0)
    assert {blocks.take(), blocks.take()}.isdisjoint(old + new)
    assert blocks.take() == old[1]
    assert blocks.match([1, 2, 3, 4, 5]).blocks == old[:1]
    assert blocks.match([5, 6, 7, 8, 9]).blocks == new


def test_equal_blocks_of_two_are_kept_once() -> None:
    """Two that computed the same at the same time have a block each; one of them is found."""
    blocks = Blocks(8, 2)
    tokens = [1, 2, 3, 4]
    own = [[blocks.take(), blocks.take()] for _ in range(2)]
    for mine in own:
        blocks.keep(mine[:1], tokens)
        blocks.keep(mine, tokens)
    blocks.give_back(own[0])
    blocks.give_back(own[1])
    assert blocks.kept == 2
    assert blocks.available == 8
    assert blocks.match([*tokens, 5]).blocks == own[0]


def test_forget() -> None:
    """Nothing is found afterwards but what somebody uses."""
    blocks = Blocks(8, 2)
    used, idle = filled(blocks, [1, 2]), filled(blocks, [3, 4])
    blocks.give_back(idle)
    blocks.forget()
    assert (blocks.kept, blocks.available) == (0, 7)
    assert blocks.match([3, 4, 5]).blocks == []
    assert blocks.match([1, 2, 3]).blocks == used


def test_nobody_gives_back_twice() -> None:
    """A block without a user is refused by name."""
    blocks = Blocks(2, 2)
    block = blocks.take()
    blocks.give_back([block])
    with pytest.raises(UsageError, match=f"block {block} has no user"):
        blocks.give_back([block])


@pytest.mark.parametrize("seed", range(5))
def test_any_order_loses_nothing(seed) -> None:
    """Sequences that come, share, grow and go in any order leave every block available."""
    rng = np.random.default_rng(seed)
    blocks, living = Blocks(24, 2, first=1), []
    for _ in range(400):
        if living and rng.random() < 0.5:
            blocks.give_back(living.pop(int(rng.integers(len(living)))))
            continue
        tokens = [int(rng.integers(2)) for _ in range(int(rng.integers(1, 9)))]
        if blocks.available >= 5:
            living.append(filled(blocks, tokens))
        held = {block for own in living for block in own}
        assert held == set(blocks._pool._users)
        assert blocks.available + blocks.taken == 24
    for own in living:
        blocks.give_back(own)
    assert blocks.available == 24
    assert {blocks.take() for _ in range(24)} == set(range(1, 25))
