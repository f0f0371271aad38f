"""``propolis sd`` as its users run it, with real files."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from safetensors.numpy import save_file

from propolis.cli import main
from propolis_workers.sd import images


PROPOLIS = (sys.executable, "-c", "from propolis.cli import main; main()", "sd")
FEW = ("-s", "2", "--seed", "3")


class Run:
    """What a command left behind."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err


@pytest.fixture
def propolis(monkeypatch, capsys, complete, tmp_path):
    """Return a function that runs a command in this process and in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PROPOLIS_SD_MODEL", str(complete("sd15")))

    def run(*arguments: str) -> Run:
        code = 0
        try:
            main(["sd", *arguments])
        except SystemExit as exit_info:
            code = exit_info.code or 0
        return Run(code, *capsys.readouterr())

    return run


def picture(name="photo.png", size=(64, 64), **save):
    """Write an image to start from."""
    random = np.random.default_rng(1)
    Image.fromarray(random.integers(0, 256, (size[1], size[0], 3), np.uint8)).save(name, **save)
    return name


def mask(name="mask.png", size=(64, 64)):
    """Write a mask, white on the right."""
    pixels = np.zeros((size[1], size[0]), np.uint8)
    pixels[:, size[0] // 2 :] = 255
    Image.fromarray(pixels).save(name)
    return name


def lora(name="some.safetensors", columns=32):
    """Write a LoRA for the tiny model's UNet."""
    layer = "lora_unet_mid_block_resnets_0_conv1"
    random = np.random.default_rng(0)
    tensors = {
        f"{layer}.lora_down.weight": random.normal(size=(2, columns, 3, 3)).astype("f4"),
        f"{layer}.lora_up.weight": random.normal(size=(32, 2, 1, 1)).astype("f4"),
    }
    save_file(tensors, name)
    return name


def test_generate(propolis):
    """The file's name goes to standard output, all else to standard error."""
    run = propolis("generate", "a red circle", "-o", "a.png", *FEW)
    assert (0, "a.png\n") == (run.code, run.out)
    assert "loaded sd15 (f32) in " in run.err
    assert "1 image of 64x64, seed 3, dpmpp_2m: text " in run.err
    assert ", 2 steps " in run.err
    assert "note: the scheduler dpmpp_2m stands in for the model's PNDMScheduler\n" in run.err
    assert "\nplacement: " in run.err
    assert (64, 64, 3) == images.read_image("a.png").shape


def test_default_name(propolis):
    """Without -o nothing is overwritten."""
    names = [propolis("generate", "a", *FEW, *more).out.split() for more in ((), ("-b", "2"), ())]
    assert [["out.png"], ["out.2-1.png", "out.2-2.png"], ["out.3.png"]] == names


def test_reproduces(propolis):
    """--from draws the same file again, byte by byte, whatever it was drawn from."""
    picture(), mask(), lora()
    for number, options in enumerate(
        (
            ("a red circle", "--seed", "18446744073709551615"),
            ("\u00e9 \U0001f642", "-n", "dull", "-W", "72", "-H", "40", "-g", "3.3"),
            ("a", "--scheduler", "ddim", "--eta", "0.7", "--dtype", "f16"),
            ("a", "--scheduler", "euler", "--sigmas", "karras", "--spacing", "trailing"),
            ("a", "-i", "photo.png", "--scheduler", "euler_ancestral"),
            ("a", "-i", "photo.png", "--mask", "mask.png", "--strength", "0.9"),
            ("a", "--lora", "some.safetensors", "--lora", "some.safetensors=-0.25"),
        )
    ):
        first, again = f"{number}.png", f"{number}-again.png"
        run = propolis("generate", *options, "-o", first, "-s", "2")
        assert 0 == run.code, run.err
        run = propolis("generate", "--from", first, "-o", again)
        assert 0 == run.code, run.err
        assert Path(first).read_bytes() == Path(again).read_bytes(), options


def test_reproduces_one_of_a_batch(propolis):
    """An image of a batch is drawn again with the batch, and written alone."""
    propolis("generate", "a", "-o", "b.png", "-b", "3", *FEW)
    run = propolis("generate", "--from", "b-2.png", "-o", "c.png")
    assert (0, "c.png\n") == (run.code, run.out)
    assert Path("b-2.png").read_bytes() == Path("c.png").read_bytes()
    propolis("generate", "--from", "b-2.png", "-b", "1", "-o", "alone.png")
    metadata = images.read_metadata("alone.png")
    assert (4, 1, None) == (metadata["seed"], metadata["batch"], metadata.get("index"))
    off = images.read_image("alone.png").astype(int) - images.read_image("c.png")
    assert np.abs(off).max() <= 1


def test_from_with_changes(propolis):
    """Other options change what is drawn again."""
    propolis("generate", "a", "-o", "a.png", *FEW)
    propolis("generate", "a blue square", "--from", "a.png", "-s", "3", "-o", "b.png")
    one, two = (images.read_metadata(name) for name in ("a.png", "b.png"))
    assert {"prompt": "a blue square", "steps": 3} == {
        key: value for key, value in two.items() if one[key] != value
    }


def test_info(propolis):
    """Info shows what an image was drawn from, for people and for machines."""
    lora()
    propolis("generate", "a\u00e9", "-o", "a.png", *FEW, "--lora", "some.safetensors=0.5")
    run = propolis("info", "a.png")
    assert (0, "") == (run.code, run.err)
    lines = run.out.splitlines()
    for line in ("prompt: a\u00e9", "seed: 3", "steps: 2", "scheduler: dpmpp_2m", "task: txt2img"):
        assert line in lines
    found = json.loads(propolis("info", "a.png", "--json").out)
    assert images.read_metadata("a.png") == found
    assert ("some.safetensors", 0.5) == (
        *(found["loras"][0]["file"], found["loras"][0]["strength"]),
    )


def test_json(propolis):
    """--json prints one document, and nothing else."""
    run = propolis("generate", "x " * 80, "-o", "a.png", "-b", "2", "--json", *FEW)
    report = json.loads(run.out)
    assert 0 == run.code
    assert ["prompt.cut"] == [json.loads(line)["event"] for line in run.err.splitlines()]
    assert ["a-1.png", "a-2.png"] == [image.pop("file") for image in report["images"]]
    assert [images.read_metadata(f"a-{n}.png") for n in (1, 2)] == report["images"]
    assert {"prompt": "x x x x x"} == report["cut"]
    assert {"text", "image", "steps", "decode"} == set(report["seconds"])
    assert ("sd15", "cpu") == (report["model"], report["placement"]["device"])


def test_inputs(propolis):
    """An image and a mask are files of any kind that Pillow reads; sizes given resize them."""
    picture("photo.jpg", (48, 40)), mask("mask.webp", (48, 40))
    run = propolis("generate", "a", "-i", "photo.jpg", "-o", "a.png", *FEW)
    assert 0 == run.code, run.err
    assert (40, 48, 3) == images.read_image("a.png").shape
    given = ("-i", "photo.jpg", "--mask", "mask.webp", "-W", "64", "-H", "32")
    run = propolis("generate", "a", *given, "-o", "b.png", *FEW)
    assert 0 == run.code, run.err
    assert (32, 64, 3) == images.read_image("b.png").shape


def test_standard_input(propolis, monkeypatch):
    """A prompt of "-" is all of standard input, which must be UTF-8."""
    import io

    for raw, code in (("a \u00e9".encode(), 0), (b"a\xff", 2)):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(raw)))
        run = propolis("generate", "-", "-o", "a.png", *FEW)
        assert code == run.code
    assert "error: standard input is not UTF-8: byte 0xff at 1" in run.err
    assert "a \u00e9" == images.read_metadata("a.png")["prompt"]


def test_preview(propolis, monkeypatch):
    """Previews are written beside the file, and go when it is there."""
    written = []
    write = images.write_png

    def watched(path, pixels, metadata=None):
        written.append((Path(path).name, metadata is None))
        write(path, pixels, metadata)

    monkeypatch.setattr(images, "write_png", watched)
    run = propolis("generate", "a", "-o", "a.png", "-s", "5", "--preview", "2")
    assert 0 == run.code, run.err
    assert [("a.preview.png", True)] * 2 == written
    assert [Path("a.png")] == list(Path().iterdir())


def test_no_bar_in_a_pipe(propolis, complete, tmp_path):
    """Piped standard error has no bar, a terminal has one with steps and times."""
    environment = {**os.environ, "PROPOLIS_SD_MODEL": str(complete("sd15")), "TERM": "xterm"}
    command = [*PROPOLIS, "generate", "a", "-o", "a.png", "-s", "3"]
    piped = subprocess.run(command, env=environment, capture_output=True, check=True, text=True)
    assert "\x1b" not in piped.stdout + piped.stderr
    master, slave = pty.openpty()
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=slave) as child:
        os.close(slave)
        seen = b""
        while True:
            try:
                data = os.read(master, 4096)
            except OSError:  # the other end is closed
                break
            if not data:
                break
            seen += data
        assert child.stdout is not None
        assert b"a.png\n" == child.stdout.read()
    os.close(master)
    assert 0 == child.returncode
    for text in (b"3/3", b"in", b"left", b"placement: "):
        assert text in seen


BAD = {
    "width": (("-W", "100"), "width 100 is not a multiple of 8, 96 and 104 are: give one of these"),
    "scheduler": (("--scheduler", "plms"), "there is no scheduler 'plms'; supported: ddim, ddpm,"),
    "steps": (("-s", "0"), "steps is 0; scheduler dpmpp_2m takes 1 to "),
    "guidance": (("-g", "nan"), "guidance is nan; it must be 0 or greater"),
    "negative": (("-g", "1", "-n", "x"), "a negative prompt has no effect at guidance 1"),
    "seed": (("--seed", "-1"), "seed -1 is not in [0, 2**64)"),
    "batch": (("-b", "0"), "batch is 0; at least 1 image"),
    "eta": (("--eta", "0.5"), "scheduler dpmpp_2m has no setting 'eta'"),
    "strength alone": (("--strength", "0.5"), "strength is about the image to start from"),
    "no image": (("-i", "none.png"), "none.png cannot be read: No such file or directory"),
    "not an image": (("-i", "notes.txt"), "notes.txt is no image that can be read"),
    "image size": (("-i", "odd.png"), "the image's width 60 is not a multiple of 8, 56 and 64"),
    "mask alone": (("--mask", "mask.png"), "a mask says which part of an image is drawn anew"),
    "mask size": (
        ("-i", "photo.png", "--mask", "small.png"),
        "the mask is 32x64 pixels, the image 64x64: make the mask as large as the image",
    ),
    "no mask": (("-i", "photo.png", "--mask", "none.png"), "none.png cannot be read: No such file"),
    "no lora": (("--lora", "none.safetensors"), "none.safetensors cannot be read: No such file or"),
    "lora of another model": (
        ("--lora", "wide.safetensors"),
        (
            "LoRA wide.safetensors is for another model: layer "
            "'lora_unet_mid_block_resnets_0_conv1' has matrices (2, 99, 3, 3) and (32, 2, 1, 1), "
            "the weight of this model's unet.mid_block.resnets.0.conv1 is (32, 32, 3, 3)"
        ),
    ),
    "lora strength": (("--lora", "some.safetensors=nan"), "LoRA some.safetensors: strength is nan"),
    "lora is a pickle": (("--lora", "old.pt"), "old.pt: a Python pickle (PyTorch checkpoint);"),
    "no model": (("-m", "none"), "none: there is no such folder; check the path"),
    "a file as model": (("-m", "notes.txt"), "notes.txt: a file; give a folder in the layout"),
    "no such output folder": (("-o", "none/a.png"), "none is no folder that can be written"),
    "output is a folder": (("-o", "folder.png"), "folder.png cannot be written: it is a folder"),
    "output is no PNG": (("-o", "a.jpg"), "a.jpg: images are written as PNG, which holds what"),
    "from no image": (("--from", "notes.txt"), "notes.txt is no image that can be read"),
    "from another program": (("--from", "photo.png"), "photo.png has no metadata of Propolis"),
    "from nothing": (("--from", "none.png"), "none.png cannot be read: No such file"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input(propolis, case):
    """What cannot be used is refused in one line that says why, and nothing is written."""
    Path("notes.txt").write_text("no image")
    Path("old.pt").write_bytes(b"PK\3\4")
    Path("folder.png").mkdir()
    picture(), picture("odd.png", (60, 64)), mask(), mask("small.png", (32, 64))
    lora(), lora("wide.safetensors", 99)
    before = sorted(Path().iterdir())
    options, message = BAD[case]
    run = propolis("generate", "a", *options)
    assert (2, "") == (run.code, run.out)
    error = run.err.splitlines()[-1]
    assert error.startswith("error: ")
    assert message in error
    assert before == sorted(Path().iterdir())


def test_no_prompt(propolis):
    """Without a prompt there is nothing to draw; an empty one is one."""
    run = propolis("generate")
    assert (2, "") == (run.code, run.out)
    assert 'error: say what to draw: propolis sd generate "a red circle"\n' == run.err
    assert 0 == propolis("generate", "", *FEW).code


def test_no_packaged_model(propolis, monkeypatch):
    """Where there is no model, the message says how to get one."""
    monkeypatch.delenv("PROPOLIS_SD_MODEL")
    monkeypatch.setattr("propolis_workers.sd.models.PACKAGED", "propolis_none_sd")
    run = propolis("generate", "a")
    assert (2, "") == (run.code, run.out)
    assert "error: no model: pass -m FOLDER" in run.err
    assert "`pip install propolis-none-sd`" in run.err


def test_changed_files(propolis):
    """--from notices that a file is another one than it was."""
    picture(), mask(), lora()
    given = ("-i", "photo.png", "--mask", "mask.png", "--lora", "some.safetensors")
    assert 0 == propolis("generate", "a", *given, "-o", "a.png", *FEW).code
    for name, option in (
        ("photo.png", "image"),
        ("mask.png", "mask"),
        ("some.safetensors", "lora"),
    ):
        whole = Path(name).read_bytes()
        if option == "lora":
            save_file({"x": np.zeros(1, "f4")}, name)
            lora()
            raw = bytearray(Path(name).read_bytes())
            raw[-1] ^= 1
            Path(name).write_bytes(raw)
        else:
            picture(name, (64, 64), optimize=True, compress_level=1)
        run = propolis("generate", "--from", "a.png", "-o", "b.png")
        assert 2 == run.code
        assert f"{name} is not the {option} that the image was drawn from" in run.err
        assert f"give the right one with --{option}" in run.err
        Path(name).write_bytes(whole)
    assert 0 == propolis("generate", "--from", "a.png", "-o", "b.png").code


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"prompt": 3}, "its metadata says prompt is '3', which cannot be"),
        ({"steps": "many"}, "its metadata says steps is 'many'"),
        ({"seed": True}, "its metadata says seed is 'True'"),
        ({"dtype": "f8"}, "names dtype 'f8' and image None of 1"),
        ({"index": 5, "batch": 2}, "names dtype 'f32' and image 5 of 2"),
        ({"image": "photo.png"}, "names a file as 'photo.png'"),
        ({"loras": [{"file": "a"}]}, "says sha256 is 'None'"),
        ({"loras": "a"}, "says loras is 'a'"),
        ({"steps": 0}, "steps is 0"),
    ],
)
def test_spoilt_metadata(propolis, change, message):
    """Metadata that Propolis would not have written is refused, with what is wrong."""
    propolis("generate", "a", "-o", "a.png", *FEW)
    images.write_png("a.png", images.read_image("a.png"), images.read_metadata("a.png") | change)
    run = propolis("generate", "--from", "a.png", "-o", "b.png")
    assert 2 == run.code
    assert message in run.err
    assert not Path("b.png").exists()


def test_nan(propolis, complete, tmp_path):
    """A model whose latents are no numbers stops at the step, and writes nothing."""
    import shutil

    from safetensors.numpy import load_file

    folder = shutil.copytree(complete("sd15"), tmp_path / "broken")
    (file,) = (folder / "unet").glob("*.safetensors")
    weights = load_file(file)
    weights["conv_out.bias"][:] = np.nan
    save_file(weights, file)
    run = propolis("generate", "a", "-m", str(folder), "-o", "a.png", *FEW)
    assert (2, "") == (run.code, run.out)
    assert "error: step 1 of 2 (timestep 999): the UNet gave values that are not finite" in run.err
    assert not Path("a.png").exists()


def test_wrong_shape(propolis, complete, tmp_path):
    """A tensor of another shape is named, with its file."""
    import shutil

    from safetensors.numpy import load_file

    folder = shutil.copytree(complete("sd15"), tmp_path / "broken")
    (file,) = (folder / "unet").glob("*.safetensors")
    weights = load_file(file)
    weights["conv_in.weight"] = weights["conv_in.weight"][:, :2]
    save_file({name: np.ascontiguousarray(w) for name, w in weights.items()}, file)
    run = propolis("generate", "a", "-m", str(folder))
    assert 2 == run.code
    assert "unet: tensor conv_in.weight has shape (16, 2, 3, 3), the model's settings " in run.err


def test_missing_packages(propolis, monkeypatch):
    """Without the extra's packages the message says what to install; help is there."""
    import importlib.util

    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda n: None if n == "PIL" else find(n))
    for command in (("generate", "a"), ("info", "a.png")):
        run = propolis(*command)
        assert 2 == run.code
        assert "not installed (PIL): pip install 'propolis[sd]'" in run.err
    assert 0 == propolis("generate", "--help").code


def test_help(propolis):
    """The commands and their options are listed without a model."""
    assert "generate" in propolis("--help").out
    text = propolis("generate", "--help").out
    for option in ("--from", "--negative", "--lora FILE[=STRENGTH]", "--preview", "--json"):
        assert option in text
