"""The text of one answer as it may be shown: whole characters, up to the first stop string."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from orchestrator.detokenize import Detokenizer
from orchestrator.stop import StopFilter


class AnswerText:
    """Turn token ids into text that may be shown at once."""

    def __init__(
        self, detokenize: Callable[[Sequence[int]], Awaitable[str]], stops: Sequence[str]
    ) -> None:
        self._detokenizer = Detokenizer(detokenize)
        self._stops = StopFilter(stops)

    @property
    def matched(self) -> str | None:
        """The stop string that ended the text, if one did."""
        return self._stops.matched

    def foresee(self, tokens: Sequence[int]) -> None:
        """Have the text of tokens made that will be pushed, all at once."""
        self._detokenizer.foresee(tokens)

    async def push(self, token_id: int) -> str:
        """Add a token and return what may be shown."""
        return self._stops.push(await self._detokenizer.push(token_id))

    async def finish(self) -> str:
        """Return what is left to show when no more tokens come."""
        rest = self._stops.push(await self._detokenizer.finish())
        return rest + self._stops.finish()

    async def aclose(self) -> None:
        """Ask for no more text."""
        await self._detokenizer.aclose()
