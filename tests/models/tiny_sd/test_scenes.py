"""The scenes that the tiny model is trained on, their captions, and the checker of images."""

from __future__ import annotations

import subprocess
import sys
from itertools import pairwise

import numpy as np
import pytest


COUNT = 60
KINDS = ["new couple", "new pair", "known"]


@pytest.fixture(scope="module")
def scenes(training):
    """How scenes are chosen and drawn."""
    return training("scenes")


@pytest.fixture(scope="module")
def captions(training):
    """How scenes are put into words."""
    return training("captions")


@pytest.fixture(scope="module")
def checker(training):
    """What looks at images."""
    return training("checker")


def things(scene) -> list[tuple[str, str]]:
    """Colour and shape of each thing."""
    return [(t.colour, t.shape) for t in scene.things]


@pytest.mark.slow
def test_training_never_draws_what_is_held_out(training, scenes, captions):
    """
    Of 10000 training scenes none has a held-out pair of colour and shape, nor a held-out couple.

    The captions do not say either, whether of one thing or of two.
    """
    rng = np.random.default_rng(0)
    pairs, couples = set(), set()
    for _ in range(10_000):
        scene = scenes.training_scene(rng)
        pairs.update(things(scene))
        if len(scene.things) == 2:
            couples.add(tuple(sorted(things(scene))))
        said = captions.random_claims(scene, rng).things
        assert not {(c.colour, c.shape) for c in said} & scenes.HELD_OUT_PAIRS
    assert not pairs & scenes.HELD_OUT_PAIRS
    # All that is not held out does occur: 80 pairs less 8.
    assert 72 == len(pairs)
    prompts = training("prompts")
    judged = {
        tuple(sorted((c.colour, c.shape) for c in claims.things))
        for _, claims in prompts.prompts_of("new couple", 2000, 1)
    }
    assert {2} == {len(couple) for couple in judged}
    assert not judged & couples


@pytest.mark.slow
def test_training_data_is_drawn_from_training_scenes(training, tmp_path, monkeypatch):
    """What is written for training are the scenes that are not held out, and their captions."""
    data, prompts = training("data"), training("captions")

    class Tokenizer:
        def __call__(self, texts, **_):
            said.extend(prompts.understand(text) for text in texts)
            return {"input_ids": np.zeros((len(texts), data.LENGTH))}

    said: list = []
    monkeypatch.setattr(data, "tokenizer_of", lambda _: Tokenizer())
    for name, shape, dtype in (
        ("images", (12, 64, 64, 3), np.uint8),
        ("tokens", (12, data.CAPTIONS, data.LENGTH), np.int16),
    ):
        np.lib.format.open_memmap(tmp_path / f"{name}.npy", "w+", dtype, shape).flush()
    data._draw_chunk((tmp_path, tmp_path, 0, 12, 3))
    assert 12 * data.CAPTIONS == len(said)
    held_out = training("scenes").HELD_OUT_PAIRS
    assert not {(c.colour, c.shape) for claims in said for c in claims.things} & held_out
    judge = training("checker").judge
    images = np.load(tmp_path / "images.npy")
    verdicts = [judge(claims, images[n // data.CAPTIONS]) for n, claims in enumerate(said)]
    assert all(verdict.everything for verdict in verdicts)


@pytest.mark.parametrize("kind", KINDS)
def test_prompts_are_of_their_kind(training, scenes, kind):
    """Prompts name a held-out pair, a held-out couple of known pairs, or nothing held out."""
    for text, claims in training("prompts").prompts_of(kind, 5 * COUNT, 5):
        found = [(c.colour, c.shape) for c in claims.things]
        assert all(colour and shape for colour, shape in found), text
        new_pair = bool({*found} & scenes.HELD_OUT_PAIRS)
        new_couple = len(found) == 2 and scenes.held_out_couple(*found)
        if kind == "new pair":
            assert new_pair, text
        else:
            assert (False, kind == "new couple") == (new_pair, new_couple), text


def test_captions_are_understood(scenes, captions):
    """What a caption says is read back from its words: the same claims, of the same things."""
    rng = np.random.default_rng(1)
    for _ in range(20 * COUNT):
        claims = captions.random_claims(scenes.random_scene(rng), rng)
        text = captions.say(claims, rng)
        heard = captions.understand(text)
        same = {(heard.things, heard.relation)}
        if claims.relation:  # "a above b" may be said as "b below a"
            same.add((heard.things[::-1], captions.OPPOSITE[heard.relation]))
        assert (claims.things, claims.relation) in same, text
        assert claims.background == heard.background, text


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ("a mauve circle", "mauve"),
        ("a red circle on a mauve background", "mauve"),
        ("a red circle and a blue ring and a pink heart", "3"),
    ],
)
def test_other_prompts_are_refused(captions, prompt, message):
    """A prompt outside the captions' language is no prompt to judge by: the error quotes it."""
    with pytest.raises(ValueError, match=message):
        captions.understand(prompt)


@pytest.mark.slow
def test_true_drawings_obey(scenes, captions, checker):
    """A drawn scene obeys all that a full caption says of it."""
    rng = np.random.default_rng(2)
    for _ in range(COUNT):
        scene = scenes.random_scene(rng)
        claims = captions.random_claims(scene, rng, full=True)
        verdict = checker.judge(claims, scenes.draw(scene))
        assert verdict.everything, (scene, claims, verdict)


@pytest.mark.slow
def test_drawings_of_others_do_not(scenes, captions, checker):
    """A drawn scene obeys the full caption of another scene only where that is true of it."""
    rng = np.random.default_rng(3)
    drawn = [scenes.random_scene(rng) for _ in range(COUNT // 2)]
    for scene, other in pairwise(drawn):
        claims = captions.random_claims(other, rng, full=True)
        verdict = checker.judge(claims, scenes.draw(scene))
        if sorted(things(scene)) != sorted(things(other)):
            assert not verdict.obeyed, (scene, claims, verdict)


def test_each_claim_is_judged_by_itself(scenes, checker):
    """A prompt that is wrong in one thing fails in that and in nothing else."""
    circle = scenes.Thing("red", "circle", 15.0, 32.0, 13.0)
    square = scenes.Thing("blue", "square", 48.0, 32.0, 13.0)
    image = scenes.draw(scenes.Scene((circle, square), "white"))
    true = "a large red circle left of a big blue square on a white background"
    assert checker.check(true, image).everything
    for part, false in {
        "colour": "a large red circle left of a big green square on a white background",
        "shape": "a large red circle left of a big blue star on a white background",
        "size": "a large red circle left of a small blue square on a white background",
        "position": "a large red circle right of a big blue square on a white background",
        "background": "a large red circle left of a big blue square on a black background",
    }.items():
        verdict = checker.check(false, image)
        wrong = [
            name for name in ("count", "colour", "shape", "size") if not getattr(verdict, name)
        ]
        wrong += [name for name in ("position", "background") if not getattr(verdict, name)]
        assert [part] == wrong
    assert not checker.check("a red circle on a white background", image).count


def test_specks_are_no_things(scenes, checker):
    """Half a shape too much, or specks beside it, are not obedience."""
    circle = scenes.Thing("red", "circle", 20.0, 20.0, 13.0)
    image = scenes.draw(scenes.Scene((circle,), "white"))
    assert checker.check("a red circle", image).obeyed
    image[50:53, 50:53] = 0
    assert not checker.check("a red circle", image).obeyed


def test_judging_needs_no_torch(training):
    """All that the command that judges our worker imports is there where torch is not."""
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); sys.modules['torch'] = None;"
        "sys.modules['diffusers'] = None; import judge; print(judge.KINDS)"
    )
    folder = training("judge").__file__.rpartition("/")[0]
    command = [sys.executable, "-c", code, folder]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "('new couple', 'new pair', 'known')\n" == done.stdout, done.stderr
