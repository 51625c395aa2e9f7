"""The law of positions against a plain model of it, over any order of messages."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.support.history_backend import HistoryCache
from worker.protocol.ops import RequestId
from worker.protocol.schema import ErrorCode, ProtocolError
from worker.sessions import Sessions

RIDS = st.sampled_from([None, 0, 1, "1", "x"])
MAX_SESSIONS = 3


@dataclass
class Expected:
    """What a session must hold: rows per sequence, and mask bytes where there is a mask."""

    rows: list[list[bytes]]
    mask: list[bytes] | None = None

    @property
    def length(self) -> int:
        return len(self.rows[0])


@dataclass
class Model:
    """Sessions in order of use, least recent first."""

    by_id: dict[RequestId, Expected] = field(default_factory=dict)
    evicted: list[RequestId] = field(default_factory=list)


class Positions(RuleBasedStateMachine):
    """Messages, failures and releases in any order."""

    @initialize(can_crop=st.booleans())
    def start(self, can_crop: bool) -> None:
        self.can_crop = can_crop
        self.model = Model()
        self.evicted: list[RequestId] = []
        self.counter = 0
        self.sessions = Sessions(
            lambda batch: HistoryCache(batch, can_crop),
            MAX_SESSIONS,
            None,
            lambda rid, _freed: self.evicted.append(rid),
        )

    @rule(
        rid=RIDS,
        back=st.integers(-1, 3),
        restart=st.booleans(),
        batch=st.sampled_from([1, 1, 1, 2]),
        n=st.integers(1, 3),
        masked=st.booleans(),
        fails=st.sampled_from([False, False, True]),
    )
    def message(
        self,
        rid: RequestId,
        back: int,
        restart: bool,
        batch: int,
        n: int,
        masked: bool,
        fails: bool,
    ) -> None:
        held = self.model.by_id.get(rid)
        position = 0 if restart else max(0, (held.length if held else 0) - back)
        mask = bytes(i % 2 for i in range(batch * n)) if masked else None
        expected = self.expected_error(held, position, batch)
        try:
            turn = self.sessions.enter(rid, position, batch, n, mask)
        except ProtocolError as error:
            assert error.code == expected
            return
        assert expected is None
        if fails:
            for rows in turn.session.cache.rows:  # It may have got anywhere before it failed.
                rows.append(b"half")
            self.sessions.undo(turn)
            return
        if held is not None and 0 < position < held.length:
            self.crop(held, position)
        self.counter += 1
        new = [[self.row(b, i) for i in range(n)] for b in range(batch)]
        for rows, more in zip(turn.session.cache.rows, new, strict=True):
            rows += more
        self.sessions.commit((rid, turn))
        self.remember(rid, held if position else None, new, mask, n)

    @rule(rid=RIDS)
    def release(self, rid: RequestId) -> None:
        assert self.sessions.release(rid) == (self.model.by_id.pop(rid, None) is not None)

    @invariant()
    def holds_what_the_model_holds(self) -> None:
        model = self.model
        seen = {
            rid: (session.cache.rows, session.mask and list(session.mask))
            for rid, session in self.sessions._by_id.items()
        }
        assert seen == {rid: (each.rows, each.mask) for rid, each in model.by_id.items()}
        assert list(seen) == list(model.by_id)
        assert self.evicted == model.evicted

    def expected_error(self, held: Expected | None, position: int, batch: int) -> ErrorCode | None:
        if position == 0:
            return None
        if held is None:
            return ErrorCode.NO_SESSION
        if position > held.length:
            return ErrorCode.BAD_POSITION
        if batch != len(held.rows):
            return ErrorCode.BAD_FIELD
        return ErrorCode.BAD_POSITION if position < held.length and not self.can_crop else None

    def row(self, sequence: int, i: int) -> bytes:
        return b"%04d%02d%02d" % (self.counter, sequence, i)

    def crop(self, held: Expected, position: int) -> None:
        held.rows = [rows[:position] for rows in held.rows]
        held.mask = held.mask and [row[:position] for row in held.mask]

    def remember(
        self,
        rid: RequestId,
        held: Expected | None,
        new: list[list[bytes]],
        mask: bytes | None,
        n: int,
    ) -> None:
        model = self.model
        held = held or Expected([[] for _ in new])
        before = held.length
        held.rows = [old + more for old, more in zip(held.rows, new, strict=True)]
        if mask is not None or held.mask is not None:
            old_mask = held.mask or [b"\1" * before for _ in new]
            more_mask = mask or b"\1" * (len(new) * n)
            held.mask = [row + more_mask[i * n : (i + 1) * n] for i, row in enumerate(old_mask)]
        model.by_id.pop(rid, None)
        model.by_id[rid] = held
        if len(model.by_id) > MAX_SESSIONS:
            oldest = next(iter(model.by_id))
            del model.by_id[oldest]
            model.evicted.append(oldest)


TestPositions = Positions.TestCase
TestPositions.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)
