"""``propolis sd`` as its users run it, with real files."""

from __future__ import annotations

import errno
import json
import os
import pty
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

from propolis.errors import ModelError
from propolis_workers.sd import images
from propolis_workers.sd.models import PACKAGED
from propolis_workers.sd.recipe import Recipe
from propolis_workers.terminal import ended_by_signals


PROPOLIS = (sys.executable, "-c", "from propolis.cli import main; main()", "sd")
FEW = ("-s", "2", "--seed", "3")


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


def test_what_is_there_stays(propolis, make):
    """Neither what is drawn nor a preview replaces what is read, or somebody's preview."""
    make.picture(), make.mask()
    before = Path("photo.png").read_bytes(), Path("mask.png").read_bytes()
    reads = ("a", "-i", "photo.png", "--mask", "mask.png", *FEW)
    for output in ("photo.png", "./mask.png"):
        run = propolis("generate", *reads, "-o", output)
        assert 2 == run.code
        assert "would replace the " in run.err
    assert before == (Path("photo.png").read_bytes(), Path("mask.png").read_bytes())
    Path("b.preview.png").write_text("precious")
    run = propolis("generate", "a", "-o", "b.png", *FEW, "--preview", "1")
    assert 0 == run.code, run.err
    assert "precious" == Path("b.preview.png").read_text()
    assert not Path("b.preview.2.png").exists()


def test_default_name(propolis):
    """Without -o nothing is overwritten."""
    names = [propolis("generate", "a", *FEW, *more).out.split() for more in ((), ("-b", "2"), ())]
    assert [["out.png"], ["out.2-1.png", "out.2-2.png"], ["out.3.png"]] == names


def test_a_name_that_was_free(propolis, monkeypatch):
    """Of two that draw at once the one that ends later takes the next free name."""
    real = Recipe.save

    def beside(self, images, path):
        Path("out.png").write_text("another's")
        return real(self, images, path)

    monkeypatch.setattr(Recipe, "save", beside)
    assert ["out.2.png"] == propolis("generate", "a", *FEW).out.split()
    assert "another's" == Path("out.png").read_text()


def test_a_name_that_was_taken_for_nothing(propolis, monkeypatch):
    """Where what is drawn cannot be written no empty file stays."""

    def full(path, *, private):
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    monkeypatch.setattr("propolis.files.replacing", full)
    run = propolis("generate", "a", *FEW)
    assert 2 == run.code
    assert "out.png cannot be written: No space left on device" in run.err
    assert not list(Path().glob("out*"))


def test_a_link_stays_one(propolis):
    """What is drawn goes to the file that a link names, there already or not."""
    Path("folder").mkdir()
    Path("link.png").symlink_to("folder/a.png")
    for _ in range(2):
        run = propolis("generate", "a", *FEW, "-o", "link.png")
        assert 0 == run.code, run.err
        assert Path("link.png").is_symlink()
        assert (64, 64, 3) == images.read_image("folder/a.png").shape


@pytest.mark.parametrize(
    ("name", "said"),
    [("loop.png", os.strerror(errno.ELOOP)), ("a" * 300 + ".png", os.strerror(errno.ENAMETOOLONG))],
)
def test_names_that_cannot_be(propolis, name, said):
    """A link to itself, and a name that no file has."""
    Path("loop.png").symlink_to("loop.png")
    run = propolis("generate", "a", *FEW, "-o", name)
    assert 2 == run.code
    assert f"{name} cannot be written: {said}" in run.err


def test_the_longest_name(propolis):
    """One as long as the file system has any, 255 bytes mostly, is written."""
    name = "a" * (os.pathconf(".", "PC_NAME_MAX") - 4) + ".png"
    run = propolis("generate", "a", *FEW, "-o", name)
    assert 0 == run.code, run.err


@pytest.mark.slow
def test_reproduces(propolis, make):
    """--from draws the same file again, byte by byte, whatever it was drawn from."""
    make.picture(), make.mask(), make.lora()
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
    assert ", seed 4, " in run.err  # its own
    assert Path("b-2.png").read_bytes() == Path("c.png").read_bytes()
    propolis("generate", "--from", "b-2.png", "-b", "1", "-o", "alone.png")
    metadata = images.read_metadata("alone.png")
    assert (4, 1, None) == (metadata["seed"], metadata["batch"], metadata.get("index"))
    off = images.read_image("alone.png").astype(int) - images.read_image("c.png")
    assert np.abs(off).max() <= 1


def test_reproduces_what_python_drew(propolis, make, pipelines):
    """--from draws what Python saved, LoRAs included, as long as no image was given."""
    from propolis_workers.sd import GenerateParams
    from propolis_workers.sd import LoRA

    sd = pipelines("sd15")
    lora = LoRA.open(make.lora())
    sd.apply_lora(lora, 0.5)
    sd.generate(GenerateParams(prompt="a", steps=2, seed=5)).save("a.png")
    sd.remove_lora(lora)
    run = propolis("generate", "--from", "a.png", "-o", "b.png")
    assert 0 == run.code, run.err
    assert Path("a.png").read_bytes() == Path("b.png").read_bytes()


def test_from_with_changes(propolis):
    """Other options change what is drawn again."""
    propolis("generate", "a", "-o", "a.png", *FEW)
    propolis("generate", "a blue square", "--from", "a.png", "-s", "3", "-o", "b.png")
    one, two = (images.read_metadata(name) for name in ("a.png", "b.png"))
    assert {"prompt": "a blue square", "steps": 3} == {
        key: value for key, value in two.items() if one[key] != value
    }


def test_info(propolis, make):
    """Info shows what an image was drawn from, for people and for machines."""
    make.lora()
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


def test_info_of_one_of_many(propolis):
    """Its own seed is told, which draws it alone."""
    assert propolis("generate", "x", "-o", "a.png", "-b", "2", *FEW, "--seed", "5").code == 0
    first, second = (propolis("info", f"a-{n}.png").out.splitlines() for n in (1, 2))
    assert "seed: 5" in first
    assert "own seed" not in "".join(first)
    assert second[-1] == "this image's own seed: 6"


def test_a_model_of_somebody_else(propolis):
    """What a server drew names no folder: the packaged model is found, another is asked for."""
    propolis("generate", "x", "-o", "a.png", *FEW)
    told = images.read_metadata("a.png")
    pixels = images.read_image("a.png")
    images.write_png("b.png", pixels, {**told, "model": "sd15-of-theirs"})
    run = propolis("generate", "--from", "b.png", "-o", "c.png")
    assert (2, "") == (run.code, run.out)
    said = (
        "error: b.png was drawn by the model 'sd15-of-theirs', which is no folder here; -m FOLDER"
    )
    assert said in run.err
    assert Recipe.read("b.png").changed({"model": "."}).sealed().model == "."
    images.write_png("d.png", pixels, {**told, "model": PACKAGED})
    assert Recipe.read("d.png").model is None


def test_another_seed_each_time(propolis):
    """A seed of -1 is none, as elsewhere."""
    seeds = set()
    for name in ("a.png", "b.png"):
        assert propolis("generate", "x", "-o", name, "-s", "1", "--seed", "-1").code == 0
        seeds.add(images.read_metadata(name)["seed"])
    assert len(seeds) == 2
    assert min(seeds) >= 0


def test_info_of_a_stranger(propolis):
    """Text that would steer the terminal is shown escaped."""
    images.write_png("a.png", np.zeros((8, 8, 3), np.uint8), {"prompt": "\x1b[2J", "strange": [1]})
    run = propolis("info", "a.png")
    assert (0, "prompt: '\\x1b[2J'\nstrange: [1]\n") == (run.code, run.out)


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


@pytest.mark.parametrize(("raised", "code"), [(KeyboardInterrupt(), 130), (ModelError("odd"), 2)])
@pytest.mark.parametrize("more", [(), ("--json",)], ids=["people", "json"])
def test_the_summary_comes_however_it_ends(propolis, monkeypatch, raised, code, more):
    """What served which ops is said before the error, on standard error alone."""

    def fails(*_args, **_kwargs):
        raise raised

    monkeypatch.setattr("propolis_workers.sd.pipeline.decode", fails)
    run = propolis("generate", "a", *FEW, *more)
    assert (code, "") == (run.code, run.out)
    *_, summary, end = [line for line in run.err.splitlines() if line]
    assert "placement: " == summary[:11]
    assert " ops on cpu by cpu_ref (propolis-cpu-ref " in summary
    assert end.startswith(("error: ", "interrupted"))


def test_json_lines(propolis):
    """With --log-format json notes and the summary are objects too."""
    run = propolis("generate", "a", "-o", "a.png", *FEW, before=("--log-format", "json"))
    texts = [json.loads(line)["text"] for line in run.err.splitlines()]
    for start in ("loaded sd15", "1 image of ", "note: the scheduler", "placement: "):
        assert any(text.startswith(start) for text in texts)


def test_inputs(propolis, make):
    """An image and a mask are files of any kind that Pillow reads; sizes given resize them."""
    make.picture("photo.jpg", (48, 40)), make.mask("mask.webp", (48, 40))
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


@pytest.mark.slow
def test_a_signal_leaves_no_preview(complete, tmp_path):
    """One that ends the command, sent or as a terminal closes, ends the preview, then it all."""
    script = """
    import os, signal
    from propolis.cli import main
    from propolis_workers.sd import images
    signal.signal(NUMBER, signal.SIG_DFL)  # whoever runs the tests may be ignoring it
    write = images.write_png
    def ended(path, *more):
        write(path, *more)
        assert "preview" in str(path) and os.path.exists(path)
        os.kill(os.getpid(), NUMBER)
    images.write_png = ended
    main()
    """
    model, folder = str(complete("sd15")), tmp_path / "drawn"
    folder.mkdir()
    arguments = ["sd", "generate", "a", "-o", "a.png", "-s", "5", "--preview", "2", "-m", model]
    for number in (signal.SIGTERM, signal.SIGHUP):
        source = textwrap.dedent(script).replace("NUMBER", str(int(number)))
        command = [sys.executable, "-c", source, *arguments]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        assert done.returncode == -number, done.stderr
        assert not list(folder.iterdir())


def test_a_signal_within_an_op_is_no_fault_of_the_op(monkeypatch):
    """It passes as Ctrl-C does, where ``SystemExit`` would be what an implementation raised."""
    killed = []
    monkeypatch.setattr(os, "kill", lambda _, number: killed.append(number))
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        with pytest.raises(KeyboardInterrupt), ended_by_signals():
            signal.raise_signal(signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert killed == [signal.SIGTERM]


def test_signals_are_left_alone_without_a_preview(propolis, monkeypatch):
    """There is nothing to remove then."""
    monkeypatch.setattr("propolis_workers.sd.cli.ended_by_signals", pytest.fail)
    assert propolis("generate", "a bee", "-o", "a.png").code == 0


@pytest.mark.slow
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


def test_help(propolis):
    """The commands and their options are listed without a model."""
    assert "generate" in propolis("--help").out
    text = propolis("generate", "--help").out
    for option in ("--from", "--negative", "--lora FILE[=STRENGTH]", "--preview", "--json"):
        assert option in text
