"""What stages of `history_worker` answer, computed apart: the rule of that file written again."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from itertools import pairwise

NUM_LAYERS = 6
_ROW_BYTES = 8


def expected_tokens(
    prompt: str,
    *,
    num_stages: int,
    prefill_chunk: int,
    max_new_tokens: int,
    temperature: float = 0.0,
    seed: int = 0,
) -> list[int]:
    """Return the answer of a chain of evenly cut stages to one request that nothing disturbs."""
    session = Session(num_stages, prefill_chunk)
    ids = [ord(character) % 100 for character in prompt]
    return session.answer(ids, max_new_tokens, temperature=temperature, seed=seed)


class Session:
    """A chain that keeps all that it was fed, and is fed each turn's news alone.

    Args:
        num_stages: evenly cut stages.
        prefill_chunk: most tokens of a prompt in one op.

    Attributes:
        fed: ids so far.
    """

    def __init__(self, num_stages: int, prefill_chunk: int) -> None:
        bounds = [i * NUM_LAYERS // num_stages for i in range(num_stages + 1)]
        self.fed: list[int] = []
        self._chunk = prefill_chunk
        self._seen = [hashlib.sha256(f"{start}:{end}".encode()) for start, end in pairwise(bounds)]
        self._unfed: list[int] = []

    def answer(
        self,
        prompt: Sequence[int],
        max_new_tokens: int,
        *,
        temperature: float = 0.0,
        seed: int = 0,
        end: int | None = None,
    ) -> list[int]:
        """Return the answer to a prompt that begins with all that was fed.

        The newest token of an answer that was cut off is fed first, as one more of its steps.
        """
        assert list(prompt[: len(self.fed)]) == self.fed
        if self._unfed and self._unfed == list(prompt[len(self.fed) :][:1]):
            self._forward(self._unfed)
        news = list(prompt[len(self.fed) :])
        for start in range(0, len(news), self._chunk):
            last = self._forward(news[start : start + self._chunk])
        new: list[int] = []
        while True:
            position = len(self.fed) - 1
            draw = f"{seed}@{position}".encode() if temperature else b""
            new.append(hashlib.sha256(last + draw).digest()[0] % 100)
            if len(new) == max_new_tokens or new[-1] == end:
                self._unfed = [] if new[-1] == end else new[-1:]
                return new
            last = self._forward(new[-1:])

    def _forward(self, tokens: Sequence[int]) -> bytes:
        rows = [token.to_bytes(_ROW_BYTES, "little") for token in tokens]
        mark = f"|{len(self.fed)}+{len(tokens)}".encode()
        for seen in self._seen:
            hashed = []
            for row in rows:
                seen.update(row + mark)
                hashed.append(seen.digest()[:_ROW_BYTES])
            rows = hashed
        self.fed += tokens
        return rows[-1]
