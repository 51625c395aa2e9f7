"""Sessions: the law of positions, the masks, the bounds."""

from __future__ import annotations

import pytest

from tests.support.history_backend import ROW_BYTES, HistoryCache
from worker.protocol.ops import RequestId
from worker.protocol.schema import ErrorCode, ProtocolError
from worker.sessions import Sessions, Turn


class Desk:
    """Sessions with a way to fill them."""

    def __init__(
        self, max_sessions: int = 9, budget_bytes: int | None = None, can_crop: bool = True
    ) -> None:
        self.evicted: list[tuple[RequestId, int]] = []
        self.sessions = Sessions(
            lambda batch: HistoryCache(batch, can_crop),
            max_sessions,
            budget_bytes,
            lambda rid, freed: self.evicted.append((rid, freed)),
        )

    def enter(
        self, rid: RequestId, position: int, batch: int = 1, n: int = 1, mask: bytes | None = None
    ) -> Turn:
        return self.sessions.enter(rid, position, batch, n, mask)

    def work(
        self, rid: RequestId, position: int, batch: int = 1, n: int = 1, mask: bytes | None = None
    ) -> Turn:
        turn = self.enter(rid, position, batch, n, mask)
        for rows in turn.session.cache.rows:
            rows += [bytes(ROW_BYTES)] * n
        self.sessions.commit((rid, turn))
        return turn

    def refusal(self, rid: RequestId, position: int, batch: int = 1) -> ErrorCode:
        with pytest.raises(ProtocolError) as caught:
            self.enter(rid, position, batch)
        return caught.value.code


def test_the_law_of_positions() -> None:
    desk = Desk()
    lengths = [
        desk.work("a", 0, n=3).session.cache.length,
        desk.work("a", 3).session.cache.length,
        desk.work("a", 2, n=1).session.cache.length,
        desk.work("a", 0, n=2).session.cache.length,
    ]
    assert lengths == [3, 4, 3, 2]


@pytest.mark.parametrize(
    ("rid", "position", "batch", "code"),
    [
        ("never", 1, 1, ErrorCode.NO_SESSION),
        ("a", 4, 1, ErrorCode.BAD_POSITION),
        ("a", 3, 2, ErrorCode.BAD_FIELD),
        ("a", 1, 2, ErrorCode.BAD_FIELD),
    ],
)
def test_what_the_law_refuses_changes_nothing(
    rid: str, position: int, batch: int, code: ErrorCode
) -> None:
    desk = Desk()
    turn = desk.work("a", 0, n=3)
    assert desk.refusal(rid, position, batch) == code
    assert (turn.session.cache.length, desk.sessions.held) == (3, (3 * ROW_BYTES, 1))


def test_a_restart_that_fails_leaves_the_old_session() -> None:
    desk = Desk()
    desk.work("a", 0, n=3)
    desk.enter("a", 0, n=2)  # Never committed.
    assert desk.work("a", 3).session.cache.length == 4


def test_a_state_that_cannot_go_back_says_what_to_do() -> None:
    desk = Desk(can_crop=False)
    desk.work("a", 0, n=3)
    with pytest.raises(ProtocolError, match="start again at position 0") as caught:
        desk.enter("a", 2)
    assert caught.value.code is ErrorCode.BAD_POSITION
    assert desk.work("a", 0).session.cache.length == 1


def test_masks_are_kept_per_sequence_and_filled_with_ones() -> None:
    desk = Desk()
    masks = [
        desk.work("a", 0, batch=2, n=2, mask=b"\0\1\1\1").mask,
        desk.work("a", 2, batch=2).mask,
        desk.work("a", 1, batch=2, n=1, mask=b"\0\1").mask,
        desk.work("a", 0, batch=1).mask,
        desk.work("a", 1, mask=b"\0").mask,
    ]
    assert masks == [
        (b"\0\1", b"\1\1"),
        (b"\0\1\1", b"\1\1\1"),
        (b"\0\0", b"\1\1"),
        None,
        (b"\1\0",),
    ]


def test_a_failed_op_after_a_crop_leaves_mask_and_cache_in_step() -> None:
    desk = Desk()
    desk.work("a", 0, n=4, mask=b"\0\1\1\1")
    desk.enter("a", 2, mask=b"\0")  # Never committed.
    assert desk.work("a", 2).mask == (b"\0\1\1",)


def test_the_least_recently_used_session_goes_first() -> None:
    desk = Desk(max_sessions=2)
    desk.work("a", 0, n=3)
    desk.work("b", 0)
    desk.work("a", 3)
    desk.work("c", 0)
    assert desk.evicted == [("b", ROW_BYTES)]
    assert desk.refusal("b", 1) == ErrorCode.NO_SESSION


def test_the_budget_frees_others_but_never_the_one_at_work() -> None:
    desk = Desk(budget_bytes=4 * ROW_BYTES)
    desk.work("a", 0, n=2)
    desk.work("b", 0, n=2)
    desk.work("c", 0, n=9)
    assert desk.evicted == [("a", 2 * ROW_BYTES), ("b", 2 * ROW_BYTES)]
    assert desk.sessions.held == (9 * ROW_BYTES, 1)


def test_release_frees_and_says_whether_there_was_anything() -> None:
    desk = Desk()
    desk.work(None, 0, n=2)
    desk.work(1, 0)
    desk.work("1", 0)
    released = [desk.sessions.release(rid) for rid in (None, None, 1, "never")]
    assert released == [True, False, True, False]
    assert desk.sessions.held == (ROW_BYTES, 1)
