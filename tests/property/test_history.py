"""Whatever a stage was sent, what is kept of it brings another stage to the same state."""

from __future__ import annotations

import base64
from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from orchestrator.chunk import Chunk
from orchestrator.recovery.history import Entry, History
from orchestrator.recovery.replay import MOST_ROWS, packed
from tests.support.history_worker import BoundaryBackend
from worker.handlers import Handlers
from worker.protocol.ops import HiddenReply, Request
from worker.protocol.payload import encode_base64
from worker.protocol.stage import StageSlice
from worker.sessions import Sessions
from worker.stopwatch import Stopwatch

FIRST, MIDDLE = StageSlice(0, 2, 6), StageSlice(2, 4, 6)
# How far back an op begins, how many tokens it has: mostly decode steps.
SENT = st.lists(
    st.tuples(st.sampled_from([0, 0, 0, 0, 1, 2, 5, 99]), st.sampled_from([1, 1, 1, 2, 4])),
    min_size=1,
    max_size=30,
)


class Stage:
    """A worker's handlers over a backend that hashes all it was sent."""

    def __init__(self, own: StageSlice) -> None:
        backend = BoundaryBackend(own)
        sessions = Sessions(backend.new_cache, 9, None, lambda rid, freed: None)
        self._handlers = Handlers(own, backend, sessions)

    def call(self, request: Request[Any]) -> Any:
        return self._handlers.handle(request, Stopwatch())


def play(sent: list[tuple[int, int]], history: History, first: Stage, middle: Stage) -> int:
    """Send ops as the law of positions allows; return the position that is due next."""
    end = token = 0
    for back, size in sent:
        position = max(0, end - back)
        chunk = Chunk(tuple(range(token % 90, token % 90 + size)), position)
        token += size
        hidden = first.call(chunk.first_op("r"))
        history.add(0, "r", chunk, None)
        middle.call(chunk.middle_op("r", hidden, with_tokens=False))
        history.add(1, "r", chunk, hidden)
        end = position + size
    return end


def one_by_one(entry: Entry) -> list[Entry]:
    """Undo packing: what `as_steps` means."""
    chunk, hidden = entry.chunk, entry.hidden
    if not chunk.as_steps:
        return [entry]
    chunks = [Chunk((token,), chunk.position + i) for i, token in enumerate(chunk.tokens)]
    if hidden is None:
        return [Entry(chunk, None) for chunk in chunks]
    assert hidden.seq_len == len(chunks)
    size = len(decoded(hidden)) // len(chunks)
    rows = [decoded(hidden)[i * size : (i + 1) * size] for i in range(len(chunks))]
    return [
        Entry(chunk, replace(hidden, seq_len=1, hidden_b64=encode_base64(row)))
        for chunk, row in zip(chunks, rows, strict=True)
    ]


@given(sent=SENT, packs=st.booleans(), limit_bytes=st.sampled_from([0, 200, 10**9]))
def test_a_replay_gives_the_stage_its_state(
    sent: list[tuple[int, int]], packs: bool, limit_bytes: int
) -> None:
    history = History(2, limit_bytes)
    first, middle = Stage(FIRST), Stage(MIDDLE)
    end = play(sent, history, first, middle)
    new_first, new_middle = Stage(FIRST), Stage(MIDDLE)
    for index, stage in enumerate((new_first, new_middle)):
        entries = history.entries(index, "r")
        for entry in packed(entries) if packs else entries:
            for step in one_by_one(entry):
                # Without its hidden states an entry takes them from a replay of the stage before.
                hidden = step.hidden
                if index == 0:
                    stage.call(step.chunk.first_op("r"))
                    continue
                if hidden is None:
                    hidden = new_first.call(step.chunk.first_op("again"))
                stage.call(step.chunk.middle_op("r", hidden, with_tokens=False))
    due = Chunk((7,), end) if end else Chunk((7, 8), 0)
    old, new = first.call(due.first_op("r")), new_first.call(due.first_op("r"))
    assert old == new
    assert middle.call(due.middle_op("r", old, with_tokens=False)) == new_middle.call(
        due.middle_op("r", old, with_tokens=False)
    )
    assert history.held_bytes <= limit_bytes
    assert history.peak_bytes <= limit_bytes
    history.forget("r")
    assert (history.held_bytes, history.rids(0), history.positions(1)) == (0, [], 0)


@given(
    steps=st.lists(st.booleans(), max_size=200),
)
def test_only_decode_steps_that_follow_each_other_are_packed(steps: list[bool]) -> None:
    entries, position = [Entry(Chunk((1, 2), 0), None)], 2
    for is_step in steps:
        size = 1 if is_step else 2
        entries.append(Entry(Chunk((3,) * size, position), None))
        position += size
    joined = list(packed(entries))
    assert [step for entry in joined for step in one_by_one(entry)] == entries
    assert all(len(entry.chunk.tokens) <= MOST_ROWS for entry in joined)
    runs = "".join("s" if is_step else "p" for is_step in steps).split("p")
    assert sum(entry.chunk.is_step for entry in joined) == sum(
        -(-len(run) // MOST_ROWS) for run in runs
    )


def decoded(hidden: HiddenReply) -> bytes:
    return base64.b64decode(hidden.hidden_b64)
