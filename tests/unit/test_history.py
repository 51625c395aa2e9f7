"""Requests that rest: their hidden states go first, and a lost stage is not sent them again."""

from __future__ import annotations

from orchestrator.chunk import Chunk
from orchestrator.recovery.history import History
from worker.protocol.ops import HiddenReply

NUM_STAGES = 2


def fill(history: History, rid: str, tokens: int) -> None:
    """Note a chunk on both stages, of one byte of hidden states a token."""
    chunk = Chunk((1,) * tokens, 0)
    history.add(0, rid, chunk, None)
    history.add(1, rid, chunk, HiddenReply(seq_len=tokens, hidden_b64=b"x" * tokens))


def test_hidden_states_of_what_rests_go_before_those_of_larger_requests() -> None:
    history = History(NUM_STAGES, 100)
    for rid, tokens in (("rests", 20), ("lives", 70)):
        fill(history, rid, tokens)
    history.rest("rests")
    fill(history, "new", 30)
    assert {rid: history.bytes_of(rid) for rid in history.rids(1)} == {
        "rests": 0,
        "lives": 70,
        "new": 30,
    }


def test_where_nothing_rests_with_hidden_states_the_largest_goes() -> None:
    history = History(NUM_STAGES, 100)
    for rid, tokens in (("rests", 60), ("lives", 50)):
        if tokens == 50:
            history.rest("rests")
        fill(history, rid, tokens)
    fill(history, "new", 60)
    assert (history.bytes_of("rests"), history.bytes_of("lives")) == (0, 50)
    assert history.bytes_of("new") == 0


def test_a_lost_stage_is_sent_what_lives_alone() -> None:
    history = History(NUM_STAGES, 100)
    for rid in ("rests", "lives", "woken"):
        fill(history, rid, 10)
    history.rest("rests")
    history.rest("woken")
    history.wake("woken")
    history.forget_resting()
    assert (history.rids(0), history.positions(1), history.has("rests")) == (
        ["lives", "woken"],
        20,
        False,
    )
    assert history.held_bytes == 20


def test_what_a_stage_had_freed_is_known_until_the_request_wakes_again() -> None:
    history = History(NUM_STAGES, 100)
    fill(history, "r", 10)
    told = [history.was_rebuilt("r")]
    history.note_rebuilt("r")
    told.append(history.was_rebuilt("r"))
    history.rest("r")
    history.wake("r")
    assert [*told, history.was_rebuilt("r"), history.was_rebuilt("gone")] == [
        False,
        True,
        False,
        False,
    ]
