"""How prompts are cut into pieces, what two of them share, and where a chat's answers are."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from orchestrator.chunk import Chunk
from orchestrator.failures import OpRejected
from orchestrator.prefixes import Reuse
from orchestrator.prefixes.canon import answers_of, canonical, cut, ops, shared, steps
from orchestrator.prefixes.openings import Openings
from orchestrator.prefixes.pool import Pool
from orchestrator.request import GenerationRequest
from tests.support.history_worker import ANSWER, END, QUESTION, chat_ids

IDS = tuple(range(1, 13))


def test_chunks_are_counted_from_the_start_and_from_each_answers_end() -> None:
    assert canonical(IDS, 3, [(4, 6)]) == (
        Chunk((1, 2, 3), 0),
        Chunk((4,), 3),
        steps((5, 6), 4),
        Chunk((7, 8, 9), 6),
        Chunk((10, 11, 12), 9),
    )


@pytest.mark.parametrize(
    ("starts", "expected"),
    [
        ([1], [(1, 3)]),
        ([1, 5], [(1, 3), (5, 6)]),
        ([0], []),  # no prompt before it
        ([3], []),  # it is empty
        ([7], []),  # nothing ends it
        ([1, 2], [(1, 3)]),
    ],
)
def test_an_answer_goes_up_to_the_first_end_of_text(
    starts: list[int], expected: list[tuple[int, int]]
) -> None:
    assert answers_of([9, 1, 2, 0, 5, 6, 0, 7, 8], starts, {0}) == expected


@pytest.mark.parametrize(
    ("kept", "length"),
    [
        (canonical(IDS, 3), 3),  # its second chunk is longer than the wanted one
        (canonical(IDS, 3, [(4, 6)]), 9),  # the last piece is computed again
        (canonical(IDS[:9], 3, [(4, 8)]), 6),  # what was a step is wanted in a chunk
        (canonical(IDS[:9], 3, [(4, 5)]), 5),
        ((*canonical(IDS[:4], 3), steps((5, 99, 100), 4)), 5),
        (canonical((1, 2, 99, 4), 3), 0),
        (canonical(IDS, 2, [(4, 6)]), 0),
    ],
)
def test_only_what_was_computed_as_it_is_wanted_is_shared(kept: Any, length: int) -> None:
    assert shared(kept, canonical(IDS, 3, [(4, 6)])) == length


def test_steps_go_in_ops_of_bounded_size_and_one_alone_is_a_step() -> None:
    pieces = canonical(range(100, 240), 4, [(4, 133)])
    sent = ops(pieces, 0)
    assert [(len(one.tokens), one.position, one.as_steps) for one in sent] == [
        (4, 0, False),
        (64, 4, True),
        (64, 68, True),
        (1, 132, False),
        (4, 133, False),
        (3, 137, False),
    ]
    assert ops(pieces, 132) == sent[3:]
    assert [one.position for one in ops(pieces, 30)] == [30, 94, 133, 137]


def test_a_chunk_is_not_cut_and_steps_are() -> None:
    pieces = canonical(IDS, 3, [(4, 6)])
    assert cut(pieces, 2) == []
    assert cut(pieces, 5) == [*pieces[:2], steps((5,), 4)]
    assert cut(pieces, 12) == list(pieces)


@pytest.mark.parametrize(
    ("asked", "capabilities", "done"),
    [
        (Reuse.TURNS, {"crop", "as_steps"}, Reuse.TURNS),
        (Reuse.TURNS, {"crop"}, Reuse.CHUNKS),
        (Reuse.TURNS, {"as_steps"}, Reuse.OFF),
        (Reuse.CHUNKS, {"crop", "as_steps"}, Reuse.CHUNKS),
        (Reuse.OFF, {"crop", "as_steps"}, Reuse.OFF),
    ],
)
def test_the_stages_limit_what_is_reused(asked: Reuse, capabilities: set[str], done: Reuse) -> None:
    assert asked.within(capabilities) is done


def test_a_cache_is_left_to_its_chat_where_more_would_be_lost_than_saved() -> None:
    pool = Pool(most_caches=8, most_positions=1000)
    for name, length in (("long", 20), ("short", 6)):
        pool.keep(pool.begin(name), canonical(range(length), 2))
    assert pool.take(canonical([0, 1, 2, 3, 77], 2)) == ("short", 4)
    assert pool.take(canonical([0, 1, 2, 3, 77], 2)) is None


def test_requests_that_come_at_once_cost_one_kept_cache_each() -> None:
    pool = Pool(most_caches=48, most_positions=100_000)
    for number in range(48):
        pool.keep(pool.begin(f"kept-{number}"), canonical(range(8), 2))
    dropped = []
    for number in range(16):  # None of what is given up has been freed yet.
        pool.begin(f"new-{number}")
        dropped += pool.surplus()
    assert dropped == [f"kept-{number}" for number in range(16)]
    # Their names are still known to the stages.
    assert (len(pool.idle), pool.begin("kept-3"), pool.surplus()) == (32, "kept-3~2", ["kept-16"])


def asked_for(messages: list[tuple[str, str]], rules: list[Any]) -> tuple[list[int], list[int]]:
    """Return where answers begin, and how many messages were tokenized each time."""
    counts: list[int] = []

    async def tokenizes(request: GenerationRequest, count: int) -> tuple[int, ...]:
        counts.append(count)
        return tuple(chat_ids(messages[:count]))

    async def run() -> list[int]:
        openings = Openings(tokenizes)
        found: list[int] = []
        for count, prompt in rules:
            told = tuple({"role": role, "content": text} for role, text in messages[:count])
            request = GenerationRequest(request_id="r", messages=told)
            found = await openings.starts(request, prompt)
        return found

    return asyncio.run(run()), counts


CHAT = [("user", "1"), ("assistant", "2 3"), ("user", "4"), ("assistant", "5"), ("user", "6")]


def test_what_was_answered_before_is_not_tokenized_again() -> None:
    turns = [(count, chat_ids(CHAT[:count])) for count in (1, 3, 5)]
    assert chat_ids(CHAT[:3]) == [QUESTION, 1, END, ANSWER, 2, 3, END, QUESTION, 4, END, ANSWER]
    assert asked_for(CHAT, turns) == ([4, 11], [])
    assert asked_for(CHAT, turns[2:]) == ([4, 11], [1, 3])


def test_a_turn_that_the_template_writes_otherwise_later_has_no_answer_of_its_own() -> None:
    other = [QUESTION, 1, END, ANSWER, 2, 3, END, QUESTION, 99, END, ANSWER, 5, END]
    assert asked_for(CHAT, [(5, other)]) == ([4], [1, 3])


def test_an_answer_whose_own_prompt_the_template_refuses_has_no_place() -> None:
    async def refuses(request: GenerationRequest, count: int) -> tuple[int, ...]:
        raise OpRejected(0, "local", "tokenize", "bad_field", "roles must alternate")

    messages = tuple({"role": role, "content": text} for role, text in CHAT)
    request = GenerationRequest(request_id="r", messages=messages)
    assert asyncio.run(Openings(refuses).starts(request, chat_ids(CHAT))) == []
