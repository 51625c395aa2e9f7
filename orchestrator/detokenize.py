"""Text from token ids as they come: never half a character, and together exactly the whole text.

A token is not a piece of text: one character may be several tokens, and a tokenizer may join or
strip spaces between two of them. So text is always taken from a window of tokens: the text of
the window with the new token, less the text of the window that was shown before.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

REPLACEMENT = "\ufffd"

# The window grows to this many tokens before it moves on. Each push sends the window once, so
# a larger one costs bytes and a smaller one costs more second calls (one for each move).
WINDOW_TOKENS = 48


class Detokenizer:
    """Turn a growing list of token ids into pieces of text.

    A piece may be empty: the bytes of an unfinished character are held back until it is whole.
    What is still unfinished at the end comes out as U+FFFD, as in the text of all ids.

    Args:
        detokenize: gives the text of some ids (special tokens left out).
        window_tokens: see `WINDOW_TOKENS`.
    """

    def __init__(
        self,
        detokenize: Callable[[Sequence[int]], Awaitable[str]],
        *,
        window_tokens: int = WINDOW_TOKENS,
    ) -> None:
        self._decode = detokenize
        self._window_tokens = window_tokens
        self._ids: list[int] = []
        self._start = 0  # The window is _ids[_start:].
        self._window_text = ""  # What of the window's text was shown.
        self._clean = [0]  # Lengths of _ids at which all text was whole and shown.
        self.text = ""
        self._foreseen: dict[tuple[int, ...], asyncio.Task[str]] = {}

    def foresee(self, tokens: Sequence[int]) -> None:
        """Ask for the text of tokens that will be pushed, all at once.

        Each push asks once, and waits for the answer: behind a slow link, tokens that come many at
        a time would be held up by their text.
        """
        if len(tokens) == 1 and not self._foreseen:
            return
        window = self._ids[self._start :]
        for token_id in tokens:
            window.append(token_id)
            key = tuple(window)
            if key not in self._foreseen:
                self._foreseen[key] = asyncio.create_task(self._asked(key))

    async def aclose(self) -> None:
        """Ask for no more text."""
        tasks = tuple(self._foreseen.values())
        self._foreseen.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def push(self, token_id: int) -> str:
        """Add a token and return the text that became certain with it."""
        self._ids.append(token_id)
        text = await self._detokenize(self._ids[self._start :])
        whole = text.rstrip(REPLACEMENT)
        if not whole.startswith(self._window_text):
            return ""  # Some decoders take back text while a character is unfinished; wait.
        piece = self._show(whole)
        if whole == text:
            self._clean.append(len(self._ids))
            await self._move_window()
        return piece

    async def finish(self) -> str:
        """Return what is left when no more tokens come, checked against the text of all ids."""
        if not self._ids:
            return ""
        text = await self._detokenize(self._ids)
        if text.startswith(self.text):
            piece = text[len(self.text) :]
            self.text = text
            return piece
        # A decoder that rewrote what was shown already; the window's own end is what is left.
        text = await self._detokenize(self._ids[self._start :])
        return self._show(text) if text.startswith(self._window_text) else ""

    async def _detokenize(self, ids: Sequence[int]) -> str:
        """Return the text of some ids; what was foreseen is asked once."""
        task = self._foreseen.pop(tuple(ids), None) if self._foreseen else None
        return await self._decode(ids) if task is None else await task

    async def _asked(self, ids: Sequence[int]) -> str:
        return await self._decode(ids)

    def _show(self, window_text: str) -> str:
        piece = window_text[len(self._window_text) :]
        self._window_text = window_text
        self.text += piece
        return piece

    async def _move_window(self) -> None:
        """Let a long window begin at a later character boundary, with some text before its end.

        The text before its end keeps a decoder from treating the next token as the first of a
        text, where many strip a space.
        """
        if len(self._ids) - self._start < self._window_tokens:
            return
        for start in reversed(self._clean[:-1]):
            if start <= self._start:
                break
            # A boundary within a run of tokens without text does not help: look further back.
            text = await self._detokenize(self._ids[start:])
            if text and self.text.endswith(text.lstrip()):
                self._start, self._window_text = start, text
                self._clean = [length for length in self._clean if length >= start]
                # They begin elsewhere, so nobody will ask for them.
                for key in [key for key, task in self._foreseen.items() if task.done()]:
                    del self._foreseen[key]
                return
