"""The next token, drawn from logits."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import field
from numbers import Real
from typing import TYPE_CHECKING
from typing import Any
from typing import Final

import numpy as np

from propolis.errors import ModelError
from propolis.errors import UsageError
from propolis_workers.arguments import expect_whole
from propolis_workers.llm.among import places_among
from propolis_workers.llm.chances import finite
from propolis_workers.llm.chances import likeliest
from propolis_workers.llm.chances import nucleus
from propolis_workers.llm.chances import place_of_first
from propolis_workers.llm.chances import uniform


if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

HEAD: Final = 256
"""How many of the likeliest tokens are looked at before all others are."""
# Temperatures that logits in f32 are divided by.
_LOWEST, _HIGHEST = 1e-3, 1e30


@dataclass(frozen=True, kw_only=True)
class SamplingParams:
    """
    How the next token is chosen; the defaults always take the likeliest.

    Attributes:
        temperature: What the logits are divided by; 0 takes the likeliest token.
        top_k: Only the k likeliest tokens are candidates; 0 for all.
        top_p: Only the fewest likeliest tokens whose probability reaches p are candidates.
        min_p: Only tokens at least p times as probable as the likeliest are candidates.
        repetition_penalty: Positive logits of recent tokens are divided by it and others
            multiplied; 1 changes nothing.
        repeat_last_n: How many tokens are recent; 0 for none, -1 for all.
        presence_penalty: Taken from the logit of each token that was drawn.
        frequency_penalty: Taken from it once for each time that it was drawn.
        logit_bias: Added to the logits of these ids; -100 and 100 forbid and force.
        seed: The same seed draws the same tokens; None for a fresh one.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    repeat_last_n: int = 64
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    seed: int | None = None

    def __post_init__(self) -> None:
        self._real("temperature", low=0.0)
        self._int("top_k", low=0)
        self._real("top_p", low=0.0, high=1.0, low_open=True)
        self._real("min_p", low=0.0, high=1.0)
        self._real("repetition_penalty", low=0.0, low_open=True)
        self._int("repeat_last_n", low=-1)
        for name in ("presence_penalty", "frequency_penalty"):
            self._real(name, low=-2.0, high=2.0)
        if not isinstance(self.logit_bias, Mapping):
            msg = f"logit_bias is {self.logit_bias!r}; allowed: a mapping of tokens to numbers"
            raise UsageError(msg)
        for token, bias in self.logit_bias.items():
            expect_whole("a token of logit_bias", token, least=0)
            _check_real(f"logit_bias of {token}", bias, low=-100.0, high=100.0)
        if self.seed is not None:
            self._int("seed", low=0)

    def _real(
        self, name: str, *, low: float, high: float = math.inf, low_open: bool = False
    ) -> None:
        number = _check_real(name, getattr(self, name), low=low, high=high, low_open=low_open)
        object.__setattr__(self, name, number)

    def _int(self, name: str, *, low: int) -> None:
        object.__setattr__(self, name, expect_whole(name, getattr(self, name), least=low))


class NoTokenError(ModelError):
    """The logits allow no token: the weights, or an op before them, are wrong."""


def expect_likely(logit: float) -> None:
    """
    Check the greatest logit.

    Raises:
        NoTokenError: it is NaN, or no token is allowed at all.
    """
    if math.isnan(logit):
        raise NoTokenError("logits contain NaN")
    if logit == -math.inf:
        raise NoTokenError("all logits are -inf: no token is allowed")


class Sampler:
    """
    Chooses the tokens of one sequence.

    The order is that of Hugging Face transformers: repetition penalty, temperature, top_k,
    top_p, min_p, then the draw; OpenAI's bias and penalties of what was drawn come before.
    (llama.cpp applies the temperature last, so that there top_p and min_p cut the distribution
    as it was.)  Each cut looks at the probabilities among what the one before left; of equal
    logits the lower index counts as likelier.
    """

    def __init__(self, params: SamplingParams) -> None:
        self.params = params
        self._random = np.random.Generator(np.random.Philox(params.seed))
        self._drawn: Counter[int] = Counter()
        self._counts = params.presence_penalty != 0.0 or params.frequency_penalty != 0.0
        self._keys: list[int] = []

    @property
    def greedy(self) -> bool:
        """Whether it always takes the likeliest token, as the logits are."""
        return self.params.temperature == 0.0 and not self._changes

    @property
    def drawable(self) -> bool:
        """Whether the op ``draw`` draws as this does, and its tokens need no logits changed."""
        return self.greedy or (self._is_usual and not self._changes)

    @property
    def among(self) -> int:
        """How many of the likeliest tokens nearly always do; 0 where all may matter."""
        params = self.params
        if self.greedy:
            return 1
        uncut = not params.top_k and params.top_p == 1.0 and params.min_p == 0.0
        if not self.drawable or uncut or params.top_k > HEAD:
            return 0
        return params.top_k or HEAD

    @property
    def _changes(self) -> bool:
        """Whether logits are changed before tokens are drawn."""
        params = self.params
        penalised = params.repetition_penalty != 1.0 and params.repeat_last_n != 0
        return penalised or self._counts or bool(params.logit_bias)

    @property
    def _is_usual(self) -> bool:
        """Whether logits can be divided by the temperature in f32."""
        return _LOWEST < self.params.temperature < _HIGHEST

    @property
    def weighs(self) -> float:
        """
        The temperature at which the weights of all tokens are summed, beside those looked at.

        0 where it does not matter how much the others weigh.
        """
        return 0.0 if self.params.top_k or self.among < HEAD else self.params.temperature

    def sample(self, logits: NDArray[np.floating[Any]], history: Sequence[int]) -> int:
        """
        Choose the next token.

        Args:
            logits: One number a token of the vocabulary; left as they are.
            history: The ids so far, the newest last.

        Returns:
            The id.

        Raises:
            NoTokenError: The logits hold NaN, or allow no token at all.
            UsageError: The logits are no vector, or the history has ids beyond it.
        """
        if logits.ndim != 1 or logits.size == 0:
            msg = f"logits have shape {logits.shape}; one sequence's are (vocabulary,)"
            raise UsageError(msg)
        token = self._sampled(self._biased(logits), history)
        if self._counts:
            self._drawn[token] += 1
        return token

    def sample_among(
        self,
        logits: NDArray[np.floating[Any]],
        ids: NDArray[np.integer[Any]],
        mass: float | None = None,
    ) -> int | None:
        """
        Choose the next token as :meth:`sample` does, where others have found the likeliest.

        Args:
            logits: those of at least :attr:`among` likeliest tokens, likeliest first, which must
                not be 0; of equal ones the lower id first.
            ids: of the same tokens.
            mass: how much all tokens weigh at the temperature, where the likeliest weighs 1; None
                where those given are all.

        Returns:
            The token; None where it may be one of the others: then :meth:`sample` chooses it.

        Raises:
            NoTokenError: as for :meth:`sample`.
        """
        expect_likely(math.nan if np.isnan(logits).any() else float(logits[0]))
        params = self.params
        if params.temperature == 0.0:
            return int(ids[0])
        if params.top_k:
            logits, ids, mass = logits[: params.top_k], ids[: params.top_k], None
        return self._among(finite(logits), ids, mass)

    def _among(
        self,
        logits: NDArray[np.floating[Any]],
        ids: NDArray[np.integer[Any]],
        mass: float | None,
    ) -> int | None:
        """As :meth:`sample_among`, of logits that are finite or -inf."""
        keys = np.array([self.key], np.uint64)
        with np.errstate(over="ignore"):  # by temperatures near 0
            (place,) = places_among([self.params], keys, logits[None], ids[None], [mass])
        if place < 0:
            return None
        self.use_key()
        return int(ids[place])

    def _sampled(self, logits: NDArray[np.floating[Any]], history: Sequence[int]) -> int:
        # argmax stops at a NaN, and takes the lowest index on ties.
        best = int(np.argmax(logits))
        if math.isnan(logits[best]):
            expect_likely(math.nan)
        params = self.params
        if params.repetition_penalty != 1.0 and params.repeat_last_n != 0 and len(history):
            logits = self._penalised(logits, history)
            best = int(np.argmax(logits))
        peak = logits[best]
        expect_likely(float(peak))
        if params.temperature == 0.0:
            return best
        logits = finite(logits)
        if not params.top_k and params.top_p == 1.0 and params.min_p == 0.0:
            return self._drawn_from(self._light(logits), np.arange(logits.size))
        if not params.top_k:
            head = likeliest(logits, min(HEAD, logits.size))
            others = self._light(logits)
            others[head] = 0.0
            # Not the sum of all, whose rounding might say that others weigh where none does.
            mass = float(self._weights(logits[head]).sum() + others.sum(dtype=np.float64))
            found = self._among(logits[head], head, mass if head.size < logits.size else None)
            if found is not None:
                return found
        order, weights = self._candidates(logits)
        if order is None:
            return self._drawn_from(weights, np.arange(weights.size))
        return int(order[self._drawn_from(weights, order)])

    def _drawn_from(self, weights: NDArray[np.floating[Any]], ids: NDArray[np.integer[Any]]) -> int:
        """Draw a place by the weights."""
        (place,) = place_of_first(
            weights[None], uniform(np.array([self.key], np.uint64), ids[None])
        )
        self.use_key()
        return place

    @property
    def key(self) -> int:
        """Of the next token's chances: the same until it is drawn."""
        return self.key_of(0)

    def key_of(self, further: int) -> int:
        """Of the chances of the token that is so many after the next one."""
        while len(self._keys) <= further:
            self._keys.append(int(self._random.integers(1 << 64, dtype=np.uint64)))
        return self._keys[further]

    def use_key(self) -> None:
        """Go on to the next token's, as somebody has drawn this one."""
        self.key_of(0)
        del self._keys[0]

    def _light(self, logits: NDArray[np.floating[Any]]) -> NDArray[np.floating[Any]]:
        """As :meth:`_weights` of all tokens; in f32 where temperatures allow, as devices do."""
        narrow = np.float32 if self._is_usual else np.float64
        with np.errstate(over="ignore", under="ignore"):
            below = np.asarray(logits - logits.max(), narrow)
            np.divide(below, self.params.temperature, out=below)
            return np.asarray(np.exp(below, out=below))

    def _biased(self, logits: NDArray[np.floating[Any]]) -> NDArray[np.floating[Any]]:
        """Return a copy with OpenAI's bias and penalties, or the logits where there are none."""
        params = self.params
        if not params.logit_bias and not self._drawn:
            return logits
        logits = logits.copy()
        for token, bias in params.logit_bias.items():
            if token >= logits.size:
                msg = f"logit_bias names token {token}, but there are only {logits.size}"
                raise UsageError(msg)
            logits[token] += bias
        for token, count in self._drawn.items():
            logits[token] -= params.presence_penalty + count * params.frequency_penalty
        return logits

    def _penalised(
        self, logits: NDArray[np.floating[Any]], history: Sequence[int]
    ) -> NDArray[np.floating[Any]]:
        """Return a copy with the recent tokens made less likely, each of them once."""
        last = self.params.repeat_last_n
        recent = np.unique(np.asarray(history[-last:] if last > 0 else history, dtype=np.int64))
        if recent[0] < 0 or recent[-1] >= logits.size:
            wrong = recent[0] if recent[0] < 0 else recent[-1]
            msg = f"the history holds token {wrong}, but there are only {logits.size} logits"
            raise UsageError(msg)
        logits = logits.copy()
        chosen = logits[recent].astype(np.float64)
        penalty = self.params.repetition_penalty
        with np.errstate(over="ignore", under="ignore"):
            logits[recent] = np.where(chosen > 0, chosen / penalty, chosen * penalty)
        return logits

    def _candidates(
        self, logits: NDArray[np.floating[Any]]
    ) -> tuple[NDArray[np.intp] | None, NDArray[np.float64]]:
        """Return the ids left to draw from (None for all, in order) and their weights."""
        params = self.params
        weights = self._weights(logits)
        count = min(params.top_k or logits.size, logits.size)
        if count == logits.size and params.top_p == 1.0:
            weights[weights < params.min_p] = 0.0
            return None, weights
        if count < logits.size:
            order = likeliest(logits, count)
            mass = weights[order].sum()
        else:
            mass = weights.sum()
            order = nucleus(logits, weights, params.top_p * mass)
        # Whichever is the first to hold the mass: behind it none is likelier than those before.
        reached = np.searchsorted(np.cumsum(weights[order]), params.top_p * mass, side="left")
        order = order[: reached + 1] if params.top_p < 1.0 else order
        order = order[weights[order] >= params.min_p]
        return order, weights[order]

    def _weights(self, logits: NDArray[np.floating[Any]]) -> NDArray[np.float64]:
        """How likely each is; the likeliest is 1, so that min_p is a bound on them."""
        scaled = logits.astype(np.float64)
        with np.errstate(over="ignore", under="ignore"):
            scaled -= scaled.max()
            scaled /= self.params.temperature
            return np.asarray(np.exp(scaled))


def _check_real(
    name: str, value: object, *, low: float, high: float, low_open: bool = False
) -> float:
    """A finite number in the range, of Python's or numpy's, as Python's."""
    if isinstance(value, Real) and not isinstance(value, bool):
        number = float(value)
        inside = low < number <= high if low_open else low <= number <= high
        if inside and math.isfinite(number):
            return number
    above = "above" if low_open else "from"
    msg = f"{name} is {value!r}; allowed: a finite number {above} {low:g}"
    raise UsageError(msg if high == math.inf else f"{msg} to {high:g}")
