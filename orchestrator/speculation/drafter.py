"""Who guesses the tokens to come."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

SpeculationKind = Literal["auto", "off", "ngram", "draft"]


@dataclass(frozen=True, slots=True)
class Draft:
    """Guesses at the tokens that follow.

    Attributes:
        tokens: in their order; may be empty.
        kinds: of each: guesses of one kind have about the same chance to be right, if those before
            them are; a higher kind has a better one.
    """

    tokens: tuple[int, ...] = ()
    kinds: tuple[int, ...] = ()


class Drafter(Protocol):
    """Guesses for one request; whatever it guesses, the answer stays what it is.

    Attributes:
        takes_time: whether `guess` is to run beside the passes; one that does not is at once done.
    """

    takes_time: bool

    async def guess(self, ids: Sequence[int], num_certain: int, most: int) -> Draft:
        """Guess at most `most` tokens that follow `ids`.

        Args:
            ids: prompt and answer, then guesses that are not verified yet; not to be kept.
            num_certain: how many of them will not change any more.
            most: above 0.
        """

    async def aclose(self) -> None:
        """Free what was held for the request."""
