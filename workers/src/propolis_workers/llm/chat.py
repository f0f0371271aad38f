"""A chat on the command line: what is said, what commands do, and what Ctrl-C ends."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING
from typing import Any
from typing import Final

import click

from propolis.errors import UsageError
from propolis_workers.arguments import shown


if TYPE_CHECKING:
    from collections.abc import Callable

    from propolis_workers.llm.conversation import Conversation
    from propolis_workers.llm.conversation import Turn
    from propolis_workers.llm.generation import Generation
    from propolis_workers.llm.lines import Lines

COMMANDS: Final = {
    "/help": "list these commands",
    "/reset": "start over: all but the system message is forgotten",
    "/exit": "end the chat; so does Ctrl-D",
}


class Chat:
    """
    One conversation with who types, or with a script.

    Attributes:
        refused: lines that were no command, or could not be answered.
    """

    def __init__(
        self,
        conversation: Conversation,
        lines: Lines,
        show: Callable[[Generation], None],
        **options: Any,
    ) -> None:
        """
        Prepare to talk.

        Args:
            conversation: with the model.
            lines: what is said to it.
            show: prints an answer as it comes.
            options: of each answer, as :meth:`Conversation.say` takes them.
        """
        self._conversation = conversation
        self._lines = lines
        self._show = show
        self._options = options
        self._last: Turn | None = None
        self.refused = 0

    def run(self) -> Turn | None:
        """
        Talk until the end.

        Returns:
            The last answer, None where there was none.

        Raises:
            KeyboardInterrupt: Ctrl-C, where nobody types.
        """
        asked_to_end = False
        while True:
            try:
                line = self._lines.next()
            except UsageError as exc:
                self._refuse(str(exc))
                continue
            except KeyboardInterrupt:
                if not self._lines.typed:
                    raise
                if asked_to_end:
                    return self._last
                asked_to_end = True
                click.echo("\nCtrl-C again, Ctrl-D or /exit ends; /help lists commands", err=True)
                continue
            asked_to_end = False
            said = "/exit" if line is None else line
            if said.strip() == "/exit":
                return self._last
            if re.fullmatch("/[a-z?]+", said.strip()):
                self._command(said.strip())
            elif said.strip():
                self._answer(said)

    def _command(self, name: str) -> None:
        if name == "/reset":
            self._conversation.reset()
        elif name == "/help":
            for command, meaning in COMMANDS.items():
                click.echo(f"{command:8}{meaning}", err=True)
            click.echo("Ctrl-C  stop an answer; what was said of it is kept", err=True)
        else:
            self._refuse(f"no command {name}; there are {', '.join(COMMANDS)}")

    def _answer(self, said: str) -> None:
        turn = None
        try:
            turn = self._conversation.say(said, **self._options)
            self._say_what_is_dropped(turn)
            self._show(turn)
        except UsageError as exc:
            self._refuse(f"{exc}; the chat goes on without it")
            return
        except KeyboardInterrupt:
            if not self._lines.typed:
                raise
            kept = turn is not None and turn.stop()
            click.echo()  # the answer's last line
            what = "what was answered so far is kept" if kept else "what was said last is forgotten"
            click.echo(f"interrupted: {what}", err=True)
            if not kept:
                return
        self._last = turn
        if turn is not None and turn.finish.stop_reason == "CONTEXT_FULL":
            text = (
                f"note: the answer ends here: the context of {self._conversation.capacity} tokens "
            )
            click.echo(f"{text}is full; --context gives more", err=True)

    def _refuse(self, why: str) -> None:
        self.refused += 1
        click.echo(f"error: {why}", err=True)

    def _say_what_is_dropped(self, turn: Turn) -> None:
        texts = [shown(one["content"]) for one in turn.dropped if one["role"] == "user"]
        if not texts:
            return
        which = f"oldest exchange ({texts[0]}) is"
        if len(texts) > 1:
            which = f"{len(texts)} oldest exchanges ({texts[0]} to {texts[-1]}) are"
        text = f"note: the context of {self._conversation.capacity} tokens is full: "
        click.echo(f"{text}the {which} dropped; --context gives more", err=True)


__all__ = ["COMMANDS", "Chat"]
