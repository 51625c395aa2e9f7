"""How one family of models writes calls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from orchestrator.tool_calls.call import Call, Function
from orchestrator.tool_calls.cursor import Cursor

Literal = Callable[[str], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Marks:
    """What shows where calls are.

    Attributes:
        name: of the format.
        openers: markers that begin calls, wherever they stand. None begins another.
        edge_openers: single characters that do so where nothing stands before them, in the answer
            or since the last call.
        silent: markers that are never shown.
        separators: characters that may stand between calls, beside white space.
        closers: characters of which one ends every call.
        show_special: whether markers may be special tokens, which text leaves out by default.
        id_prefix: what ids of calls begin with.
        id_chars: how many letters and digits follow.
        takes_text: whether the chat template wants the arguments of earlier calls as JSON text, and
            not decoded.
    """

    name: str
    openers: tuple[str, ...]
    edge_openers: tuple[str, ...] = ()
    silent: tuple[str, ...] = ()
    separators: str = ""
    closers: str = "}]>"
    show_special: bool = True
    id_prefix: str = "call_"
    id_chars: int = 24
    takes_text: bool = False


class Syntax(Protocol):
    """Reads calls, and describes them as a grammar."""

    @property
    def marks(self) -> Marks:
        """What shows where calls are."""

    def read(self, cursor: Cursor, opener: str, functions: Sequence[Function]) -> list[Call]:
        """Return the calls that begin with an opener; the cursor stands behind it.

        Raises:
            MoreNeeded, NoCall: see `Cursor`.
        """

    def forced(self, functions: Sequence[Function], literal: Literal, *, several: bool) -> str:
        """Return the grammar of an answer that calls, in llguidance's dialect of Lark.

        Args:
            functions: that may be called; at least one.
            literal: gives the expression for a marker.
            several: whether there may be more than one call.

        Raises:
            GrammarRefused: a schema of parameters cannot be held to.
        """


def choice(functions: Sequence[Function]) -> str:
    """Return the expression for one of the rules f0, f1 and so on, one for each function."""
    return " | ".join(f"f{i}" for i in range(len(functions)))
