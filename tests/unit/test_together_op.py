"""The op `together`: a request that fails fails alone, and the op says what it carried."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.history_backend import (
    BREAKS,
    EXHAUSTS,
    MAX_CONTEXT,
    HistoryBackend,
    HistoryCache,
)
from worker.handlers import Handlers
from worker.protocol.codec import ErrorReply
from worker.protocol.ops import (
    DecodeStep,
    EmbedAndForward,
    ForwardAndSample,
    HiddenReply,
    Release,
    Request,
    SampledReply,
    Together,
)
from worker.protocol.payload import encode_base64
from worker.protocol.schema import ErrorCode, ProtocolError
from worker.protocol.stage import StageSlice
from worker.protocol.together import join_requests, split_replies
from worker.sessions import Sessions
from worker.stopwatch import Stopwatch

FIRST, LAST = StageSlice(0, 40, 128), StageSlice(80, 128, 128)


class Stage:
    """Handlers over hashes."""

    def __init__(self, own: StageSlice, *, max_sessions: int = 9) -> None:
        backend = HistoryBackend(own)
        self.evicted: list[Any] = []
        self.sessions = Sessions(
            backend.new_cache, max_sessions, None, lambda rid, freed: self.evicted.append(rid)
        )
        self.handlers: Handlers[Any] = Handlers(own, backend, self.sessions)
        self.last = Stopwatch()

    def __call__(self, request: Request[Any]) -> Any:
        self.last = Stopwatch()
        return self.handlers.handle(request, self.last)

    def together(self, *requests: Request[Any]) -> list[Any]:
        return split_replies(requests, self(join_requests("group", requests)))

    def caches(self) -> dict[Any, list[bytes]]:
        """What each session holds."""
        held = self.sessions._by_id
        found: dict[Any, list[bytes]] = {}
        for rid, session in held.items():
            assert isinstance(session.cache, HistoryCache)
            found[rid] = session.cache.rows[0]
        return found


def opened(*names: Any, **more: Any) -> Stage:
    stage = Stage(FIRST, **more)
    for name in names:
        stage(EmbedAndForward(request_id=name, tokens=(1, 2, 3)))
    return stage


def step(name: Any, token: int = 7, position: int = 3) -> DecodeStep:
    return DecodeStep(request_id=name, token_id=token, position=position)


def several(name: Any, *tokens: int, position: int = 3) -> EmbedAndForward:
    return EmbedAndForward(request_id=name, tokens=tokens, position=position, as_steps=True)


FAILING = {
    "no_session": step("new"),
    "bad_position": step("bad", position=9),
    "context_full": several("bad", 1, 2, position=MAX_CONTEXT - 1),
    "bad_field": step("bad", token=100),
    "internal": several("bad", 5, BREAKS, 6),
    "out_of_memory": several("bad", 5, EXHAUSTS, 6),
    "wrong_role": ForwardAndSample(request_id="bad", position=3, seq_len=1, hidden_b64=b""),
}


@pytest.mark.parametrize("code", FAILING)
def test_a_request_that_fails_changes_nothing_for_the_others(code: str) -> None:
    stage, alone = opened("a", "bad", "b"), opened("a", "bad", "b")
    others = step("a"), several("b", 4, 5)
    replies = stage.together(others[0], FAILING[code], others[1])
    before = alone.caches()["bad"]
    expected = [alone(others[0]), alone(others[1])]
    assert [replies[0], replies[2]] == expected
    assert (type(replies[1]), replies[1].code) == (ErrorReply, code)
    # without memory its cache is freed; else it is as it was
    held = {} if code == "out_of_memory" else {"bad": before}
    assert stage.caches() == {"a": alone.caches()["a"], "b": alone.caches()["b"], **held}


def test_a_failure_that_nobody_foresaw_leaves_its_traceback() -> None:
    stage = opened("a", "bad")
    stage.together(step("a"), step("bad", BREAKS))
    (event,) = stage.last.tracebacks
    assert (event.op, event.rid) == ("decode_step", "bad")
    assert "size mismatch in layer 3" in event.traceback


def test_the_op_says_how_many_rows_of_how_many_requests_it_carried() -> None:
    stage = opened("a", "b", "c")
    batch = EmbedAndForward(request_id="d", tokens=(1, 2, 3, 4), batch=2)
    stage.together(step("a"), several("b", 4, 5, 6), batch, step("c", 100))
    assert (stage.last.requests, stage.last.rows) == (4, 7)
    stage(step("a", position=4))
    assert (stage.last.requests, stage.last.rows) == (None, None)


def test_requests_of_one_op_are_held_before_any_is_evicted() -> None:
    stage = opened("old", "a", "b", max_sessions=3)
    replies = stage.together(step("a"), EmbedAndForward(request_id="new", tokens=(1,)), step("b"))
    assert [type(reply) for reply in replies] == [HiddenReply] * 3
    assert (stage.evicted, set(stage.caches())) == (["old"], {"a", "b", "new"})


@pytest.mark.parametrize(
    "requests",
    [
        (),
        ({"op": "ping", "request_id": 1},),
        ({"op": "release", "request_id": 1},),
        ({"op": "together", "request_id": 1, "requests": []},),
        ({"op": "decode_step", "request_id": 1, "token_id": 1, "position": 3},) * 2,
    ],
)
def test_what_does_not_go_together_is_refused_as_a_whole(requests: tuple[Any, ...]) -> None:
    stage = opened(1)
    before = stage.caches()
    with pytest.raises(ProtocolError) as caught:
        stage(Together(requests=requests))
    assert (caught.value.code, stage.caches()) == (ErrorCode.BAD_FIELD, before)


def sampling(name: Any, fill: int, rows: int, position: int, **more: Any) -> ForwardAndSample:
    data = b"".join(bytes([fill + i]) * 8 for i in range(rows))
    return ForwardAndSample(
        request_id=name, position=position, seq_len=rows, hidden_b64=encode_base64(data), **more
    )


def test_choices_after_each_row_are_those_of_ops_of_their_own() -> None:
    stage, alone = Stage(LAST), Stage(LAST)
    for each in (stage, alone):
        each(sampling("a", 1, 3, 0))
        each(sampling("b", 50, 2, 0))
    reply, plain = stage.together(
        sampling("a", 9, 4, 3, as_steps=True, sample_steps=True), sampling("b", 60, 1, 2)
    )
    expected = [alone(sampling("a", 9 + i, 1, 3 + i)).token_id for i in range(4)]
    assert reply == SampledReply(steps=tuple({"token_id": token} for token in expected))
    assert plain == alone(sampling("b", 60, 1, 2))


def test_a_released_session_is_gone_for_the_next_op() -> None:
    stage = opened("a", "b")
    stage(Release(request_id="a"))
    replies = stage.together(step("a"), step("b"))
    assert [getattr(reply, "code", None) for reply in replies] == ["no_session", None]


def test_a_row_that_is_scored_is_scored_as_alone() -> None:
    def row(name: str, **more: Any) -> tuple[ForwardAndSample, ForwardAndSample]:
        hidden = encode_base64(name.encode() * 8)
        return ForwardAndSample(
            request_id=name, position=0, seq_len=1, hidden_b64=hidden, sample=False
        ), ForwardAndSample(request_id=name, position=1, seq_len=1, hidden_b64=hidden, **more)

    def answers(stage: Stage, *, together: bool) -> list[Any]:
        given = [row("a"), row("b", score_tokens=(4,), top_logprobs=1), row("c")]
        for first, _ in given:
            stage(first)
        steps = [step for _, step in given]
        return stage.together(*steps) if together else [stage(step) for step in steps]

    alone = answers(Stage(LAST), together=False)
    assert answers(Stage(LAST), together=True) == alone
    assert [len(answer.scores or ()) for answer in alone] == [0, 1, 0]
