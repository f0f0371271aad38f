"""
What each step of many sequences computes.

A step takes the next token of every sequence whose prompt is done, and as much of the other
prompts as its budget allows: a long prompt delays nobody's tokens by more than that. Who came
first is served first. Where blocks run out the youngest gives its own back and is computed
again later, from its prompt and what was drawn: nothing is lost but time.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from dataclasses import field
from typing import TYPE_CHECKING
from typing import NamedTuple

from propolis_workers.llm.memory import CHUNK
from propolis_workers.llm.memory import SCORED


if TYPE_CHECKING:
    from collections.abc import Callable
    from collections.abc import Iterator

    from propolis_workers.llm.batch.blocks import Blocks
    from propolis_workers.llm.batch.blocks import Match


@dataclass(eq=False, slots=True)
class Sequence:
    """
    A sequence on its way.

    Attributes:
        tokens: the prompt and what was drawn; whoever draws appends.
        computed: how many of them are in the cache.
        blocks: where these are.
        kept: how many of the blocks others can find.
        cached: tokens of the prompt that were found in the cache when it first ran; None before.
        full: how many of the blocks, from the first, hold their tokens whatever is computed: others
            use them too. More tokens than ``computed`` where windows are computed again.
        local: where windows are: blocks of the last places.
        behind: how many places there are before these.
        unread: of a prompt whose tokens' probabilities are wanted, the first token after which it
            is not known how likely each is; None of all others.
    """

    tokens: list[int]
    computed: int = 0
    blocks: list[int] = field(default_factory=list)
    kept: int = 0
    cached: int | None = None
    full: int = 0
    local: list[int] = field(default_factory=list)
    behind: int = 0
    unread: int | None = None

    @property
    def left(self) -> int:
        """Tokens that are not computed."""
        return len(self.tokens) - self.computed


@dataclass(frozen=True, slots=True)
class Part:
    """
    What a step computes of a sequence.

    Attributes:
        sequence: whose.
        count: how many of its next tokens.
        guess: tokens that may come after these, computed with them.
    """

    sequence: Sequence
    count: int
    guess: tuple[int, ...] = ()

    @property
    def completes(self) -> bool:
        """Whether the next token can be drawn afterwards."""
        return self.count == self.sequence.left


class Copy(NamedTuple):
    """
    Tokens of a block that another begins with.

    Attributes:
        source: the block that has them.
        target: the other.
        tokens: how many.
        local: whether these are blocks of windows.
    """

    source: int
    target: int
    tokens: int
    local: bool = False


@dataclass(frozen=True, slots=True)
class Plan:
    """
    A step.

    Attributes:
        parts: what is computed, in order; of sequences that have one token left first.
        copies: what is copied before that.
    """

    parts: list[Part]
    copies: list[Copy]


class Scheduler:
    """
    Who is served, and who waits.

    Attributes:
        running: sequences that have blocks, in the order in which they came.
        waiting: those that have none.
        preempted: how often a sequence had to give its blocks back.
        budget: tokens of the next step, where somebody waits for his next token.
        alone: of a step in which nobody does, the most first; of one prompt in one of these
            sizes, if it has so many.
    """

    def __init__(
        self,
        blocks: Blocks,
        most: int,
        budget: int,
        guess: Callable[[Sequence], tuple[int, ...]] | None = None,
        *,
        alone: tuple[int, ...] = (),
    ) -> None:
        """
        Begin with nobody.

        Args:
            blocks: of the cache.
            most: sequences that run at once.
            budget: tokens of a step, until another is set.
            guess: what may follow the last token of a sequence; None for no guesses.
            alone: the budget where there are none.
        """
        self.running: list[Sequence] = []
        self.waiting: deque[Sequence] = deque()
        self.preempted = 0
        self._blocks = blocks
        self._most = most
        self.budget = budget
        self._guess = guess
        self.alone = alone or (budget,)
        self._scored = SCORED  # rows of this step that prompts may still be scored by

    def add(self, sequence: Sequence) -> None:
        """Let a sequence wait for its turn."""
        self.waiting.append(sequence)

    def remove(self, sequence: Sequence) -> None:
        """Forget a sequence, wherever it is; its blocks are free at once."""
        if sequence in self.running:
            self.running.remove(sequence)
        elif sequence in self.waiting:
            self.waiting.remove(sequence)
        self._blocks.give_back(sequence.blocks)
        self._blocks.give_back_local(sequence.local)
        sequence.blocks, sequence.local, sequence.behind = [], [], 0
        sequence.computed, sequence.kept, sequence.full = 0, 0, 0

    def plan(self) -> Plan:
        """The next step; without parts where there is nothing to do."""
        budget, parts, prompts = self.budget, [], []
        self._scored = SCORED
        preempted = self.preempted
        for sequence in list(self.running):
            if sequence.left > 1:
                prompts.append(sequence)
            elif sequence in self.running and self._grow(sequence, 1):
                parts.append(Part(sequence, 1))
                budget -= 1
        if self._guess is not None and not prompts and not self.waiting:
            room = max(min(budget, CHUNK - len(parts)), 0)  # memory is kept for no more logits
            parts = [self._guessed(part, room // max(len(parts), 1)) for part in parts]
        if not parts:
            budget = self.alone[0]
        for sequence in prompts:
            if budget <= 0:
                break
            count = self._count(sequence, budget)
            if count and sequence in self.running and self._grow(sequence, count):
                parts.append(self._part(sequence, count))
                budget -= count
        # Whoever gave its blocks back for another is computed later.
        parts = [part for part in parts if part.sequence.blocks]
        full = preempted != self.preempted
        copies = [] if full else list(self._admit(budget, parts))
        return Plan(parts, copies)

    def goes_on(self, sequences: list[Sequence]) -> bool:
        """
        Whether the next step is theirs alone, of one token each; then they have the blocks for it.

        It is not where somebody waits who may come in, or where blocks would be taken from others.
        """
        if (self.waiting and len(self.running) < self._most) or self.running != sequences:
            return False
        size, windows = self._blocks.size, self._blocks.windows
        needed = [-(-(one.computed + 1) // size) for one in sequences]
        counts = list(zip(needed, sequences, strict=True))
        if sum(n - len(one.blocks) for n, one in counts) > self._blocks.available:
            return False
        more = sum(n - one.behind - len(one.local) for n, one in counts)
        if windows is not None and more > windows.available:
            return False
        return all(self._grow(one, 1) for one in sequences)

    def done(self, plan: Plan) -> None:
        """Note that a step was computed; of guesses nothing counts yet."""
        for part in plan.parts:
            self.advance(part.sequence, part.count)

    def advance(self, sequence: Sequence, count: int) -> None:
        """Note that so many more tokens of a sequence are in the cache."""
        sequence.computed += count
        full = sequence.computed // self._blocks.size
        if full > sequence.kept:
            local = dict(enumerate(sequence.local, sequence.behind))
            self._blocks.keep(sequence.blocks[:full], sequence.tokens, local)
            sequence.kept = full
        self._leave_behind(sequence)

    def rewind(self) -> None:
        """
        After a step that failed: compute all that run again, as nobody knows what it wrote.

        Nor since when: a device tells of a failure when somebody waits for it. So nobody's blocks
        are found any more.
        """
        for sequence in reversed(list(self.running)):
            self._preempt(sequence)
        self._blocks.forget()

    def _admit(self, budget: int, parts: list[Part]) -> Iterator[Copy]:
        """Let those that wait run, as far as there is room; says which blocks are copied."""
        size = self._blocks.size
        while budget > 0 and len(self.running) < self._most:
            # Who is told of his prompt gives way while as many rows are read for others.
            ready = (one for one in self.waiting if self._count(one, budget))
            sequence = next(ready, None)
            if sequence is None:
                return
            # What is found is not computed, and so gives no logits.
            match = self._blocks.match(sequence.tokens[: sequence.unread])
            source = match.source
            if source is not None and not self._has_room(sequence, match):
                self._give_back_source(match)  # its own room may be what is wanting
                source = None
            if not self._has_room(sequence, match):
                self._blocks.give_back(match.blocks)
                self._blocks.give_back_local(match.local)
                return
            self.waiting.remove(sequence)
            self.running.append(sequence)
            sequence.blocks, sequence.full = list(match.blocks), len(match.blocks)
            sequence.computed, sequence.kept = match.tokens, match.tokens // size
            sequence.local = list(match.local)
            sequence.behind = sequence.kept - len(match.local)
            if source is not None:
                self._grow(sequence, match.more)
                yield Copy(source, sequence.blocks[-1], match.more)
                if match.local_source is not None:
                    yield Copy(match.local_source, sequence.local[-1], match.more, local=True)
                sequence.computed += match.more
                self._give_back_source(match)
                self._leave_behind(sequence)
            if sequence.cached is None:
                sequence.cached = sequence.computed
            count = self._count(sequence, budget)
            if self._grow(sequence, count):
                parts.append(self._part(sequence, count))
                budget -= count

    def _part(self, sequence: Sequence, count: int) -> Part:
        if sequence.unread is not None:
            self._scored -= count
        return Part(sequence, count)

    def _count(self, sequence: Sequence, budget: int) -> int:
        """How much of a prompt a step has; of one that has it alone, what comes again alike."""
        count = min(budget, sequence.left)
        if sequence.unread is not None:
            count = min(count, self._scored)
        if self.running == [sequence] and not self.waiting:
            count = next((size for size in self.alone if size <= count), count)
        return count

    def _has_room(self, sequence: Sequence, match: Match) -> bool:
        """Whether there is room for a whole prompt, its first token, and the next of all others."""
        blocks, others = self._blocks, len(self.running)
        needed = len(sequence.tokens) // blocks.size + 1 - len(match.blocks)
        if needed + others > blocks.available:
            return False
        needed = blocks.windowed(len(sequence.tokens), self.budget) - len(match.local)
        return blocks.windows is None or needed + others <= blocks.windows.available

    def _give_back_source(self, match: Match) -> None:
        if match.source is not None:
            self._blocks.give_back([match.source])
        if match.local_source is not None:
            self._blocks.give_back_local([match.local_source])

    def _leave_behind(self, sequence: Sequence) -> None:
        """Give back the blocks of windows that no next token sees anything of."""
        if not sequence.local:
            return
        gone = self._blocks.seen_from(sequence.computed) - sequence.behind
        # Who begins alike needs those before the place where it parted from another, as this
        # sequence did; a long prompt's others must not push out what is looked for.
        parted = range(self._blocks.seen_from(sequence.full * self._blocks.size), sequence.full)
        for place, block in enumerate(sequence.local[:gone], sequence.behind):
            self._blocks.give_back_local([block], passed=place not in parted)
        del sequence.local[:gone]
        sequence.behind += gone

    def _guessed(self, part: Part, most: int) -> Part:
        """The same with a guess, where there is one and room for it that nobody else needs."""
        sequence = part.sequence
        if self._guess is None or not sequence.blocks:
            return part
        found = self._guess(sequence)[:most]
        places = -(-(sequence.computed + 1 + len(found)) // self._blocks.size)
        windows, others = self._blocks.windows, len(self.running)
        if places - len(sequence.blocks) > self._blocks.available - others:
            return part
        if windows is not None:
            places -= sequence.behind + len(sequence.local)
            if places > windows.available - others:
                return part
        self._grow(sequence, 1 + len(found))
        return Part(sequence, part.count, found)

    def _grow(self, sequence: Sequence, count: int) -> bool:
        """
        Take the blocks of the next tokens, from the youngest where there are no more.

        Returns:
            Whether it has them; if not, it has given its own back.
        """
        needed = -(-(sequence.computed + count) // self._blocks.size)
        while len(sequence.blocks) < needed:
            block = self._blocks.take(sequence.blocks[-1] if sequence.blocks else None)
            if block is not None:
                sequence.blocks.append(block)
            elif self._preempt_youngest() is sequence:
                return False
        windows = self._blocks.windows
        while windows is not None and sequence.behind + len(sequence.local) < needed:
            block = windows.take(sequence.local[-1] if sequence.local else None)
            if block is not None:
                sequence.local.append(block)
            elif self._preempt_youngest() is sequence:
                return False
        return True

    def _preempt_youngest(self) -> Sequence:
        youngest = self.running[-1]
        self._preempt(youngest)
        return youngest

    def _preempt(self, sequence: Sequence) -> None:
        self.remove(sequence)
        self.waiting.appendleft(sequence)
        self.preempted += 1


__all__ = ["Copy", "Part", "Plan", "Scheduler", "Sequence"]
