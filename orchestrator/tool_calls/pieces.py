"""What an answer that may call tools consists of."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Text:
    """Text for the user; never empty."""

    text: str


@dataclass(frozen=True, slots=True)
class CallBegun:
    """A call begins.

    Attributes:
        index: of the call in the answer, from 0.
        call_id: what the result of the call is to name.
        name: of the function.
    """

    index: int
    call_id: str
    name: str


@dataclass(frozen=True, slots=True)
class CallArguments:
    """More of the arguments of call `index`; all of a call's joined are one JSON object."""

    index: int
    text: str


Piece = Text | CallBegun | CallArguments
