"""What has been said in a chat."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


class SaveRefused(Exception):
    """A chat that cannot be written there; one sentence."""


@dataclass(slots=True)
class Talk:
    """The messages so far, a system message apart.

    Attributes:
        system: the system message; None for none.
        messages: `{"role", "content"}`, oldest first; an answer that was stopped has
            `"stopped": true` besides.
    """

    system: str | None = None
    messages: list[dict[str, Any]] = field(default_factory=list)

    def to_ask(self, question: str) -> tuple[dict[str, Any], ...]:
        """Return the messages for the chat template, with a question at the end."""
        asked = [*self.all(), {"role": "user", "content": question}]
        return tuple({"role": one["role"], "content": one["content"]} for one in asked)

    def add(self, question: str, answer: str, *, stopped: bool) -> None:
        """Keep a question and its answer."""
        said: dict[str, Any] = {"role": "assistant", "content": answer}
        if stopped:
            said["stopped"] = True
        self.messages += [{"role": "user", "content": question}, said]

    def undo(self) -> bool:
        """Forget the last question and its answer; tell whether there was one."""
        was_there = bool(self.messages)
        del self.messages[-2:]
        return was_there

    def all(self) -> Sequence[dict[str, Any]]:
        """Return every message."""
        if self.system is None:
            return self.messages
        return [{"role": "system", "content": self.system}, *self.messages]

    def save(self, path: Path, *, overwrite: bool) -> None:
        """Write the messages as JSON.

        Raises:
            SaveRefused: it cannot be written, or there is such a file already.
        """
        text = json.dumps(self.all(), ensure_ascii=False, indent=2) + "\n"
        try:
            with path.open("w" if overwrite else "x", encoding="utf-8") as file:
                file.write(text)
        except FileExistsError:
            raise SaveRefused(f"{path} is there already; /save! {path} writes over it") from None
        except OSError as error:
            raise SaveRefused(f"{path} cannot be written: {error.strerror}") from None
