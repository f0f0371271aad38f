"""
Many answers at once on one model.

Call :meth:`BatchEngine.step` for as long as there is something to do: each step computes what
the scheduler planned (see steps.py) and draws the next token of every sequence that is due.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING
from typing import Final

from propolis import ops
from propolis.errors import DeviceError
from propolis.errors import DeviceLostError
from propolis.errors import ModelError
from propolis.errors import OutOfMemoryError
from propolis.errors import PropolisError
from propolis.errors import UsageError
from propolis_workers.llm.answer import OWN
from propolis_workers.llm.answer import Answer
from propolis_workers.llm.answer import expect_prompt
from propolis_workers.llm.batch.ahead import Ahead
from propolis_workers.llm.batch.blocks import Blocks
from propolis_workers.llm.batch.blocks import blocks_of_windows
from propolis_workers.llm.batch.draws import Draw
from propolis_workers.llm.batch.draws import draws_among
from propolis_workers.llm.batch.draws import keys_of
from propolis_workers.llm.batch.draws import odds_of
from propolis_workers.llm.batch.lookup import guess
from propolis_workers.llm.batch.pace import Pace
from propolis_workers.llm.batch.paged_cache import NOBODYS
from propolis_workers.llm.batch.paged_cache import PagedCache
from propolis_workers.llm.batch.paged_cache import Placed
from propolis_workers.llm.batch.scheduler import Part
from propolis_workers.llm.batch.scheduler import Plan
from propolis_workers.llm.batch.scheduler import Scheduler
from propolis_workers.llm.batch.scheduler import Sequence
from propolis_workers.llm.batch.scores import Logprobs
from propolis_workers.llm.batch.scores import logprobs_of
from propolis_workers.llm.batch.scores import scores_of
from propolis_workers.llm.batch.steps import Steps
from propolis_workers.llm.chunks import pieces_of
from propolis_workers.llm.drawing import Drawing
from propolis_workers.llm.grammar import Grammars
from propolis_workers.llm.memory import CHUNK
from propolis_workers.llm.memory import batch_bytes
from propolis_workers.llm.stopping import Ending  # noqa: TC001  (part of a dataclass)
from propolis_workers.suspects import suspects


if TYPE_CHECKING:
    from propolis import Tensor
    from propolis_workers.llm.answer import Finish
    from propolis_workers.llm.batch.steps import Captured
    from propolis_workers.llm.rows import Rows
    from propolis_workers.llm.sampling import SamplingParams
    from propolis_workers.llm.session import LLM

# Tokens of a block: what is shared and kept is whole blocks.
BLOCK: Final = 16
# A row of a step that is nobody's any more.
_ENDED: Final = Placed([0], 0, [NOBODYS], local=[NOBODYS])


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """
    What somebody wants.

    Attributes:
        prompt: at least one token.
        params: how tokens are drawn.
        max_tokens: the most tokens to draw.
        stops: strings that end the answer.
        ending: which tokens do.
        logprobs: how many of the likeliest tokens are told with each; None for no probabilities.
        prompt_logprobs: the same of the prompt's tokens but the first.
        grammar: what the answer has to follow, as :mod:`propolis_workers.llm.grammar` makes it.
        shown: control tokens that are text all the same, such as those that begin calls of tools.
    """

    prompt: list[int]
    params: SamplingParams
    max_tokens: int
    stops: tuple[str, ...] = ()
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    grammar: str | None = None
    shown: tuple[int, ...] = ()
    ending: Ending = OWN


@dataclass(frozen=True, slots=True)
class Drawn:
    """
    The next token of an answer.

    Attributes:
        key: whose, as given to :meth:`BatchEngine.add`.
        token: its id.
        text: what it makes safe to show; often nothing.
        finish: how the answer went, where this is its last token.
        error: why there is no token, where the answer ends with an error.
        logprobs: the natural logarithm of its probability before any setting changed it, and
            those of the likeliest tokens; None where nobody asked.
        prompt: of the prompt's next tokens, from the second on; then there is no token.
    """

    key: object
    token: int | None
    text: str = ""
    finish: Finish | None = None
    error: PropolisError | None = None
    logprobs: Logprobs | None = None
    prompt: list[Logprobs] | None = None


class BatchEngine:
    """
    Answers requests together, each as if it were alone.

    Attributes:
        capacity: tokens that a sequence may have, its answer included.
        blocks: of the cache.
        scheduler: who runs and who waits.
        steps: what computes what was planned.
        guessed: tokens that were guessed.
        taken: how many of them were right.
    """

    def __init__(
        self,
        llm: LLM,
        *,
        context: int,
        most: int = 64,
        tokens: int | None = None,
        budget: int | None = None,
        speculate: int = 0,
    ) -> None:
        """
        Make room.

        Args:
            llm: the model.
            context: tokens that a sequence may have; the model's at most.
            most: sequences that run at once; others wait.
            tokens: that the cache holds for all of them together; a context for each of four, if
                they are so many, when None.
            budget: tokens of a step, those of prompts included; when None 512, and more beside
                others' next tokens where the device computes them as fast (:class:`.pace.Pace`).
            speculate: tokens that are guessed at most for a sequence and checked in one step; the
                answers are the same.

        Raises:
            ModelError: one of them is not at least one.
            OutOfMemoryError: it takes more memory than is free.
        """
        asked, budget = budget, CHUNK if budget is None else budget
        for name, value in (("context", context), ("most", most), ("budget", budget)):
            if value < 1:
                msg = f"{name} is {value}; supported: from 1"
                raise ModelError(msg)
        self._llm = llm
        self._model = model = llm.model
        context = min(context, model.config.context_length)
        held = context * min(most, 4) if tokens is None else max(tokens, BLOCK)
        count, budget = -(-held // BLOCK), max(budget, most)
        window = max(model.config.windows, default=0)
        windows = blocks_of_windows(window, count, BLOCK, context, most, budget)
        held, beside = ((n + 1) * BLOCK for n in (count, windows or count))
        needed = batch_bytes(
            model.config,
            held,
            context,
            most,
            model.device.threads,
            windows=beside,
            guesses=speculate,
            budget=budget,
        )
        model.device.expect_room(
            needed,
            f"a cache of {count * BLOCK} tokens for {most} sequences",
            "give a smaller --context, --sequences or --cache-tokens",
        )
        # Of a step that delays nobody's next token, beside those of the budget.
        pieces = pieces_of(model.config, model.device, context, needed, budget, sequences=most)
        self.blocks = Blocks(count, BLOCK, first=1, window=window, windows=windows)
        guesses = self._guess if speculate else None
        self.scheduler = Scheduler(self.blocks, most, budget, guesses)
        self._pace = Pace(pieces.sizes, stays=asked is not None)
        self._speculate = speculate
        self.guessed = self.taken = 0
        self.capacity = min(context, count * BLOCK)
        self._cache = PagedCache(
            model.config, model.device, count + 1, BLOCK, windows + 1 if windows else 0
        )
        blocks = -(-self.capacity // BLOCK)
        self.steps = Steps(
            llm,
            self._cache,
            most=most,
            capacity=context,
            blocks=blocks,
            pieces=pieces,
        )
        self._answers: dict[object, tuple[Sequence, Answer, Request]] = {}
        self._keys: dict[Sequence, object] = {}
        self._spoiled: set[object] = set()  # of whose prompts some logits are NaN
        self._ahead: Ahead | None = None
        self._drawing = Drawing(model.device)
        self._failed, self._waited = False, True
        self._unread: set[object] = set()  # whose logits could not be read, the last time
        self._grammars = Grammars(llm.tokenizer)

    @property
    def busy(self) -> bool:
        """Whether there is something to do."""
        return bool(self._answers)

    def add(self, key: object, request: Request) -> None:
        """
        Take a request; its tokens come from :meth:`step`.

        Args:
            key: names it, as no other that is not finished.
            request: what is wanted.

        Raises:
            ModelError: its prompt leaves no room for an answer, or is empty, or holds a token
                that the model does not know.
            UsageError: ``max_tokens`` or the stop strings cannot be used.
        """
        prompt = request.prompt
        if key in self._answers:
            msg = f"{key!r} names an answer that is not finished: take another name"
            raise UsageError(msg)
        tokenizer = self._llm.tokenizer
        expect_prompt(prompt, len(prompt), self.capacity, self._model.config, tokenizer)
        if request.prompt_logprobs is not None and max(prompt) >= tokenizer.vocab_size:
            msg = f"token {max(prompt)} of the prompt is none of the tokenizer's "
            msg += f"{tokenizer.vocab_size}: nobody knows how likely it is"
            raise ModelError(msg)
        answer = Answer(
            tokenizer,
            prompt,
            params=request.params,
            max_tokens=request.max_tokens,
            stops=request.stops,
            ending=request.ending,
            constraint=None
            if request.grammar is None
            else self._grammars.constraint(request.grammar),
            shown=request.shown,
            blame=lambda: suspects(self._model.device, self._llm.path, self._llm.config.dtype),
        )
        answer.start()
        sequence = Sequence(answer.tokens)
        if request.prompt_logprobs is not None:
            sequence.unread = 0
        self._answers[key] = sequence, answer, request
        self._keys[sequence] = key
        self.scheduler.add(sequence)

    def cancel(self, key: object) -> Finish | None:
        """End an answer where it is; how it went, None where there is no such answer."""
        found = self._answers.get(key)
        if found is None:
            return None
        found[1].finish.stop_reason = "INTERRUPTED"
        self._end(key)
        return found[1].finish

    def abandon(self) -> list[object]:
        """End the answers of all that ran, after a step that failed; says whose they were."""
        self._failed = False
        keys = [key for key, (sequence, *_) in self._answers.items() if sequence.cached is not None]
        for key in keys:
            self._end(key)
        return keys

    def step(self) -> list[Drawn]:
        """
        Compute what is due.

        Returns:
            The tokens that were drawn, and how likely those of prompts are, where that is wanted;
            nothing where only a part of a prompt was computed.

        Raises:
            PropolisError: the step failed, twice in a row, for all: nothing of it is counted, and
                those that run can be given up by :meth:`abandon`.
            DeviceLostError: only a new process can go on.
        """
        drawn: list[Drawn] = []
        try:
            self._compute(drawn)
        except DeviceLostError:
            raise
        except PropolisError as exc:
            # What has been drawn before it counts; the others are computed again.
            if isinstance(exc, OutOfMemoryError):
                self._pace.short_of_memory()
            self.scheduler.rewind()
            if self._failed and not drawn:
                raise
            self._failed = True
            return drawn
        self._failed = False
        return drawn

    def _compute(self, drawn: list[Drawn]) -> None:
        began = time.monotonic()
        ahead, self._ahead = self._ahead, None
        wanted = {} if ahead is None else ahead.holds()
        if ahead is not None and wanted:
            plan, rows = Plan(list(wanted), []), ahead.rows
        else:
            ahead = None
            self.scheduler.budget, self.scheduler.alone = self._pace.tokens, self._pace.alone
            plan = self.scheduler.plan()
            if not plan.parts:
                return
            for copied in plan.copies:
                self._cache.copy(copied)
            rows, wanted, scored = self._rows(plan)
            self._score(scored, rows, drawn)
        self.scheduler.done(plan)
        due = {part: wanted[part] for part in plan.parts if part in wanted}
        draws = self._draws(due, rows, ahead)
        # What is not waited for has part of its time in the next one.
        timed, self._waited = self._waited and bool(due), bool(due)
        if timed and ahead is None and any(part.count == 1 for part in plan.parts):
            self._pace.took(sum(part.count for part in plan.parts), time.monotonic() - began)
        for part, own in due.items():
            self._follow(part, [draws[row] for row in own], drawn)

    def _draws(
        self, due: dict[Part, list[int]], rows: Rows, ahead: Ahead | None
    ) -> dict[int, Draw]:
        """What each row's token is drawn from: the least that the host has to read."""
        whose = {row: self._answers[self._keys[part.sequence]] for part in due for row in due[part]}
        untold = {row: own for row, (_, own, asked) in whose.items() if asked.logprobs is None}
        # Of guesses it depends on those before them what is drawn, and whether anything is.
        single = all(len(own) == 1 for own in due.values())
        chosen = {row: own for row, own in untold.items() if not own.greedy}
        every = len(untold) == len(whose) and all(own.drawable for own in untold.values())
        if every and (not chosen or (single and self._drawing.serves(rows.dtype))):
            found = self._found(list(due), rows, list(whose), ahead, chosen) if whose else []
            if found is not None:
                tokens = zip(whose, found, strict=True)
                return {row: Draw(None, *one, is_drawn=row in chosen) for row, one in tokens}
        few = {row: own for row, own in untold.items() if own.among}
        draws = draws_among(few, rows, {own[0] for own in due.values()})
        rest = [row for row in whose if row not in draws]
        if rest:
            draws |= {row: Draw(own) for row, own in zip(rest, rows.all(rest), strict=True)}
        return draws

    def _found(
        self,
        due: list[Part],
        rows: Rows,
        every: list[int],
        ahead: Ahead | None,
        chosen: dict[int, Answer],
    ) -> list[tuple[int, float]] | None:
        """
        The token of each row that the device finds, and the likeliest's logit.

        Where the device has a queue, the step of these tokens is queued before they are waited for:
        so the device is not idle while the host reads them and tells of them.

        Args:
            due: whose.
            rows: the logits.
            every: which rows.
            ahead: the step, if it was queued ahead.
            chosen: whose tokens are drawn; of the others the likeliest is found.

        Returns:
            None where there is no memory to draw.
        """
        found, at, keys = None, rows.at, keys_of(chosen, 0)
        if ahead is not None and ahead.keys.items() >= keys.items():
            found, at = ahead.found, ahead.next
        elif chosen:
            drawn = self._drawing.queue(rows, odds_of(chosen), keys)
            if drawn is None:
                return None
            at = drawn
        known = self.steps.captured(len(every))
        if known is None or known.rows is not rows:
            return rows.best(every) if found is None else [found()[row] for row in every]
        if found is None:
            found = rows.best_later(range(max(every) + 1))
        if found is None:
            return rows.best(every)
        following = None
        if self._goes_on(due):
            sequences = [part.sequence for part in due]
            following = self._queued_ahead(sequences, every, known, at, chosen)
        every_row = found()
        best = [every_row[row] for row in every]
        if following is not None:
            # Not before: where waiting fails, what was queued counts for nothing.
            following.tokens = [token for token, _ in best]
            self._ahead = following
        return best

    def _goes_on(self, due: list[Part]) -> bool:
        """Whether somebody may go on after the next token, and all have room to."""
        room = all(len(part.sequence.tokens) + 1 < self.capacity for part in due)
        return room and any(self._answers[self._keys[part.sequence]][1].left > 1 for part in due)

    def _queued_ahead(
        self,
        sequences: list[Sequence],
        at: list[int],
        known: Captured,
        tokens: Tensor,
        chosen: dict[int, Answer],
    ) -> Ahead | None:
        """Queue the step after the last one, of the tokens that it finds in rows ``at``."""
        step, graph, rows = known
        if self._speculate or not graph.is_one_launch() or not self.scheduler.goes_on(sequences):
            return None
        try:
            parts = [_ENDED] * (max(at) + 1)
            for row, own in zip(at, sequences, strict=True):
                parts[row] = _placed(own, [0])
            step.set(parts)
            ops.cast.into(step.ids, tokens, step.ids.dtype)
            graph.replay()
            following, keys = rows.at, keys_of(chosen, 1)
            if chosen:
                drawn = self._drawing.queue(rows, odds_of(chosen), keys)
                if drawn is None:
                    return None
                following = drawn
            found = rows.best_later(range(len(parts)))
        except DeviceLostError:
            raise
        except PropolisError:  # whoever asks for this step next is told
            return None
        if found is None:
            return None
        positions = [own.computed for own in sequences]
        return Ahead(sequences, at, positions, rows, found, following, keys)

    def _guess(self, sequence: Sequence) -> tuple[int, ...]:
        """What may follow, no more than there is room for."""
        key = self._keys[sequence]
        answer = self._answers[key][1]
        room = min(self.capacity - len(sequence.tokens) - 1, answer.left - 1)
        return guess(sequence.tokens, min(self._speculate, room))

    def _follow(self, part: Part, draws: list[Draw], drawn: list[Drawn]) -> None:
        """Draw the next token of a sequence, and those after it as long as they were guessed."""
        self.guessed += len(part.guess)
        for draw, guessed in zip(draws, (*part.guess, None), strict=True):
            found = self._drawn(part.sequence, draw)
            drawn.append(found)
            if guessed is None or found.token != guessed or found.finish is not None:
                break
            self.taken += 1
            self.scheduler.advance(part.sequence, 1)

    def _drawn(self, sequence: Sequence, draw: Draw) -> Drawn:
        key = self._keys[sequence]
        _, answer, asked = self._answers[key]
        if sequence.cached:
            answer.finish.cached_tokens = sequence.cached
        try:
            if key in self._spoiled:
                answer.expect_numbers(math.nan)
            token = draw.of(answer)
        except PropolisError as exc:
            # Of reading the logits of all: the step's, unless it is this answer's again and again.
            again = key in self._unread and not isinstance(exc, DeviceLostError)
            if isinstance(exc, DeviceError) and not again:
                self._unread.add(key)
                raise
            self._end(key)
            return Drawn(key, None, error=exc)
        self._unread.discard(key)
        # The token drawn counts too.
        text, ended = answer.push(token, full=len(answer.tokens) + 1 >= self.capacity)
        if ended:
            self._end(key)
        likely = None
        if asked.logprobs is not None and draw.logits is not None:
            known = draw.logits[: self._llm.tokenizer.vocab_size]
            likely = logprobs_of(known, token, asked.logprobs)
        return Drawn(key, token, text, answer.finish if ended else None, logprobs=likely)

    def _score(self, scored: dict[Part, range], rows: Rows, drawn: list[Drawn]) -> None:
        """Tell how likely the tokens of prompts are, unless that is no number."""
        for part, wanted in scored.items():
            own = part.sequence
            after = own.computed + part.count
            if wanted:
                # The last of a prompt's rows is not of a token of the prompt.
                following = min(after + 1, len(own.tokens))
                tokens = own.tokens[following - len(wanted) : following]
                key = self._keys[own]
                found = scores_of(rows, wanted, tokens, self._answers[key][2].prompt_logprobs or 0)
                if any(math.isnan(one.own) for one in found):
                    self._spoiled.add(key)
                if key not in self._spoiled:
                    drawn.append(Drawn(key, None, prompt=found))
            # No less than before: after its blocks were given back it is computed again.
            own.unread = None if part.completes else max(after, own.unread or 0)

    def _end(self, key: object) -> None:
        self._unread.discard(key)
        self._spoiled.discard(key)
        sequence, *_ = self._answers.pop(key)
        del self._keys[sequence]
        self.scheduler.remove(sequence)

    def _rows(self, plan: Plan) -> tuple[Rows, dict[Part, list[int]], dict[Part, range]]:
        """
        What a step gives.

        Returns:
            Its logits; which of its rows are those of each sequence that is due; and of each
            prompt whose tokens' probabilities are wanted.
        """
        parts = []
        for part in plan.parts:
            own = part.sequence
            tokens = own.tokens[own.computed : own.computed + part.count]
            parts.append(_placed(own, [*tokens, *part.guess]))
        if all(len(placed.tokens) == 1 for placed in parts):
            due = {part: [row] for row, part in enumerate(plan.parts) if part.completes}
            scored = {
                part: range(row, row + len(_scored(part)))
                for row, part in enumerate(plan.parts)
                if part.sequence.unread is not None
            }
            return self.steps.decode(parts), due, scored
        ends: list[int] = []
        due, scored, rows = {}, {}, 0
        for part, placed in zip(plan.parts, parts, strict=True):
            if part.sequence.unread is not None:
                wanted = _scored(part)
                scored[part] = range(len(ends), len(ends) + len(wanted))
                ends += range(rows + wanted.start, rows + wanted.stop)
            rows += len(placed.tokens)
            if part.completes:
                due[part] = list(range(len(ends), len(ends) + 1 + len(part.guess)))
                ends += range(rows - 1 - len(part.guess), rows)
        return self.steps.mixed(parts, rows, ends or [0]), due, scored


def _scored(part: Part) -> range:
    """Which of a part's rows tell how likely a token of the prompt is that nothing is known of."""
    own = part.sequence
    last = min(part.count, own.left - 1)
    return range(min(max((own.unread or 0) - own.computed, 0), last), last)


def _placed(own: Sequence, tokens: list[int]) -> Placed:
    return Placed(tokens, own.computed, own.blocks, own.full, own.local, own.behind)


__all__ = ["BLOCK", "BatchEngine", "Drawn", "Logprobs", "Request"]
