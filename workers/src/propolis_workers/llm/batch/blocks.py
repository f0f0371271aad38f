"""
The blocks of a paged cache: who has which, and what those that nobody has still hold.

A block that is full of tokens is kept in a tree by the tokens before it, so that a prompt
which begins alike finds its keys and values there (a prefix cache). Such a block may have
several users, and none writes to it. Once it has none it stays until its room is needed: the
block that was not used for longest goes first.

Layers with a window may have blocks of their own (``windows``), of which a sequence needs no more
than its window reaches back to. A place in the tree has one of them too, as long as its room is not
needed: a prompt can be gone on with where all that its window sees is there.
"""

from __future__ import annotations

from dataclasses import dataclass
from dataclasses import field
from typing import TYPE_CHECKING

from propolis_workers.llm.batch.pool import Pool


if TYPE_CHECKING:
    from collections.abc import Mapping
    from collections.abc import Sequence


@dataclass(eq=False, slots=True)
class _Node:
    """A full block in the tree, and that of windows if it is there; the root has none."""

    block: int
    tokens: tuple[int, ...]
    parent: _Node | None
    children: dict[tuple[int, ...], _Node] = field(default_factory=dict)
    local: int | None = None


@dataclass(frozen=True, slots=True)
class Match:
    """
    What a cache holds of the beginning of a sequence.

    Attributes:
        blocks: full blocks of it, in order; whoever asked is a user of them now.
        tokens: how many of its tokens need not be computed: those of these blocks, or fewer where
            the windows of a token that follows do not have all that they see.
        source: a block that holds some of the next tokens too, or None; whoever asked is a user
            of it until they are copied.
        more: how many it holds.
        local: blocks of windows, the last of them full up to ``tokens``; used likewise.
        local_source: the block of windows beside ``source``; used likewise.
    """

    blocks: list[int]
    tokens: int
    source: int | None = None
    more: int = 0
    local: list[int] = field(default_factory=list)
    local_source: int | None = None


class Blocks:
    """
    Blocks ``first`` to ``first + count - 1`` of a cache, each of ``size`` tokens.

    Attributes:
        size: tokens of a block.
        count: of blocks.
        window: keys that queries of layers with blocks of their own see; 0 where none has.
        windows: the blocks of these; None where there are none.
    """

    def __init__(
        self, count: int, size: int, first: int = 0, *, window: int = 0, windows: int = 0
    ) -> None:
        """
        Begin with nobody.

        Args:
            count: of blocks.
            size: tokens of a block.
            first: number of the first of either kind.
            window: keys that queries of layers with blocks of their own see, their own included.
            windows: how many such blocks there are; 0 where all layers share blocks.
        """
        self.size = size
        self.count = count
        self.window = window if windows else 0
        self.windows = Pool(windows, first, self._lose_local) if windows else None
        self._pool = Pool(count, first, self._lose)
        self._nodes: dict[int, _Node] = {}
        self._local_nodes: dict[int, _Node] = {}
        self._root = _Node(-1, (), None)

    @property
    def available(self) -> int:
        """Blocks that can be taken now."""
        return self._pool.available

    @property
    def taken(self) -> int:
        """Blocks that somebody uses."""
        return self._pool.taken

    @property
    def kept(self) -> int:
        """Blocks without users that hold what a prompt may begin with."""
        return self._pool.kept

    def take(self, after: int | None = None) -> int | None:
        """As :meth:`Pool.take`."""
        return self._pool.take(after)

    def seen_from(self, position: int) -> int:
        """The place of the first block that a window sees something of, from a position."""
        return max(0, position - self.window + 1) // self.size

    def windowed(self, tokens: int, budget: int) -> int:
        """Blocks of windows that so many tokens of a sequence have at most, with steps of some."""
        if self.windows is None:
            return 0
        return min(tokens // self.size + 1, window_blocks(self.window, budget, self.size))

    def match(self, tokens: Sequence[int]) -> Match:
        """
        What is there of a sequence's beginning; its last token is never part of it.

        Args:
            tokens: the whole sequence.
        """
        node, size = self._root, self.size
        path: list[_Node] = []
        reach = len(tokens) - 1  # somebody wants the logits after the last
        while (len(path) + 1) * size <= reach:
            start = len(path) * size
            child = node.children.get(tuple(tokens[start : start + size]))
            if child is None:
                break
            self._pool.use(child.block)
            path.append(child)
            node = child
        blocks = [found.block for found in path]
        local, known = self._windows_of(path)
        if known < len(path):
            return Match(blocks, known * size, local=local)
        start = len(path) * size
        wanted = tuple(tokens[start : min(start + size, reach)])
        best, most = None, 0
        for child in node.children.values():
            shared = _shared(child.tokens, wanted)
            if shared > most and (self.windows is None or child.local is not None):
                best, most = child, shared
        if best is None:
            return Match(blocks, start, local=local)
        self._pool.use(best.block)
        if self.windows is not None and best.local is not None:
            self.windows.use(best.local)
        return Match(blocks, start, best.block, most, local, best.local)

    def keep(
        self, blocks: Sequence[int], tokens: Sequence[int], local: Mapping[int, int] | None = None
    ) -> None:
        """
        Let others find blocks that are full now.

        Args:
            blocks: of a sequence, from its first; all of them full.
            tokens: that they hold.
            local: its blocks of windows, by place; of others than it has still, nothing.
        """
        node, own = self._root, local or {}
        for place, block in enumerate(blocks):
            part = tuple(tokens[place * self.size : (place + 1) * self.size])
            child = node.children.get(part)
            if child is None:
                child = node.children[part] = self._nodes[block] = _Node(block, part, node)
                self._pool.hold(block)
            if child.block != block:
                return  # somebody else's block holds the same: one is enough
            if self.windows is not None and child.local is None and place in own:
                child.local = own[place]
                self._local_nodes[child.local] = child
                self.windows.hold(child.local)
            node = child

    def give_back(self, blocks: Sequence[int]) -> None:
        """As :meth:`Pool.give_back`; what the tree has of them stays for a while."""
        self._pool.give_back(blocks)

    def give_back_local(self, blocks: Sequence[int], *, passed: bool = False) -> None:
        """The same of blocks of windows."""
        if self.windows is not None:
            self.windows.give_back(blocks, passed=passed)

    def forget(self) -> None:
        """Keep nothing of what has no user."""
        self._pool.forget()
        if self.windows is not None:
            self.windows.forget()

    def _windows_of(self, path: Sequence[_Node]) -> tuple[list[int], int]:
        """
        The blocks that the window of a next token sees, used, and how many places these end.

        That is the longest beginning of a path with which a sequence can be gone on.
        """
        if self.windows is None:
            return [], len(path)
        best, run = 0, 0
        for place, node in enumerate(path, 1):
            run = run + 1 if node.local is not None else 0
            if run >= place - self.seen_from(place * self.size):
                best = place
        seen = path[self.seen_from(best * self.size) : best]
        local = [node.local for node in seen if node.local is not None]
        for block in local:
            self.windows.use(block)
        return local, best

    def _lose(self, block: int) -> None:
        node = self._nodes.pop(block)
        if node.parent is not None:
            del node.parent.children[node.tokens]
        if node.local is not None and self.windows is not None:
            self.windows.release(node.local)  # nobody gets there any more
            del self._local_nodes[node.local]
            node.local = None

    def _lose_local(self, block: int) -> None:
        self._local_nodes.pop(block).local = None


def window_blocks(window: int, budget: int, size: int) -> int:
    """
    Blocks that a window sees from one of a step's tokens, and these themselves have, at most.

    Args:
        window: keys that a query sees, its own included.
        budget: tokens of a step.
        size: of a block.
    """
    return -(-(window - 1) // size) + -(-budget // size) + 1


def blocks_of_windows(
    window: int, count: int, size: int, context: int, most: int, budget: int
) -> int:
    """
    How many blocks of windows there are beside so many of all tokens.

    As many sequences as there are contexts in the cache have room for their windows, or more that
    are short, which together have up to a quarter of the cache's tokens; and so has a step.

    Args:
        window: keys that a query sees, its own included; 0 where no layer has one.
        count: of blocks of all tokens.
        size: tokens of a block.
        context: tokens that a sequence may have.
        most: sequences that run at once.
        budget: tokens of a step.

    Returns:
        How many; 0 where there would be as many as of all tokens, so that all share one kind.
    """
    if not window:
        return 0
    each = window_blocks(window, 1, size)
    whole = min(most, -(-count * size // context))
    needed = max(whole * each, min(most * each, count // 4)) + window_blocks(window, budget, size)
    return needed if needed < count else 0


def _shared(a: Sequence[int], b: Sequence[int]) -> int:
    """How many elements two sequences begin with alike."""
    length = 0
    for x, y in zip(a, b, strict=False):
        if x != y:
            break
        length += 1
    return length


__all__ = ["Blocks", "Match", "blocks_of_windows", "window_blocks"]
