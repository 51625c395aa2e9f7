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
    bounds = [i * NUM_LAYERS // num_stages for i in range(num_stages + 1)]
    stages = [hashlib.sha256(f"{start}:{end}".encode()) for start, end in pairwise(bounds)]

    def forward(tokens: Sequence[int], position: int) -> bytes:
        rows = [token.to_bytes(_ROW_BYTES, "little") for token in tokens]
        mark = f"|{position}+{len(tokens)}".encode()
        for seen in stages:
            hashed = []
            for row in rows:
                seen.update(row + mark)
                hashed.append(seen.digest()[:_ROW_BYTES])
            rows = hashed
        return rows[-1]

    ids = [ord(character) % 100 for character in prompt]
    for start in range(0, len(ids), prefill_chunk):
        last = forward(ids[start : start + prefill_chunk], start)
    new: list[int] = []
    while True:
        position = len(ids) + len(new) - 1
        draw = f"{seed}@{position}".encode() if temperature else b""
        new.append(hashlib.sha256(last + draw).digest()[0] % 100)
        if len(new) == max_new_tokens:
            return new
        last = forward(new[-1:], position + 1)
