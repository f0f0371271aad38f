from __future__ import annotations

import io
import json
import os
import subprocess
import sys

import pytest

from propolis.cli import main
from propolis.errors import DeviceLostError


MESSAGE = {"role": "user", "content": "the"}
PROPOLIS = (sys.executable, "-c", "from propolis.cli import main; main()", "llm")


class Run:
    """What a command left behind."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err


class Terminal(io.TextIOWrapper):
    """Standard input that someone types."""

    def isatty(self) -> bool:
        """It is one."""
        return True


@pytest.fixture
def propolis(monkeypatch, capsys, tiny_gguf):
    """Return a function that runs a command in this process, on the tiny model."""

    def run(*arguments: str, stdin="", model: bool = True, typed: bool = False) -> Run:
        raw = stdin.encode() if isinstance(stdin, str) else stdin
        source = io.BytesIO(raw) if isinstance(raw, bytes) else raw
        kind = Terminal if typed else io.TextIOWrapper
        monkeypatch.setattr(sys, "stdin", kind(source, encoding="utf-8"))
        if model:
            monkeypatch.setenv("PROPOLIS_MODEL", str(tiny_gguf))
        code = 0
        try:
            main(["llm", *arguments])
        except SystemExit as exit_info:
            code = exit_info.code or 0
        return Run(code, *capsys.readouterr())

    return run


def answered(llm, said="the", *, raw=False, **options) -> str:
    """The text of an answer through Python."""
    options.setdefault("max_tokens", 8)
    message = {"role": "user", "content": said}
    return "".join(llm.complete(said, **options) if raw else llm.chat([message], **options))


def test_generate(propolis, llm):
    """The answer and a line end go to standard output, all else to standard error."""
    run = propolis("generate", "the", "-n", "8")
    assert (0, answered(llm) + "\n") == (run.code, run.out)
    assert "loaded tiny.gguf (" in run.err
    assert " prompt tokens at " in run.err
    assert "8 drawn at " in run.err
    assert ", MAX_TOKENS\nplacement: " in run.err


def test_raw(propolis, llm):
    """--raw continues the prompt as it is."""
    run = propolis("generate", "--raw", "the", "-n", "8")
    assert answered(llm, raw=True) + "\n" == run.out


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_computed_in_16_bits(propolis, dtype):
    """--dtype says what activations are in, and so does the command."""
    run = propolis("generate", "the", "-n", "2", "--dtype", dtype)
    assert (run.code, f", computed in {dtype}\n" in run.err) == (0, True)
    run = propolis("generate", "the", "-n", "2", "--dtype", dtype, "--json")
    assert json.loads(run.out)["dtype"] == dtype
    assert "computed in" not in propolis("generate", "the", "-n", "2").err


def test_stdin(propolis, llm):
    """A prompt of "-" is all of standard input, but a byte order mark and the last line's end."""
    text = "the\nan ż"
    told = answered(llm, text) + "\n"
    for stdin in (text, text + "\n", "\ufeff" + text + "\r\n"):
        assert told == propolis("generate", "-", "-n", "8", stdin=stdin).out
    told = answered(llm, text + "\n") + "\n"
    assert told == propolis("generate", "-", "-n", "8", stdin=text + "\n\n").out
    assert answered(llm, "-x") + "\n" == propolis("generate", "-n", "8", "--", "-x").out


def test_stdin_that_is_no_prompt(propolis):
    """Standard input that is no UTF-8, or empty as after a command that failed, is refused."""
    empty = 'empty, and "-" reads'
    for stdin, said in ((b"a\xff", "not UTF-8: byte 0xff at 1"), (b"", empty), (b"\n", empty)):
        for raw in ((), ("--raw",)):
            run = propolis("generate", *raw, "-", stdin=stdin)
            assert (2, "", True) == (run.code, run.out, f"standard input is {said}" in run.err)


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (("generate", "a\udcff"), "PROMPT"),
        (("generate", "--raw", "a\udcff"), "PROMPT"),
        (("generate", "the", "--system", "a\udcff"), "--system"),
        (("chat", "--system", "a\udcff"), "--system"),
    ],
)
def test_arguments_of_bytes(propolis, arguments, what):
    """So are arguments; Python has their wrong bytes as halves of surrogate pairs."""
    run = propolis(*arguments)
    assert (2, "") == (run.code, run.out)
    assert run.err == f"error: {what} is not UTF-8: byte 0xff at 1\n"


def test_an_argument_in_another_locale():
    """What was given is UTF-8 where the locale knows none, as that of a service may."""
    code = "import sys, click; from propolis_workers.terminal import utf8; "
    code += "print(ascii(utf8(None, click.Argument(['prompt']), sys.argv[1])))"
    plain = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    given = "Grüße, 東京"
    said = subprocess.check_output([sys.executable, "-c", code, given], env={**os.environ, **plain})
    assert said.decode().strip() == ascii(given)


def test_system(propolis, llm):
    """--system is the first message; it needs the template."""
    run = propolis("generate", "the", "-n", "8", "--system", "on")
    messages = [{"role": "system", "content": "on"}, MESSAGE]
    assert "".join(llm.chat(messages, max_tokens=8)) + "\n" == run.out
    run = propolis("generate", "the", "--raw", "--system", "on")
    assert (2, "") == (run.code, run.out)
    assert "error: --system needs the chat template; leave out --raw\n" == run.err


def test_json(propolis, llm):
    """--json prints one document with text, tokens, times and placement, and nothing else."""
    run = propolis("generate", "the", "--json", "-n", "8")
    report = json.loads(run.out)
    assert (0, "") == (run.code, run.err)
    assert answered(llm) == report["text"]
    assert ("MAX_TOKENS", None, 8) == (
        *(report["stop_reason"], report["stop_string"], len(report["ids"])),
    )
    assert ("tiny.gguf", "cpu") == (report["model"], report["placement"]["device"])
    for rate in ("prefill", "decode"):
        assert report[f"{rate}_tokens_per_second"] > 0
        assert report[f"{rate}_seconds"] > 0
    assert report["load_seconds"] > 0
    assert 19 == report["prompt_tokens"]


def test_stop(propolis, llm):
    """Several stop strings may be given; the one that matched is reported."""
    whole = answered(llm, raw=True)
    stop = whole[4]
    run = propolis("generate", "the", "--raw", "--stop", "never", "--stop", stop, "--json")
    report = json.loads(run.out)
    assert (whole.split(stop)[0], stop) == (report["text"], report["stop_string"])
    assert "STOP_SEQUENCE" == report["stop_reason"]


def test_sampling_options(propolis):
    """A seed repeats an answer; other options reach the sampler."""
    options = ("generate", "the", "--json", "-n", "20", "-t", "1.5", "--seed")
    one, two, other = (json.loads(propolis(*options, seed).out) for seed in "112")
    assert one["ids"] == two["ids"] != other["ids"]
    fresh = [json.loads(propolis(*options, "-1").out)["ids"] for _ in range(2)]
    assert fresh[0] != fresh[1]
    greedy = json.loads(propolis(*options, "1", "--top-k", "1").out)["ids"]
    for option in (("--top-p", "1e-9"), ("--min-p", "1")):
        assert greedy == json.loads(propolis(*options, "1", *option).out)["ids"]
    penalised = propolis(*options, "1", "--top-k", "1", "--repetition-penalty", "5")
    assert greedy != json.loads(penalised.out)["ids"]


def test_context(propolis):
    """--context bounds prompt and answer together."""
    run = propolis("generate", "the", "--json", "--context", "21")
    report = json.loads(run.out)
    assert ("CONTEXT_FULL", 2) == (report["stop_reason"], len(report["ids"]))


def test_threads(propolis, llm):
    """The number of threads changes no answer."""
    run = propolis("generate", "the", "-n", "8", "--threads", "1")
    assert answered(llm) + "\n" == run.out


@pytest.mark.parametrize(
    ("option", "message"),
    [
        (("--temperature", "-1"), "temperature is -1.0; allowed"),
        (("--top-p", "0"), "top_p is 0.0; allowed"),
        (("--seed", "-2"), "'--seed': -2 is not in the range x>=-1"),
        (("--stop", ""), "a stop string is empty: every answer would end before"),
        (("--max-tokens", "0"), "'--max-tokens': 0 is not in the range x>=1"),
        (("--context", "0"), "'--context': 0 is not in the range x>=1"),
        (("--threads", "-1"), "threads = -1"),
        (("--device", "rocket:7"), "no device 'rocket:7'; present: cpu"),
    ],
)
def test_options_before_loading(propolis, tmp_path, option, message):
    """A wrong option is found before a model is looked for."""
    for command in (("generate", "x"), ("chat",)):
        run = propolis(*command, "-m", str(tmp_path / "none"), *option)
        assert (2, "") == (run.code, run.out)
        assert message in run.err


def test_chat(propolis, llm):
    """Answers go to standard output, a line each; no prompt is written for a pipe."""
    run = propolis("chat", "-n", "6", stdin="the\n\nan\n")
    first = answered(llm, "the", max_tokens=6)
    messages = [MESSAGE, {"role": "assistant", "content": first}]
    second = "".join(llm.chat([*messages, {"role": "user", "content": "an"}], max_tokens=6))
    assert (0, f"{first}\n{second}\n") == (run.code, run.out)
    assert "you>" not in run.err
    assert "MAX_TOKENS\nplacement: " in run.err


def test_chat_commands(propolis, llm):
    """/reset forgets, /exit ends; neither is answered."""
    first = answered(llm, "the", max_tokens=6)
    run = propolis("chat", "-n", "6", stdin="the\n/reset\nthe\n /exit \nan\n")
    assert f"{first}\n{first}\n" == run.out


def test_chat_system(propolis, llm):
    """The system message stays through a reset."""
    messages = [{"role": "system", "content": "on"}, MESSAGE]
    text = "".join(llm.chat(messages, max_tokens=6))
    run = propolis("chat", "-n", "6", "--system", "on", stdin="the\n/reset\nthe")
    assert f"{text}\n{text}\n" == run.out


def test_chat_of_nothing(propolis):
    """A talk in which nothing is said ends well."""
    run = propolis("chat")
    assert (0, "") == (run.code, run.out)
    assert "drawn" not in run.err


def test_chat_overflow(propolis, llm):
    """What does not fit is an error on standard error and in the exit code; the talk goes on."""
    run = propolis("chat", "-n", "6", stdin=f"{'x' * 200}\nthe\n")
    assert (2, answered(llm, max_tokens=6) + "\n") == (run.code, run.out)
    lines = [line for line in run.err.splitlines() if line.startswith("error: ")]
    assert 1 == len(lines)
    assert lines[0].endswith("; the chat goes on without it")


def test_chat_bytes(propolis, llm):
    """So is a line that is no UTF-8."""
    run = propolis("chat", "-n", "6", stdin=b"\xff\nthe\n")
    assert (2, answered(llm, max_tokens=6) + "\n") == (run.code, run.out)
    assert "error: standard input is not UTF-8" in run.err


def test_chat_refused_and_typed(propolis):
    """Who types has seen the error, and ends the chat well."""
    run = propolis("chat", "-n", "6", stdin="/nonsense\nthe\n", typed=True)
    assert 0 == run.code
    assert "error: no command /nonsense; there are /help, " in run.err
    assert 2 == propolis("chat", "-n", "6", stdin="/nonsense\nthe\n").code


def test_script_interrupted(propolis, monkeypatch):
    """Ctrl-C ends a talk that a script holds."""
    from propolis_workers.llm.engine import Engine

    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(Engine, "decode_likeliest", interrupted)
    run = propolis("chat", "-n", "6", stdin="on\nthe\n")
    assert 130 == run.code
    assert run.err.endswith("interrupted\n")


def test_chat_typed_and_piped(propolis, llm):
    """Who types is prompted on standard error, so that the answers can be piped."""
    run = propolis("chat", "-n", "6", stdin="the\n", typed=True)
    assert answered(llm, max_tokens=6) + "\n" == run.out
    assert 2 == run.err.count("you> ")


def test_help(propolis):
    """Both commands describe themselves, without loading what they run."""
    for command in ("generate", "chat"):
        run = propolis(command, "--help", model=False)
        assert 0 == run.code
        assert "--max-tokens" in run.out


def child(*arguments: str, **options) -> subprocess.CompletedProcess[str]:
    """Run the real command."""
    command = [*PROPOLIS, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, **options)


@pytest.mark.slow
def test_process(tiny_gguf, llm):
    """The installed command answers, chats and fails with the codes of the command line."""
    run = child("generate", "the", "-n", "8", "-m", str(tiny_gguf))
    assert (0, answered(llm) + "\n") == (run.returncode, run.stdout)
    run = child("chat", "-n", "6", "-m", str(tiny_gguf), input="the\n")
    assert (0, answered(llm, max_tokens=6) + "\n") == (run.returncode, run.stdout)
    run = child("generate", "the", "-m", str(tiny_gguf / "x"))
    assert (2, "") == (run.returncode, run.stdout)
    assert run.stderr.startswith("error: ")


def test_reader_goes_away(tiny_gguf):
    """A reader that closes the pipe, as head does, causes no complaint."""
    command = [*PROPOLIS, "generate", "the", "-m", str(tiny_gguf)]
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "wb") as pipe:
        run = subprocess.run(command, stdout=pipe, stderr=subprocess.PIPE, check=False)
    assert run.returncode in (0, 1)  # click's own handling says 1
    assert b"error" not in run.stderr
    assert b"Traceback" not in run.stderr


def test_generate_interrupted(propolis, monkeypatch):
    """Ctrl-C ends an answer with the code of interrupted programs; what was said is out."""
    from propolis_workers.llm.engine import Engine

    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(Engine, "decode_likeliest", interrupted)
    run = propolis("generate", "the", typed=True)
    assert (130, "r") == (run.code, run.out)
    assert run.err.endswith("interrupted\n")


ENDS = [(KeyboardInterrupt(), 130), (DeviceLostError("gone"), 3), (RuntimeError("odd"), 70)]


@pytest.mark.parametrize(("raised", "code"), ENDS, ids=["ctrl-c", "error", "bug"])
@pytest.mark.parametrize("command", [("generate", "the"), ("generate", "the", "--json"), ("chat",)])
def test_the_summary_comes_however_it_ends(propolis, monkeypatch, command, raised, code):
    """What served which ops is said before the error, on standard error alone."""
    from propolis_workers.llm.engine import Engine

    def fails(*_):
        raise raised

    monkeypatch.setattr(Engine, "decode_likeliest", fails)
    run = propolis(*command, "-n", "6", stdin="the\n")
    assert run.code == code
    *_, summary, end = [line for line in run.err.splitlines() if line]
    assert summary.startswith("placement: 8 of 8 ops on cpu by cpu_ref (propolis-cpu-ref ")
    assert end.startswith(("error: ", "interrupted"))
    assert "placement" not in run.out


def test_no_summary_of_nothing(propolis, tmp_path):
    """Where no op was bound there is none."""
    run = propolis("generate", "the", "-m", str(tmp_path / "none.gguf"))
    assert (run.code, run.err.count("\n")) == (2, 1)


def test_a_talk_ends_with_the_summary(propolis, monkeypatch):
    """Also one in which no answer was complete."""
    from propolis_workers.llm.engine import Engine

    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(Engine, "decode_likeliest", interrupted)
    run = propolis("chat", stdin="the\n", typed=True)
    assert run.code == 0
    assert run.err.splitlines()[-1].startswith("placement: 8 of 8 ops on cpu by ")


def test_json_lines(monkeypatch, capsys, tiny_gguf):
    """With --log-format json the notes, rates and the summary are objects too."""
    for arguments, first, last in (
        (("-n", "2"), "loaded tiny.gguf (", "placement: "),
        (("--context", "3"), "the prompt ", "the prompt "),
    ):
        with pytest.raises(SystemExit):
            main(["--log-format", "json", "llm", "generate", "a", "-m", str(tiny_gguf), *arguments])
        found = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
        assert {line["event"] for line in found} <= {"cli.text", "cli.error"}
        said = [line.get("text", line.get("message")) for line in found]
        assert said[0].startswith(first)
        assert said[-1].startswith(last)


def test_progress_on_a_terminal(propolis, llm, monkeypatch):
    """On a terminal a bar shows how much is loaded, on standard error alone."""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    run = propolis("generate", "the", "-n", "8")
    assert (0, answered(llm) + "\n") == (run.code, run.out)
    assert "loaded tiny.gguf" in run.err


def test_package():
    """What the package offers is there, and nothing else."""
    import propolis_workers.llm as package

    assert all(getattr(package, name) for name in package.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        package.nothing  # noqa: B018
