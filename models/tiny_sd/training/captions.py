"""
What a caption claims about a scene: saying it in words, and understanding the words again.

A caption may leave attributes unsaid; claims hold None for them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING
from typing import Final

from scenes import Scene
from scenes import place_of
from scenes import relation_of
from shapes import BACKGROUNDS
from shapes import COLOURS
from shapes import SHAPES


if TYPE_CHECKING:
    import numpy as np

SIZE_WORDS: Final = {"small": ("small", "little"), "large": ("large", "big")}
PLACE_WORDS: Final = {
    "left": ("on the left", "on the left side", "at the left"),
    "right": ("on the right", "on the right side", "at the right"),
    "top": ("at the top",),
    "bottom": ("at the bottom",),
    "centre": ("in the centre", "in the center", "in the middle"),
    "top left": ("in the top left corner", "at the top left", "in the top left"),
    "top right": ("in the top right corner", "at the top right", "in the top right"),
    "bottom left": ("in the bottom left corner", "at the bottom left", "in the bottom left"),
    "bottom right": ("in the bottom right corner", "at the bottom right", "in the bottom right"),
}
RELATION_WORDS: Final = {
    "left of": ("to the left of", "left of"),
    "right of": ("to the right of", "right of"),
    "above": ("above", "over"),
    "below": ("below", "under"),
}
OPPOSITE: Final = {"left of": "right of", "right of": "left of", "above": "below", "below": "above"}
# "A on the left and B on the right" says a relation by two places.
BY_PLACES: Final = {
    "left of": ("on the left", "on the right"),
    "right of": ("on the right", "on the left"),
    "above": ("at the top", "at the bottom"),
    "below": ("at the bottom", "at the top"),
}
OPENINGS: Final = ("a drawing of ", "a picture of ", "an image of ")
GREYS: Final = ("grey", "gray")


@dataclass(frozen=True)
class ThingClaim:
    """What is said of one thing; None is unsaid."""

    colour: str | None = None
    shape: str | None = None
    size: str | None = None
    place: str | None = None


@dataclass(frozen=True)
class Claims:
    """What is said of a scene; `relation` is of the first thing as seen from the second."""

    things: tuple[ThingClaim, ...]
    relation: str | None = None
    background: str | None = None


def random_claims(scene: Scene, rng: np.random.Generator, *, full: bool = False) -> Claims:
    """
    Something true of a scene.

    Args:
        scene: what is drawn.
        rng: chooses what is said.
        full: say every colour, shape and relation, and a single thing's place if it has one
            (for evaluation); sizes and backgrounds stay a matter of chance.
    """
    alone = len(scene.things) == 1
    things = []
    for thing in scene.things:
        with_shape = full or rng.random() < 0.92
        with_colour = full or not with_shape or rng.random() < 0.9
        with_place = alone and rng.random() < (1.0 if full else 0.6)
        things.append(
            ThingClaim(
                thing.colour if with_colour else None,
                thing.shape if with_shape else None,
                thing.size if rng.random() < 0.35 else None,
                place_of(thing.x, thing.y) if with_place else None,
            )
        )
    relation = None
    if not alone and (full or rng.random() < 0.85):
        relation = relation_of(*scene.things)
    background = scene.background if rng.random() < 0.55 else None
    return Claims(tuple(things), relation, background)


def say(claims: Claims, rng: np.random.Generator) -> str:
    """One of the many phrasings of claims, in lower case without a full stop."""

    def one_of(words: tuple[str, ...]) -> str:
        return words[rng.integers(len(words))]

    article = rng.random() < 0.85

    def noun(claim: ThingClaim) -> str:
        words = [one_of(SIZE_WORDS[claim.size])] if claim.size else []
        words += [claim.colour] if claim.colour else []
        words.append(claim.shape or "shape")
        if article:
            words.insert(0, "an" if words[0][0] in "aeiou" else "a")
        return " ".join(words)

    nouns = [noun(claim) for claim in claims.things]
    if len(nouns) == 1:
        text = nouns[0]
        if place := claims.things[0].place:
            text += " " + one_of(PLACE_WORDS[place])
    elif claims.relation is None:
        text = " and ".join(nouns)
    elif (kind := rng.random()) < 0.6:
        text = f"{nouns[0]} {one_of(RELATION_WORDS[claims.relation])} {nouns[1]}"
    elif kind < 0.8:
        text = f"{nouns[1]} {one_of(RELATION_WORDS[OPPOSITE[claims.relation]])} {nouns[0]}"
    else:
        here, there = BY_PLACES[claims.relation]
        text = f"{nouns[0]} {here} and {nouns[1]} {there}"
    if claims.background:
        name = one_of(GREYS) if claims.background == "grey" else claims.background
        an = "an" if name[0] in "aeiou" else "a"
        text += one_of(
            (
                f" on {an} {name} background",
                f" against {an} {name} background",
                f", {name} background",
            )
        )
    return one_of(OPENINGS) + text if rng.random() < 0.25 else text


_BACKGROUND = re.compile(r"(?: on| against|,)(?: an?)? (\w+) background$")
_RELATION = re.compile(
    " ("
    + "|".join(word for words in RELATION_WORDS.values() for word in words if word != "left of")
    + "|left of) "
)


def understand(prompt: str) -> Claims:
    """
    The claims of a prompt in the captions' language.

    Raises:
        ValueError: it says something that captions never say; the message quotes it.
    """
    text = prompt.lower().strip().rstrip(".")
    for opening in OPENINGS:
        text = text.removeprefix(opening)
    background = None
    if match := _BACKGROUND.search(text):
        background = "grey" if match[1] in GREYS else match[1]
        if background not in BACKGROUNDS:
            msg = f"no background is {match[1]!r}; there are {', '.join(BACKGROUNDS)}"
            raise ValueError(msg)
        text = text[: match.start()]
    relation = None
    if match := _RELATION.search(text):
        relation = next(name for name, words in RELATION_WORDS.items() if match[1] in words)
        parts = [text[: match.start()], text[match.end() :]]
    else:
        parts = text.split(" and ")
    things = tuple(_thing(part) for part in parts)
    if len(things) > 2:
        msg = f"scenes have one or two things, {prompt!r} says {len(things)}"
        raise ValueError(msg)
    if len(things) == 2 and relation is None and things[0].place:
        places = tuple(PLACE_WORDS[t.place][0] if t.place else "" for t in things)
        relation = next((name for name, words in BY_PLACES.items() if words == places), None)
        things = tuple(ThingClaim(t.colour, t.shape, t.size) for t in things)
    return Claims(things, relation, background)


def _thing(text: str) -> ThingClaim:
    place = None
    for name, phrases in PLACE_WORDS.items():
        for phrase in phrases:
            if text.endswith(" " + phrase):
                place, text = name, text.removesuffix(" " + phrase)
                break
    words = text.split()
    if words and words[0] in {"a", "an"}:
        del words[0]
    size = colour = shape = None
    for word in words:
        if word in COLOURS and colour is None and shape is None:
            colour = word
        elif word in SHAPES and shape is None:
            shape = word
        elif word == "shape":
            continue
        else:
            size = next((name for name, known in SIZE_WORDS.items() if word in known), None)
            if size is None:
                msg = f"cannot tell what {word!r} means in {text!r}"
                raise ValueError(msg)
    return ThingClaim(colour, shape, size, place)
