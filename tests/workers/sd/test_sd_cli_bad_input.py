"""What ``propolis sd`` cannot use is refused in one line, with real files."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file
from safetensors.numpy import save_file

from propolis_workers.sd import images


FEW = ("-s", "2", "--seed", "3")
CULPRITS = [
    ("conv2d", "x, w, /, bias=None, stride=1, padding=0, dilation=1, groups=1", "the UNet gave"),
    ("round", "x, /", "the VAE decoded to"),
]

BAD = {
    "width": (("-W", "100"), "width 100 is not a multiple of 8, 96 and 104 are: give one of these"),
    "scheduler": (("--scheduler", "plms"), "there is no scheduler 'plms'; supported: ddim, ddpm,"),
    "steps": (("-s", "0"), "steps is 0; scheduler dpmpp_2m takes 1 to "),
    "guidance": (("-g", "nan"), "guidance is nan; it must be finite, 0 or greater"),
    "negative": (("-g", "1", "-n", "x"), "a negative prompt has no effect at guidance 1"),
    "seed": (("--seed", "-2"), "-2 is not in the range -1<=x<=18446744073709551615"),
    "many": (("-b", "1000000000"), "batch is 1000000000; supported: 1 to 1024 images"),
    "batch": (("-b", "0"), "batch is 0; supported: 1 to 1024 images"),
    "eta": (("--eta", "0.5"), "scheduler dpmpp_2m takes no eta; ddim does"),
    "strength alone": (("--strength", "0.5"), "strength is about the image to start from"),
    "no image": (("-i", "none.png"), "none.png cannot be read: No such file or directory"),
    "not an image": (("-i", "notes.txt"), "notes.txt is no image that can be read"),
    "image size": (
        ("-i", "odd.png"),
        "the image's width 60 is not a multiple of 8, 56 and 64 are: give --width and --height",
    ),
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
    "output is the end of a name": (
        ("-o", ".png"),
        "which holds what reproduces them; give out.png",
    ),
    "no output": (("-o", " "), "-o is blank: give a file, or leave it out"),
    "from no image": (("--from", "notes.txt"), "notes.txt is no image that can be read"),
    "from another program": (("--from", "photo.png"), "photo.png has no metadata of Propolis"),
    "from nothing": (("--from", "none.png"), "none.png cannot be read: No such file"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input(propolis, make, monkeypatch, case):
    """
    What cannot be used is refused in one line that says why, before any weight is read.

    Nothing is written.
    """
    monkeypatch.delattr("propolis_workers.sd.pipeline.StableDiffusion.load")
    Path("notes.txt").write_text("no image")
    Path("old.pt").write_bytes(b"PK\3\4")
    Path("folder.png").mkdir()
    make.picture(), make.picture("odd.png", (60, 64)), make.mask(), make.mask("small.png", (32, 64))
    make.lora(), make.lora("wide.safetensors", 99)
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


def test_changed_files(propolis, make):
    """--from notices that a file is another one than it was."""
    make.picture(), make.mask(), make.lora()
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
            make.lora()
            raw = bytearray(Path(name).read_bytes())
            raw[-1] ^= 1
            Path(name).write_bytes(raw)
        else:
            make.picture(name, (64, 64), optimize=True, compress_level=1)
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
        ({"model": ""}, "its metadata has no model"),
        ({"index": 0, "batch": 2, "seed": None}, "its metadata has no seed"),
    ],
)
def test_spoilt_metadata(propolis, change, message):
    """Metadata that Propolis would not have written is refused, with what is wrong."""
    propolis("generate", "a", "-o", "a.png", *FEW)
    told = {k: v for k, v in (images.read_metadata("a.png") | change).items() if v is not None}
    images.write_png("a.png", images.read_image("a.png"), told)
    run = propolis("generate", "--from", "a.png", "-o", "b.png")
    assert 2 == run.code
    assert message in run.err
    assert not Path("b.png").exists()


def test_nan(propolis, complete, tmp_path):
    """A model whose latents are no numbers stops at the step, and writes nothing."""
    folder = shutil.copytree(complete("sd15"), tmp_path / "broken")
    (file,) = (folder / "unet").glob("*.safetensors")
    weights = load_file(file)
    weights["conv_out.bias"][:] = np.nan
    save_file(weights, file)
    run = propolis("generate", "a", "-m", str(folder), "-o", "a.png", *FEW)
    assert (2, "") == (run.code, run.out)
    assert "error: step 1 of 2 (timestep 999): the UNet gave values that are not finite" in run.err
    assert "the ops were served by cpu_ref (propolis-cpu-ref " in run.err
    assert not Path("a.png").exists()


@pytest.mark.parametrize(("op", "parameters", "where"), CULPRITS, ids=["unet", "vae"])
def test_a_plugin_that_gives_nan(propolis_with, complete, tmp_path, op, parameters, where):
    """Who served is named, with what judges them, whoever notices first."""
    output = str(tmp_path / "a.png")
    given = ("generate", "a", "-m", str(complete("sd15")), "-o", output, *FEW)
    err = propolis_with(op, parameters, "--plugins", "wrong", "sd", *given)
    assert f"{where} values that are not finite" in err
    assert "served by cpu_ref (propolis-cpu-ref 0.1.0), wrong (wrong-dist 1.0): " in err
    assert "`propolis --plugins wrong drift --device cpu` judges the ops that a language" in err
    assert "`propolis --plugins wrong conformance wrong --device cpu` all of a plugin" in err
    assert not (tmp_path / "a.png").exists()


def test_wrong_shape(propolis, complete, tmp_path):
    """A tensor of another shape is named, with its file."""
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
