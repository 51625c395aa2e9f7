"""Incremental text: what is asked of the stage, and when pieces come."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from orchestrator.detokenize import Detokenizer


def push_all(ids: Sequence[int], window_tokens: int) -> tuple[list[str], list[int]]:
    """Return the pieces, and the length of each list of ids that was asked about."""
    asked: list[int] = []

    async def detokenize(some: Sequence[int]) -> str:
        asked.append(len(some))
        return bytes(some).decode("utf-8", "replace")

    async def run() -> list[str]:
        detokenizer = Detokenizer(detokenize, window_tokens=window_tokens)
        return [await detokenizer.push(i) for i in ids] + [await detokenizer.finish()]

    return asyncio.run(run()), asked


def test_a_character_of_four_tokens_comes_with_its_last() -> None:
    pieces, _ = push_all("x🦙y".encode(), 48)
    assert pieces == ["x", "", "", "", "🦙", "y", ""]


def test_half_a_character_at_the_end_is_flushed_as_one_replacement() -> None:
    pieces, _ = push_all("x🦙".encode()[:-1], 48)
    assert pieces == ["x", "", "", "", "\ufffd"]


def test_the_window_bounds_what_a_token_costs() -> None:
    ids = b"a long answer, " * 100
    _, asked = push_all(ids, 16)
    assert max(asked[:-1]) <= 16  # The last is the check of the whole text.
    assert len(asked) < 1.2 * len(ids)


def test_no_tokens_no_text() -> None:
    assert push_all([], 48) == ([""], [])
