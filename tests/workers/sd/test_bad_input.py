"""What the models refuse to be called with."""

from __future__ import annotations

import numpy as np
import pytest

from propolis.errors import ModelError
from propolis_workers.sd.unet import AddedConditions


@pytest.fixture
def call(models, on_cpu):
    """Return a function that calls a family's UNet with zeros of the shapes given."""

    def zeros(shape):
        return on_cpu(np.zeros(shape, np.float32))

    def run(family, channels=4, context=24, **added):
        conditions = AddedConditions(**{key: zeros(shape) for key, shape in added.items()})
        sample, text = zeros((1, channels, 8, 8)), zeros((1, 77, context))
        return models(family).unet(sample, zeros((1,)), text, conditions)

    return run


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"family": "sd15", "channels": 9}, r"takes \(b, 4, h, w\), got \(1, 9, 8, 8\)"),
        ({"family": "inpaint"}, r"takes \(b, 9, h, w\), got \(1, 4, 8, 8\)"),
        ({"family": "sd15", "context": 40}, r"text embeddings \(b, t, 24\), got \(1, 77, 40\)"),
        ({"family": "sdxl", "context": 40}, r"68 added conditions .*, got 0"),
        ({"family": "sdxl", "context": 40, "text_embeds": (1, 20)}, "68 added .* got 0"),
        (
            {"family": "sdxl", "context": 40, "text_embeds": (1, 20), "time_ids": (1, 5)},
            r"68 added conditions .*, got 60",
        ),
        ({"family": "sd15", "text_embeds": (1, 20), "time_ids": (1, 6)}, "takes 0 added .* got"),
        ({"family": "sd15", "guidance": (1, 12)}, r"guidance .*: none, got 12"),
        ({"family": "lcm", "guidance": (1, 13)}, r"guidance .*: of 12, got 13"),
    ],
)
def test_unet(call, arguments, message):
    """What does not fit the UNet is refused, with what it takes."""
    with pytest.raises(ModelError, match=message):
        call(**arguments)


def test_one_timestep_for_all(call, models, on_cpu):
    """A single timestep stands for the whole batch; guidance may be left out."""
    random = np.random.default_rng(0)
    sample = random.normal(size=(2, 4, 8, 8)).astype(np.float32)
    text = on_cpu(random.normal(size=(2, 5, 24)).astype(np.float32))
    unet = models("lcm").unet
    one = unet(on_cpu(sample), on_cpu(np.float32([7])), text).numpy()
    two = unet(on_cpu(sample), on_cpu(np.float32([7, 7])), text).numpy()
    np.testing.assert_allclose(two, one, atol=1e-4)


@pytest.mark.parametrize("tokens", [0, 78])
def test_text_length(models, on_cpu, tokens):
    """A text that is empty or too long for the encoder is refused."""
    with pytest.raises(ModelError, match=f"a text of {tokens} tokens; supported: 1 to 77"):
        models("sd15").text_encoders[0](on_cpu(np.zeros((1, tokens), np.int64)))
