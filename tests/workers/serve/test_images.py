"""A server that draws: OpenAI's API for images, and the jobs of the ancestor's worker."""

from __future__ import annotations

import base64
import io
import json
import os
import signal
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import openai
import pytest
from patience import until
from PIL import Image
from safetensors.numpy import save_file

from propolis_workers.sd import GenerateParams
from propolis_workers.sd import LoRA
from propolis_workers.sd import StableDiffusion
from propolis_workers.sd.images import read_metadata


LAYER = "lora_unet_mid_block_resnets_0_conv1"


@pytest.fixture(scope="module")
def loras(tmp_path_factory):
    """A folder with a LoRA, and beside it a file that nobody may have."""
    folder = tmp_path_factory.mktemp("loras")
    random = np.random.default_rng(3)
    tensors = {
        f"{LAYER}.lora_down.weight": random.normal(size=(2, 32, 3, 3)).astype("f4"),
        f"{LAYER}.lora_up.weight": random.normal(size=(32, 2, 1, 1)).astype("f4"),
    }
    (folder / "mine").mkdir()
    save_file(tensors, folder / "mine" / "style.safetensors")
    save_file(tensors, folder / "secret.safetensors")
    return folder / "mine"


@pytest.fixture(scope="module")
def studio(drawing, loras):
    """A server that draws."""
    return drawing(loras=loras)


@pytest.fixture(scope="module")
def model(sd_folder):
    """The same model in this process."""
    return StableDiffusion.load(sd_folder, device="cpu")


@pytest.fixture(scope="module")
def client(studio):
    """OpenAI's own client, unchanged."""
    return openai.OpenAI(base_url=studio.url + "/v1", api_key="none", max_retries=0)


def pixels(data: str) -> np.ndarray:
    """What is in a PNG in base64."""
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(data))).convert("RGB"))


def encoded(array: np.ndarray) -> str:
    """A PNG in base64."""
    file = io.BytesIO()
    Image.fromarray(array).save(file, format="PNG")
    return base64.b64encode(file.getvalue()).decode()


def begin(studio, **fields) -> str:
    """Begin a job; its name."""
    body = {"operation": "image_generation", "prompt": "a cat", "steps": 3, "seed": 5, **fields}
    got = studio.http.post("/v1/jobs", json=body)
    assert got.status_code == 200, got.text
    return got.json()["job_id"]


def events(studio, name) -> list[tuple[str, dict]]:
    """The events of a job with their names."""
    text = studio.http.get(f"/v1/jobs/{name}/stream").text
    *told, done, end = text.split("\n\n")
    assert (done, end) == ("data: [DONE]", "")
    found = []
    for one in told:
        first, second = one.split("\n")
        found.append((first.removeprefix("event: "), json.loads(second.removeprefix("data: "))))
    return found


def near(got, wanted) -> bool:
    """Whether two images differ by the last bit at most: a batch may round otherwise."""
    return int(np.abs(got.astype(int) - wanted.astype(int)).max()) <= 1


def test_generations(client, model, tmp_path):
    """OpenAI's client gets the images that the model draws here, with what they were drawn from."""
    got = client.images.generate(
        prompt="a cat", n=2, size="64x64", extra_body={"seed": 5, "steps": 3}
    )
    wanted = model.generate(GenerateParams(prompt="a cat", seed=5, steps=3, batch=2))
    assert len(got.data) == 2
    for one, image in zip(got.data, wanted, strict=True):
        assert near(pixels(one.b64_json), image)
    file = tmp_path / "a.png"
    file.write_bytes(base64.b64decode(got.data[0].b64_json))
    assert read_metadata(file)["seed"] == 5


def test_partial_images(client):
    """A stream shows what is seen so far, as often as was asked for, and the image at the end."""
    with client.images.generate(
        prompt="a cat", stream=True, partial_images=2, extra_body={"seed": 5, "steps": 6}
    ) as stream:
        told = list(stream)
    kinds = [one.type for one in told]
    partial = "image_generation.partial_image"
    assert kinds == [partial, partial, "image_generation.completed"]
    assert [one.partial_image_index for one in told[:-1]] == [0, 1]
    assert pixels(told[0].b64_json).shape == (8, 8, 3)
    assert pixels(told[-1].b64_json).shape == (64, 64, 3)


def test_edits(client, model):
    """What the mask leaves transparent is drawn anew, as with a mask of ours."""
    image = np.random.default_rng(0).integers(0, 256, (64, 64, 3)).astype(np.uint8)
    mask = np.zeros((64, 64), np.uint8)
    mask[:, :32] = 255
    rgba = np.dstack([image, 255 - mask])
    files = [io.BytesIO(base64.b64decode(encoded(array))) for array in (image, rgba)]
    got = client.images.edit(
        image=("image.png", files[0]),
        mask=("mask.png", files[1]),
        prompt="a cat",
        extra_body={"seed": 5, "steps": 3},
    )
    params = GenerateParams(prompt="a cat", seed=5, steps=3, image=image, mask=mask)
    assert near(pixels(got.data[0].b64_json), model.generate(params)[0])


def test_a_job(studio, model):
    """It tells each step, previews, and the image; twice the same."""
    name = begin(studio, steps=6)
    told = events(studio, name)
    assert [kind for kind, _ in told] == [one["type"] for _, one in told]
    steps = [one["step"] for kind, one in told if kind == "progress"]
    assert steps == [1, 2, 3, 4, 5, 6]
    assert [one["step"] for kind, one in told if kind == "preview"] == [5, 6]
    assert all(
        one["total"] == 6 and one["format"] == "png" for kind, one in told if kind == "preview"
    )
    kind, last = told[-1]
    assert (kind, last["format"], last["seed"]) == ("complete", "png", 5)
    wanted = model.generate(GenerateParams(prompt="a cat", seed=5, steps=6))[0]
    assert near(pixels(last["image"]), wanted)
    assert events(studio, name) == told


def test_from_images(studio, model):
    """Images are transformed and inpainted as the model does it here."""
    image = np.random.default_rng(0).integers(0, 256, (64, 64, 3)).astype(np.uint8)
    mask = np.zeros((64, 64), np.uint8)
    mask[:32] = 255
    asked = {"operation": "image_transform", "input_image": encoded(image), "strength": 0.6}
    got = events(studio, begin(studio, **asked))[-1][1]["image"]
    params = GenerateParams(prompt="a cat", seed=5, steps=3, image=image, strength=0.6)
    assert near(pixels(got), model.generate(params)[0])
    asked = {
        "operation": "image_inpaint",
        "init_image": encoded(image),
        "mask_image": encoded(mask),
    }
    got = events(studio, begin(studio, **asked))[-1][1]["image"]
    params = GenerateParams(prompt="a cat", seed=5, steps=3, image=image, mask=mask)
    assert near(pixels(got), model.generate(params)[0])


def test_loras(studio, loras, sd_folder):
    """A LoRA changes the image it is asked for with, and no other."""
    alone = StableDiffusion.load(sd_folder, device="cpu")
    params = GenerateParams(prompt="a cat", seed=5, steps=3)
    plain = alone.generate(params)[0]
    alone.apply_lora(LoRA.open(loras / "style.safetensors"), 0.5)
    changed = alone.generate(params)[0]
    assert not near(plain, changed)
    for wear, wanted in (([{"path": "style", "strength": 0.5}], changed), ([], plain)):
        got = events(studio, begin(studio, loras=wear))[-1][1]["image"]
        assert near(pixels(got), wanted)


@pytest.mark.parametrize(
    "path",
    [
        "../secret",
        "../secret.safetensors",
        "/etc/passwd",
        "./style",
        "x/../style",
        "..\\secret",
        "%2e%2e/secret",
        "style\x00",
    ],
)
def test_no_lora_from_elsewhere(studio, path):
    """A name reaches what is in the folder, by its own name, and nothing else."""
    body = {"operation": "image_generation", "prompt": "x", "loras": [{"path": path}]}
    got = studio.http.post("/v1/jobs", json=body)
    assert got.status_code == 404
    assert "there are: style.safetensors" in got.json()["error"]["message"]


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"steps": 0}, "steps"),
        ({"steps": 151}, "steps"),
        ({"guidance_scale": 20.1}, "guidance_scale"),
        ({"guidance_scale": -0.1}, "guidance_scale"),
        ({"loras": [{"path": "style", "strength": 10.1}]}, "loras.0.strength"),
        ({"seed": -2}, "seed"),
        ({"surprise": 1}, "surprise"),
        ({"operation": "dance"}, "operation"),
    ],
)
def test_limits(studio, wrong, field):
    """A field beyond its limits is named, with the limit."""
    body = {"operation": "image_generation", "prompt": "x", **wrong}
    got = studio.http.post("/v1/jobs", json=body)
    assert got.status_code == 400
    assert [error["field"] for error in got.json()["errors"]] == [field]


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"width": 56}, "width is 56; supported: 64 to 256"),
        ({"height": 264}, "height is 264; supported: 64 to 256"),
        ({"width": 68}, "width 68 is not a multiple of 8"),
        ({"scheduler": "nope"}, "nope"),
        ({"operation": "image_transform", "input_image": "%%"}, "image is not base64"),
        ({"operation": "image_transform", "input_image": "aGk="}, "no image that can be read"),
        (
            {"operation": "image_transform", "input_image": encoded(np.zeros((8, 8, 3), np.uint8))},
            "the image is 8x8; supported: 64 to 256 pixels a side",
        ),
        ({"operation": "infer"}, "no model that writes"),
    ],
)
def test_what_cannot_be_drawn(studio, wrong, says):
    """It is said at once, with what was given and what can be."""
    body = {"operation": "image_generation", "prompt": "x", **wrong}
    got = studio.http.post("/v1/jobs", json=body)
    assert got.status_code == 400
    assert says in got.json()["error"]["message"]


def test_sizes_of_images_that_cannot_be(studio):
    """They are the image's mistake, and what helps has the name that the request has for it."""
    png = io.BytesIO()
    Image.new("RGB", (60, 64)).save(png, "PNG")
    form = {"data": {"prompt": "x"}, "files": {"image": ("a.png", png.getvalue())}}
    job = {"operation": "image_transform", "prompt": "x"}
    job["input_image"] = base64.b64encode(png.getvalue()).decode()
    for path, body, field, remedy in (
        ("/v1/images/edits", form, "image", "give size"),
        ("/v1/jobs", {"json": job}, "input_image", "give width and height"),
    ):
        error = studio.http.post(path, **body).json()["error"]
        assert error["param"] == field
        size = "the image's width 60 is not a multiple of 8, 56 and 64 are: "
        assert error["message"] == size + remedy


def test_edits_by_json(studio):
    """What is a form elsewhere too says so, instead of missing its fields."""
    got = studio.http.post("/v1/images/edits", json={"prompt": "x", "image": "y"})
    said = "the body is of the type application/json; send a form, as multipart/form-data"
    assert (got.status_code, got.json()["error"]["message"]) == (400, said)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("n", "2"),
        ("n", True),
        ("steps", "2"),
        ("seed", "7"),
        ("guidance_scale", "7.5"),
        ("stream", 1),
    ],
)
def test_types_of_values(studio, field, value):
    """Values of JSON have types: a number in quotes is none, neither is a truth."""
    body = {"prompt": "x", field: value}
    got = studio.http.post("/v1/images/generations", json=body)
    assert (got.status_code, got.json()["error"]["param"]) == (400, field)


def test_a_field_of_a_form_twice(studio):
    """It is named: none of two texts counts more than the other."""
    boundary, fields = "x", [("prompt", "first"), ("seed", "abc"), ("seed", "1")]
    parts = [f'--x\r\nContent-Disposition: form-data; name="{n}"\r\n\r\n{v}\r\n' for n, v in fields]
    got = studio.http.post(
        "/v1/images/edits",
        content="".join([*parts, "--x--\r\n"]),
        headers={"Content-Type": f"multipart/form-data; boundary={boundary}"},
    )
    error = got.json()["error"]
    assert (got.status_code, error["param"]) == (400, "seed")
    assert error["message"] == "seed is there 2 times; supported: once"


def test_a_negative_prompt_without_guidance(studio):
    """It is named, as the request calls it."""
    body = {"prompt": "x", "negative_prompt": "y", "guidance_scale": 1}
    got = studio.http.post("/v1/images/generations", json=body).json()
    assert got["error"]["param"] == "negative_prompt"


def test_alike_images_are_drawn_together(drawing, model):
    """What waits for the same steps is drawn in one batch; each gets what it gets alone."""
    studio = drawing(most=4)
    long = begin(studio, steps=100, prompt="first")
    until(lambda: studio.now().get("running") == 1)
    names = [begin(studio, seed=seed, prompt=f"cat {seed}") for seed in (1, 2, 3)]
    other = begin(studio, steps=4)
    until(lambda: studio.engine.waiting == 5)
    studio.http.delete(f"/v1/jobs/{long}")
    with ThreadPoolExecutor(1) as pool:
        told = pool.submit(events, studio, names[0])
        until(lambda: studio.now().get("running") == 3)
        got = [told.result(), *(events(studio, name) for name in (*names[1:], other))]
    for seed, one in zip((1, 2, 3), got[:3], strict=True):
        wanted = model.generate(GenerateParams(prompt=f"cat {seed}", seed=seed, steps=3))[0]
        assert near(pixels(one[-1][1]["image"]), wanted)
    assert got[3][-1][1]["type"] == "complete"
    assert events(studio, long)[-1][1]["code"] == "CANCELLED"


@pytest.mark.slow
def test_an_engine_that_ends(drawing):
    """Whoever waits is told, and another one draws."""
    studio = drawing()
    name = begin(studio, steps=150)
    until(lambda: studio.now().get("running") == 1)
    os.killpg(studio.engine._process.pid, signal.SIGKILL)
    kind, last = events(studio, name)[-1]
    assert (kind, last["code"]) == ("error", "INFERENCE_FAILED")
    assert "SIGKILL" in last["message"]
    until(lambda: studio.http.get("/v1/ready").status_code == 200, 60)
    assert events(studio, begin(studio))[-1][0] == "complete"


def test_who_serves_what(studio, client):
    """The model is listed and told of; routes for text are not there."""
    assert [one.id for one in client.models.list()] == ["tiny-sd"]
    image = studio.http.get("/info").json()["image"]
    assert (image["model"], image["size"], image["loras"]) == ("tiny-sd", 64, ["style.safetensors"])
    metrics = studio.http.get("/metrics").text
    assert 'propolis_ready{kind="sd"} 1.0' in metrics
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(model="x", messages=[{"role": "user", "content": "x"}])
