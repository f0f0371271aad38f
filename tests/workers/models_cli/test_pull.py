from __future__ import annotations

import json

import pytest
from fake_hub import BIG
from fake_hub import FILE
from fake_hub import REPO
from fake_hub import REVISION
from fake_hub import left
from fake_hub import sleep_as
from huggingface_hub import close_session
from huggingface_hub import constants


@pytest.mark.parametrize("name", [REPO, f"{REPO}:q4_k_m", f"{REPO}:{FILE}"])
def test_pull(repository, models, folder, name):
    """A name, a quantisation in either case, or a file: its bytes are here, a line says where."""
    done = models("pull", name)
    assert done.code == 0
    assert done.out == f"{REPO}:Q4_K_M: pulled 0.30 MB, {folder / REPO / FILE}\n"
    assert done.err == f"pulling {FILE} (0.30 MB)\n"
    assert left(folder) == [f"{REPO}/{FILE}"]
    assert (folder / REPO / FILE).read_bytes() == BIG


def test_pull_again(repository, models, folder):
    """What is here is not pulled again, and what was changed is."""
    models("pull", REPO)
    before = len(repository.downloads())
    assert "all of it was here" in models("pull", REPO).out
    assert len(repository.downloads()) == before
    (folder / REPO / FILE).write_bytes(bytes(len(BIG)))
    models("pull", REPO)
    assert (folder / REPO / FILE).read_bytes() == BIG


def test_json(repository, models, folder):
    """With --json there is one document, and nothing besides."""
    done = models("pull", REPO, "--json")
    assert done.err == ""
    answer = json.loads(done.out)
    assert answer["name"] == f"{REPO}:Q4_K_M"
    assert answer["path"] == str(folder / REPO / FILE)
    assert (answer["bytes"], answer["fetched_bytes"]) == (len(BIG), len(BIG))
    assert answer["revision"] == REVISION


def test_folder(hub, models, folder, tiny_folder):
    """A repository with safetensors comes as a folder that loads, without pickles and the rest."""
    hub.files["some/model"] = {
        **{file.name: file.read_bytes() for file in tiny_folder.iterdir()},
        "pytorch_model.bin": b"\x80\x04",
        "consolidated.safetensors": b"another",
        "onnx/model.onnx": b"-",
    }
    done = models("pull", "some/model")
    assert done.code == 0, done.err
    assert left(folder / "some/model") == left(tiny_folder)
    assert done.err.splitlines()[-1].startswith("pulling config.json")
    assert models("show", "some/model").code == 0


def test_shards(hub, models, folder):
    """A model in shards comes with its index and all of them."""
    shards = {f"model-0000{n}-of-00002.safetensors": b"%d" % n for n in (1, 2)}
    hub.files["some/model"] = {
        **shards,
        "model.safetensors.index.json": b"{}",
        "config.json": b"{}",
        "merges.txt": b"",
    }
    assert models("pull", "some/model").code == 0
    assert left(folder / "some/model") == sorted(hub.files["some/model"])


def test_split(hub, models, folder):
    """All parts of a split GGUF file come, in a folder of theirs too; the first is the model."""
    parts = [f"Q8_0/m-Q8_0-0000{n}-of-00003.gguf" for n in (1, 2, 3)]
    hub.files[REPO] = {part: part.encode() for part in parts}
    done = models("pull", f"{REPO}:Q8_0")
    assert done.out.endswith(f", {folder / REPO / parts[0]}\n")
    assert left(folder) == [f"{REPO}/{part}" for part in parts]
    del hub.files[REPO][parts[2]]
    done = models("pull", f"{REPO}:Q8_0")
    assert done.code == 2
    assert "is one part of 00003, and Q8_0/m-Q8_0-00003-of-00003.gguf is not there" in done.err


def test_short_name(hub, models, monkeypatch):
    """A short name says what it stands for."""
    repository = "bartowski/Llama-3.2-1B-Instruct-GGUF"
    hub.files[repository] = {"Llama-3.2-1B-Instruct-Q4_K_M.gguf": b"x"}
    done = models("pull", "llama3.2:1b")
    assert done.code == 0
    assert done.err.startswith(f"llama3.2:1b is {repository}:Q4_K_M\n")


@pytest.mark.parametrize("name", [FILE, "config.json"])
def test_wrong_checksum(hub, models, folder, name):
    """A file that is not what the list says is deleted, be it large or one that git holds."""
    hub.files[REPO] = {"config.json": b"{}  ", "model.safetensors": BIG, FILE: BIG}
    hub.wrong = {name}
    done = models("pull", f"{REPO}:{FILE}" if name == FILE else REPO)
    assert done.code == 1
    assert f"{name} of {REPO} came with another checksum" in done.err
    assert "was deleted" in done.err
    assert not [file for file in left(folder) if name in file]


@pytest.mark.parametrize(
    "name", ["../../x.gguf", "/x.gguf", "a/../../x.gguf", "a\\x.gguf", "./x.gguf", "a\nx.gguf"]
)
def test_hostile_names(repository, models, folder, name):
    """A list that names a file outside of its folder is refused whole."""
    repository.listed[REPO] = [repository.entry(n, b"x") for n in (FILE, name)]
    done = models("pull", REPO)
    assert done.code == 2
    assert "outside of the model's folder; nothing was downloaded" in done.err
    assert not repository.downloads()
    assert not folder.exists()


@pytest.mark.parametrize(
    "listed",
    [
        b"<html>",
        b"[]",
        b'{"id": "x", "sha": "main", "siblings": []}',
        [{"rfilename": FILE}],
        [{"rfilename": FILE, "size": "1", "blobId": "0" * 40}],
        [{"rfilename": FILE, "size": 1, "blobId": "../" * 14}],
        [{"rfilename": 1, "size": 1, "blobId": "0" * 40}],
        [1],
    ],
)
def test_no_hub(repository, models, listed):
    """What does not answer as a hub does is said to be none."""
    repository.listed[REPO] = listed
    done = models("pull", REPO)
    assert done.code == 1
    assert "is no hub: check HF_ENDPOINT" in done.err


@pytest.mark.parametrize(
    ("refused", "code", "said"),
    [
        ((404, "RepoNotFound"), 2, "or it is private: check the name, and set HF_TOKEN"),
        ((403, "GatedRepo"), 1, "accept them on its page at http"),
        ((401, "GatedRepo"), 1, "accept them on its page at http"),
        ((403, ""), 1, "set HF_TOKEN to a token that may read it"),
        ((500, ""), 1, "answered 500: try it later"),
    ],
)
def test_refused(repository, models, refused, code, said):
    """What the hub refuses is one line that says what to do."""
    repository.refused[REPO] = refused
    done = models("pull", REPO)
    assert done.code == code
    assert said in done.err.splitlines()[-1]
    assert done.err.count("\n") == (6 if refused[0] >= 500 else 1)


def test_not_there(repository, models):
    """A repository that does not exist is named; so is one of whose files one is gone."""
    done = models("pull", "some/other")
    assert done.code == 2
    assert "has no some/other, or it is private" in done.err
    repository.listed[REPO] = [repository.entry("gone-Q4_0.gguf", b"x")]
    done = models("pull", REPO)
    assert done.code == 2
    assert f"has no gone-Q4_0.gguf of {REPO} any more" in done.err


def test_unreachable(models):
    """Without a network the line names what was asked, where, and what to do."""
    done = models("pull", REPO)
    assert done.code == 1
    assert f"{REPO} was asked for at http://127.0.0.1:9, and it cannot be reached" in done.err
    assert "check the network and HTTPS_PROXY" in done.err
    assert done.err.count("\n") == 1


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("ALL_PROXY", "socks5://127.0.0.1:1", "pip install 'httpx2[socks]', or name an HTTP proxy"),
        ("HTTPS_PROXY", "foo://user:secret@x", "no proxy's address: set it to http://HOST:PORT"),
        ("HTTPS_PROXY", "http://[::", "no proxy's address: set it to http://HOST:PORT"),
        ("SSL_CERT_FILE", "/absent/a.pem", "(No such file or directory): set it to a file of"),
        ("SSL_CERT_FILE", __file__, "set it to a file of certificates, or unset it"),
    ],
)
def test_settings_of_the_network(repository, models, monkeypatch, name, value, said):
    """Settings by which nobody can be asked are named, without a password in them."""
    close_session()
    monkeypatch.setenv(name, value)
    done = models("pull", REPO)
    close_session()
    assert done.code == 1
    assert said in done.err
    assert name.removeprefix("ALL").removeprefix("HTTPS") in done.err
    assert "secret" not in done.err
    assert done.err.count("\n") == 1


def test_a_hub_that_is_no_address(models, monkeypatch):
    """It is the setting that is wrong, not the network."""
    monkeypatch.setenv("HF_ENDPOINT", "garbage")
    done = models("pull", REPO)
    assert done.code == 2
    assert "HF_ENDPOINT is 'garbage', no address of a hub" in done.err


def test_password_of_the_hub(repository, models, monkeypatch):
    """Who may ask a hub behind a password does, and no line shows it."""
    address = repository.url.replace("//", "//user:secret@")
    monkeypatch.setenv("HF_ENDPOINT", address)
    repository.refused[REPO] = (500, "")
    done = models("pull", REPO)
    assert f"{repository.url} answered 500" in done.err
    assert "secret" not in done.err
    repository.refused = {}
    assert models("pull", REPO).code == 0


def test_too_large(hub, models, monkeypatch):
    """What is larger than the hub gives out at once is refused before the first byte."""
    hub.files[REPO] = {"m-Q8_0-00001-of-00002.gguf": b"1", "m-Q8_0-00002-of-00002.gguf": b"22"}
    monkeypatch.setattr(constants, "MAX_HTTP_DOWNLOAD_SIZE", 1)
    done = models("pull", f"{REPO}:Q8_0")
    assert done.code == 1
    assert "m-Q8_0-00002-of-00002.gguf of some/Model-GGUF has" in done.err
    assert not hub.downloads()


def test_vanished(hub, models, folder, tiny_folder):
    """What a repository does not have any more is gone from its folder, and what is mine stays."""
    hub.files["some/model"] = {file.name: file.read_bytes() for file in tiny_folder.iterdir()}
    hub.files["some/model"]["chat_template.jinja"] = b"of another time"
    assert models("pull", "some/model").code == 0
    here = folder / "some/model"
    (here / "notes.txt").write_text("mine")
    (here / ".model-00001-of-00002.safetensors.0123456789ab.part").write_bytes(b"1")
    (here / "m-Q4_0.gguf").write_bytes(b"of another pull")
    del hub.files["some/model"]["chat_template.jinja"]
    done = models("pull", "some/model")
    assert done.code == 0
    assert "removing chat_template.jinja, which some/model does not have any more" in done.err
    assert left(here) == sorted([*hub.files["some/model"], "m-Q4_0.gguf", "notes.txt"])


def test_offline(hub, models, monkeypatch):
    """HF_HUB_OFFLINE asks nobody."""
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    done = models("pull", REPO)
    assert done.code == 1
    assert "HF_HUB_OFFLINE forbids" in done.err
    assert not hub.asked


def test_token(repository, models, monkeypatch):
    """HF_TOKEN goes to the hub and to no line; nothing is told of what else is installed."""
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    done = models("pull", REPO)
    assert "hf_secret" not in done.out + done.err
    assert {headers["Authorization"] for _, _, headers in repository.asked} == {"Bearer hf_secret"}
    assert not any("torch" in headers["User-Agent"] for _, _, headers in repository.asked)
    assert {path.split("/")[1] for _, path, _ in repository.asked} == {"api", "some", "cdn"}
    repository.refused[REPO] = (401, "GatedRepo")
    done = models("pull", REPO)
    assert "see that HF_TOKEN is a token of that account" in done.err
    assert "hf_secret" not in done.err


def test_terminal(repository, models, monkeypatch):
    """On a terminal a bar is drawn besides the lines, and is gone at the end."""
    monkeypatch.setattr("propolis_workers.models.cli.watched", lambda **_: True)
    done = models("pull", REPO)
    assert done.code == 0
    assert f"pulling {FILE} (0.30 MB)" in done.err
    assert done.out.startswith(f"{REPO}:Q4_K_M: pulled 0.30 MB")


def test_interrupted(repository, models, folder, monkeypatch):
    """Ctrl-C keeps what came."""

    def stop(*_, **__):
        raise KeyboardInterrupt

    repository.cut = [200_000]
    sleep_as(monkeypatch, stop)
    done = models("pull", REPO)
    assert done.code == 130
    (part,) = left(folder)
    assert (folder / part).stat().st_size > 0


@pytest.mark.parametrize(
    ("files", "name", "said"),
    [
        ({"a-Q4_0.gguf": b"", "b-Q4_0.gguf": b""}, "", "there are: :a-Q4_0.gguf, :b-Q4_0.gguf"),
        ({"a-Q2_K.gguf": b"", "a-Q3_K_S.gguf": b""}, "", "there are: :Q2_K, :Q3_K_S"),
        ({"a-Q4_0.gguf": b""}, ":Q8_0", "was asked for :Q8_0, and there is no such file there"),
        ({"mmproj-a-F16.gguf": b"", "x.bin": b""}, "", "pickles alone"),
        ({"mmproj/a-F16.gguf": b"", "x.bin": b""}, "", "pickles alone"),
        ({"a-Q2_K.gguf": b"", "a.imatrix.gguf": b""}, ":F16", "there are: :Q2_K\n"),
        ({"README.md": b""}, "", "has neither GGUF files nor"),
        ({"config.json": b"{}", "model.safetensors": b""}, ":Q4_0", "`propolis models pull some/"),
    ],
)
def test_nothing_meant(hub, models, files, name, said):
    """A name that means no file, or several, gets a list of what there is."""
    hub.files[REPO] = files
    done = models("pull", REPO + name)
    assert done.code == 2
    assert said in done.err
    assert not hub.downloads()


@pytest.mark.parametrize("name", ["lama3.2:1b", "../x/y", "a/b/c", "a/b:../c.gguf", "/etc", ""])
def test_no_name(models, name):
    """What is no name is refused before anybody is asked; a near short name is offered."""
    done = models("pull", name)
    assert done.code == 2
    assert "is no model's name; supported: org/name" in done.err
    if name.startswith("lama"):
        assert "did you mean llama3.2:1b" in done.err
