"""Where in a chat's prompt each of its answers began."""

from __future__ import annotations

import asyncio
import hashlib
import json
from array import array
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass

from orchestrator.failures import OpRejected
from orchestrator.request import GenerationRequest

MOST_REMEMBERED = 4096

Tokenizes = Callable[[GenerationRequest, int], Awaitable[tuple[int, ...]]]


@dataclass(frozen=True, slots=True)
class Opening:
    """A prompt that an answer followed, as its length and a digest of its ids."""

    length: int
    digest: bytes

    @staticmethod
    def of(ids: Sequence[int]) -> Opening:
        """Return the opening that all of these ids are."""
        return Opening(len(ids), _digest(ids))

    def begins(self, prompt: Sequence[int]) -> bool:
        """Whether a prompt begins with it."""
        return self.length < len(prompt) and _digest(prompt[: self.length]) == self.digest


class Openings:
    """Knows the prompts that were answered, so that a chat's next turn need not ask for them.

    Args:
        tokenizes: returns the ids of the prompt that the first messages of a request make.
    """

    def __init__(self, tokenizes: Tokenizes) -> None:
        self._tokenizes = tokenizes
        self._known: dict[bytes, Opening] = {}  # The least recently used first.

    async def starts(self, request: GenerationRequest, prompt: Sequence[int]) -> list[int]:
        """Return where the answers begin that follow what was their own prompt, in order.

        Where a template writes earlier turns otherwise than it did when they were the newest, or
        ids merge over the border, or it takes no messages that end so, an answer has no such place.

        Raises:
            StageFailure, ConnectionError: see `Stages.tokenize`.
        """
        keys = dict(_keys(request))
        *earlier, whole = keys
        found = await asyncio.gather(
            *(self._start(request, count, keys[count], prompt) for count in earlier)
        )
        self._remember(keys[whole], Opening.of(prompt))
        return [length for length in found if length is not None]

    async def _start(
        self, request: GenerationRequest, count: int, key: bytes, prompt: Sequence[int]
    ) -> int | None:
        opening = self._known.get(key)
        # A template may have the date in it, so what is known to differ may do so no more.
        if opening is None or not opening.begins(prompt):
            try:
                opening = Opening.of(await self._tokenizes(request, count))
            except OpRejected:
                return None
        self._remember(key, opening)
        return opening.length if opening.begins(prompt) else None

    def _remember(self, key: bytes, opening: Opening) -> None:
        self._known.pop(key, None)
        self._known[key] = opening
        if len(self._known) > MOST_REMEMBERED:
            del self._known[next(iter(self._known))]


def _keys(request: GenerationRequest) -> Iterator[tuple[int, bytes]]:
    """Yield how many messages precede each answer, and last how many there are, with a key."""
    seen = hashlib.sha256(_bytes([request.tools, request.template_options]))
    messages = request.messages or ()
    for count, message in enumerate(messages):
        if count and message.get("role") == "assistant":
            yield count, seen.digest()
        seen.update(_bytes(message))
    yield len(messages), seen.digest()


def _bytes(value: object) -> bytes:
    return json.dumps(value, sort_keys=True).encode() + b"\n"


def _digest(ids: Sequence[int]) -> bytes:
    return hashlib.sha256(array("Q", ids).tobytes()).digest()
