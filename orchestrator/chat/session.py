"""The loop of a chat: a turn is read, answered or obeyed, and the next one is read."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from orchestrator.asking import AnswerOptions
from orchestrator.chat.attention import Attention
from orchestrator.chat.console import Console
from orchestrator.chat.reply import Reply
from orchestrator.chat.room import Room
from orchestrator.chat.talk import SaveRefused, Talk
from orchestrator.chat.turns import NoText, Turn, read_turn
from orchestrator.failures import OpRejected
from orchestrator.interruption import Interrupted
from orchestrator.pipeline import Pipeline
from orchestrator.request import RequestRefused

HELP = """\
/reset          forget everything but the system message
/undo           forget the last question and its answer
/system TEXT    a new system message from the next answer on; without TEXT none
/save FILE      write the messages as JSON; /save! writes over a file that is there
/help           this
/quit           end, as Ctrl-D does
//TEXT          a question that begins with a slash
A line that ends with \\ goes on in the next one; lines between \"\"\" and \"\"\" are one question.
Ctrl-C stops an answer; twice at the prompt, it ends the chat."""


class Session:
    """One chat, up to its end.

    Args:
        pipeline: the model.
        room: where it works.
        console: where the chat is read and shown.
        attention: tells what signals do.
        talk: what has been said.
        options: how to generate.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        room: Room,
        console: Console,
        attention: Attention,
        talk: Talk,
        options: AnswerOptions,
    ) -> None:
        self._pipeline = pipeline
        self._room = room
        self._console = console
        self._attention = attention
        self._talk = talk
        self._options = options
        self._commands: dict[str, Callable[[str], None]] = {
            "help": lambda _: console.tell(HELP),
            "reset": self._reset,
            "undo": self._undo,
            "system": self._system,
            "save": lambda name: self._save(name, overwrite=False),
            "save!": lambda name: self._save(name, overwrite=True),
        }

    def run(self) -> None:
        """Chat until the user ends it.

        Raises:
            Interrupted: a signal ended it.
            StageFailure: a stage was lost and could not be brought back.
            RequestRefused, OpRejected: a question of a pipe cannot be answered; at a terminal the
                user is told and asked on.
            OutputClosed, OutputFailed: the answer cannot be shown.
        """
        while (turn := self._next()) is not None and turn.command not in ("quit", "exit"):
            if turn.command is not None:
                self._obey(turn.command, turn.text)
            elif turn.text.strip():
                self._answer(turn.text)
            if self._attention.ending is not None:
                raise Interrupted(self._attention.ending)

    def _next(self) -> Turn | None:
        """Return the next turn; None where there is no more.

        Raises:
            Interrupted: a signal came, or Ctrl-C twice.
        """
        warned = False
        while True:
            try:
                with self._attention.to(_raise):
                    return read_turn(self._console.read_line)
            except EOFError:
                self._console.end_prompt()
                return None
            except NoText as error:
                self._console.tell(f"error: {error}")
            except KeyboardInterrupt:
                self._console.end_prompt()
                if warned or not self._console.is_terminal:
                    raise Interrupted(signal.SIGINT) from None
                warned = True
                self._console.tell("Ctrl-C again, or Ctrl-D, ends the chat")

    def _answer(self, question: str) -> None:
        messages = self._talk.to_ask(question)
        reply = Reply(self._pipeline, messages, self._options, self._console)
        try:
            with self._attention.to(lambda number: self._room.soon(reply.stop)):
                self._room.begin(reply.run()).result()
        except (RequestRefused, OpRejected) as error:
            if not self._console.is_terminal:
                raise
            self._console.tell(f"error: {error}")
            return
        if reply.is_whole or reply.text:
            self._talk.add(question, reply.text, stopped=not reply.is_whole)
            self._console.tell(reply.summary())
        else:
            self._console.tell("stopped before the first word; the question is forgotten")

    def _obey(self, name: str, text: str) -> None:
        act = self._commands.get(name)
        if act is None:
            self._console.tell(
                f"there is no command /{name}; /help names them, and // begins a question with a "
                "slash"
            )
        else:
            act(text)

    def _reset(self, text: str) -> None:
        self._talk.messages.clear()
        self._console.tell("everything is forgotten but the system message")

    def _undo(self, text: str) -> None:
        was_there = self._talk.undo()
        self._console.tell(
            "the last question and its answer are forgotten"
            if was_there
            else "there is nothing to forget"
        )

    def _system(self, text: str) -> None:
        self._talk.system = text or None
        self._console.tell("the system message is new" if text else "there is no system message")

    def _save(self, name: str, *, overwrite: bool) -> None:
        if not name:
            self._console.tell("give a file: /save FILE")
            return
        try:
            self._talk.save(Path(name).expanduser(), overwrite=overwrite)
        except SaveRefused as error:
            self._console.tell(f"error: {error}")
        else:
            self._console.tell(f"saved: {name}")


def _raise(number: signal.Signals) -> NoReturn:
    """End the wait for a line."""
    if number is signal.SIGINT:
        raise KeyboardInterrupt
    raise Interrupted(number)
