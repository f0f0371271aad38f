"""The chat on a terminal: lines, commands, Ctrl-C; with a real terminal once, else without."""

from __future__ import annotations

import io
import os
import pty
import select
import signal
import sys
import time
from types import SimpleNamespace

import pytest
from patience import patience

from propolis.cli import main
from propolis_workers.llm.conversation import Conversation
from propolis_workers.llm.engine import Engine
from propolis_workers.llm.history import History
from propolis_workers.llm.lines import history_path


class Typed(io.TextIOWrapper):
    """Standard input that someone types."""

    def isatty(self):
        """It is one."""
        return True


class FakeReadline:
    """What Python's readline is asked for."""

    def __init__(self):
        self.lines, self.auto = ["of somebody else"], True

    def set_auto_history(self, enabled):
        """Whether it keeps every line by itself."""
        self.auto = enabled

    def clear_history(self):
        """Forget all."""
        self.lines.clear()

    def add_history(self, line):
        """Keep one."""
        self.lines.append(line)


@pytest.fixture
def chat(monkeypatch, capsys, tiny_gguf, tmp_path):
    """
    Return a function that chats on a terminal: it gives code, out, err, readline's lines.

    What is typed are lines, and errors that reading one raises.
    """
    monkeypatch.setenv("PROPOLIS_MODEL", str(tiny_gguf))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))

    def run(*typed, options=("-n", "6"), readline=True):
        fake = FakeReadline() if readline else None
        keys = iter(typed)

        def read(prompt):
            assert prompt == "you> "
            key = next(keys, EOFError())
            if isinstance(key, BaseException):
                raise key
            return key

        with monkeypatch.context() as patch:
            patch.setitem(sys.modules, "readline", fake)
            patch.setattr("builtins.input", read)
            patch.setattr(sys, "stdin", Typed(io.BytesIO()))
            patch.setattr(sys.stdout, "isatty", lambda: True)
            with pytest.raises(SystemExit) as caught:
                main(["llm", "chat", *options])
        lines = fake.lines if fake else None
        return SimpleNamespace(
            code=caught.value.code or 0, lines=lines, **capsys.readouterr()._asdict()
        )

    return run


def answers(llm, *said, **options):
    """What a conversation gives when these are said to it."""
    talk = Conversation(llm, **options)
    return ["".join(talk.say(text, max_tokens=6)) for text in said]


def kept():
    """The lines that the next chat would find."""
    return History(history_path(), 1000).lines


# -- lines ---------------------------------------------------------------------


def test_answers_and_the_end(chat, llm):
    """What is typed is answered, and Ctrl-D ends well, with the placement."""
    run = chat("the", "", "  ", "an")
    assert (0, "".join(f"{text}\n" for text in answers(llm, "the", "an"))) == (run.code, run.out)
    assert "\nplacement: " in run.err


def test_history(chat):
    """Lines of earlier chats come before those of this one, and nothing else does."""
    assert ["the", "an"] == chat("the", "an", "an").lines
    assert ["the", "an", "on"] == chat("on").lines
    assert ["the", "an", "on"] == kept()


@pytest.mark.parametrize("how", ["option", "setting"])
def test_no_history(chat, monkeypatch, how):
    """Switched off, no line is read or kept; the arrow keys still have those of this chat."""
    chat("the")
    if how == "setting":
        monkeypatch.setenv("PROPOLIS_CHAT_HISTORY", "0")
    run = chat("secret", options=("-n", "2", *(["--no-history"] * (how == "option"))))
    assert ["secret"] == run.lines
    assert ["the"] == kept()


def test_history_has_a_bound(chat, monkeypatch):
    """The setting says how many lines the next chat finds."""
    monkeypatch.setenv("PROPOLIS_CHAT_HISTORY", "2")
    chat("/help", "a", "b", options=("-n", "1"))
    assert ["a", "b", "c"] == chat("c", options=("-n", "1")).lines


def test_without_readline(chat, llm):
    """Where Python has no readline, a line is what the terminal gives; no file is written."""
    run = chat("the", readline=False)
    assert (0, answers(llm, "the")[0] + "\n") == (run.code, run.out)
    assert not history_path().exists()


def test_history_that_cannot_be(chat, llm, tmp_path):
    """A file that cannot be written is a note, once, and the chat goes on."""
    (tmp_path / "state").touch()
    run = chat("the", "an")
    assert (0, "".join(f"{text}\n" for text in answers(llm, "the", "an"))) == (run.code, run.out)
    assert 1 == run.err.count("note: no history is kept: ")
    assert "--no-history" in run.err


def test_no_home(chat, monkeypatch):
    """So is a user without a home folder."""
    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.setattr("propolis_workers.llm.lines.history_path", no_home)
    run = chat("the")
    assert (0, 1) == (run.code, run.err.count("note: no history is kept: this user has no home"))


def no_home():
    """What the settings say of a user without a home folder."""
    from propolis.errors import ConfigError

    msg = "this user has no home folder"
    raise ConfigError(msg)


def test_what_is_no_text(chat, llm):
    """Bytes that are no UTF-8 are an error, and the chat goes on."""
    run = chat(UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte"), "\udcff", "the")
    assert (0, answers(llm, "the")[0] + "\n") == (run.code, run.out)
    assert "error: what was typed is not UTF-8: invalid start byte\n" in run.err
    assert "error: the text holds a lone surrogate" in run.err


# -- commands --------------------------------------------------------------------


def test_help(chat):
    """All commands are listed, and none is answered."""
    run = chat("/help")
    assert (0, "") == (run.code, run.out)
    for command in ("/help", "/reset", "/exit", "Ctrl-C", "Ctrl-D"):
        assert f"{command} " in run.err or command in run.err.split()
    listed = {line.split()[0] for line in run.err.splitlines() if line.startswith("/")}
    assert listed == {"/help", "/reset", "/exit"}


def test_commands(chat, llm):
    """/reset starts over with the system message, /exit ends, spaces around them are nothing."""
    run = chat("the", " /reset", "the", "/exit ", "an", options=("-n", "6", "--system", "on"))
    text = answers(llm, "the", system="on")[0]
    assert (0, f"{text}\n{text}\n") == (run.code, run.out)


@pytest.mark.parametrize("line", ["/foo", "/?", "/bye"])
def test_no_such_command(chat, line):
    """It is not said to the model; the error lists the commands there are."""
    run = chat(line)
    assert (0, "") == (run.code, run.out)
    assert f"error: no command {line}; there are /help, /reset, /exit\n" in run.err


@pytest.mark.parametrize("line", ["/etc/passwd", "/help me", "/ on", "a /help"])
def test_what_is_no_command(chat, llm, line):
    """What only begins like one is said to the model."""
    run = chat(line)
    assert answers(llm, line)[0] + "\n" == run.out


# -- the context -----------------------------------------------------------------


def test_full_context(chat, llm):
    """The oldest exchanges are dropped, which one line says, and the system message stays."""
    options = ("-n", "6", "--context", "70", "--system", "on")
    run = chat("the", "an", "on", "ll", options=options)
    texts = answers(llm, "the", "an", "on", "ll", context=70, system="on")
    assert "".join(f"{text}\n" for text in texts) == run.out
    notes = [line for line in run.err.splitlines() if line.startswith("note: ")]
    assert notes
    assert notes[0].startswith("note: the context of 70 tokens is full: the ")
    assert "oldest exchange" in notes[0]
    assert "'the'" in notes[0]
    assert notes[0].endswith(" dropped; --context gives more")


def test_full_within_an_answer(chat):
    """An answer that the context ends says so."""
    run = chat("the", options=("-n", "90", "--context", "30"))
    assert (
        "note: the answer ends here: the context of 30 tokens is full; --context gives" in run.err
    )


# -- Ctrl-C ----------------------------------------------------------------------


def interrupt(monkeypatch, call, method="decode_likeliest"):
    """Let the engine's n-th call of a method be interrupted."""
    real, calls = getattr(Engine, method), iter(range(1, 1000))

    def interrupted(self, *args):
        if next(calls) == call:
            raise KeyboardInterrupt
        return real(self, *args)

    monkeypatch.setattr(Engine, method, interrupted)


def test_interrupted_answer(chat, llm, monkeypatch):
    """Ctrl-C ends an answer, not the chat; what was said of it stays in the conversation."""
    with monkeypatch.context() as patch:
        interrupt(patch, 3)
        run = chat("on", "the")
    talk = Conversation(llm)
    turn = talk.say("on", max_tokens=6)
    pieces = iter(turn)
    while len(turn.finish.ids) < 3:
        part = next(pieces)
        shown = turn.finish.text
    assert part
    assert turn.stop()
    then = "".join(talk.say("the", max_tokens=6))
    assert (0, f"{shown}\n{then}\n") == (run.code, run.out)
    assert "interrupted: what was answered so far is kept\n" in run.err


def test_interrupted_before_an_answer(chat, llm, monkeypatch):
    """Where nothing is answered yet, it is as if nothing had been said."""
    with monkeypatch.context() as patch:
        interrupt(patch, 1, "prefill")
        run = chat("on", "the")
    assert (0, f"\n{answers(llm, 'the')[0]}\n") == (run.code, run.out)
    assert "interrupted: what was said last is forgotten\n" in run.err


def test_interrupted_last(chat, monkeypatch):
    """The end says how an answer that was interrupted went."""
    interrupt(monkeypatch, 3)
    run = chat("on")
    assert ", INTERRUPTED\nplacement: " in run.err


def test_interrupted_prompt(chat, llm):
    """At the prompt the first Ctrl-C says how to end, and the second in a row ends."""
    stop = KeyboardInterrupt()
    run = chat(stop, "the", stop, stop, "an")
    assert (0, answers(llm, "the")[0] + "\n") == (run.code, run.out)
    assert 2 == run.err.count("\nCtrl-C again, Ctrl-D or /exit ends")


# -- a terminal --------------------------------------------------------------------


@pytest.mark.slow
def test_on_a_terminal(tiny_gguf, tmp_path, llm):
    """On a real terminal the arrow keys bring lines back, Ctrl-C is heard and Ctrl-D ends."""
    pytest.importorskip("readline", reason="this Python is built without readline")
    environ = {
        **os.environ,
        "TERM": "dumb",
        "INPUTRC": os.devnull,
        "XDG_STATE_HOME": str(tmp_path),
    }
    code = "from propolis.cli import main; main()"
    command = [sys.executable, "-c", code, "llm", "chat", "-n", "6", "-m", str(tiny_gguf)]
    child, terminal = pty.fork()
    if not child:
        # Ignored by all that a shell starts in the background, these tests perhaps.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.execve(command[0], command, environ)  # noqa: S606  (the terminal is this process's)
    with os.fdopen(terminal, "r+b", buffering=0) as keyboard:
        seen = [until(keyboard, b"you> ")]
        for keys in (b"the\n", b"\x1b[A\n"):
            keyboard.write(keys)
            seen.append(until(keyboard, b"you> "))
        seen.append(until(keyboard, b"you> ", b"\x03"))
        end = until(keyboard, None, b"\x04")
    assert 0 == os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    one, two = answers(llm, "the", "the")
    assert "the\n" + one in seen[1]
    assert "the\n" + two in seen[2]
    assert "Ctrl-C again, Ctrl-D or /exit ends" in seen[3]
    assert "placement: " in end
    assert ["the"] == History(tmp_path / "propolis" / "chat_history", 10).lines


def until(terminal, wanted, key=b""):
    """
    All that is shown up to a text, or to the end.

    A key is pressed again while nothing happens: one that comes between the prompt and
    readline's waiting is lost, in any Python program.
    """
    shown, patient = b"", time.monotonic() + patience(60)
    while wanted is None or not shown.endswith(wanted):
        if key and not shown:
            terminal.write(key)
        if not select.select([terminal], [], [], patience(3))[0]:
            assert time.monotonic() < patient, shown
            continue
        try:
            some = terminal.read(1)
        except OSError:  # there is no other side any more
            some = b""
        if not some:
            assert wanted is None, shown
            break
        shown += some
    return shown.decode(errors="replace").replace("\r\n", "\n")
