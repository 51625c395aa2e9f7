"""`as_steps`: many positions in one op are as many ops of one position."""

from __future__ import annotations

import binascii
from typing import Any

import pytest

from tests.support.history_backend import BREAKS, EXHAUSTS, HIDDEN_DIM, HistoryBackend
from worker.backends.base import OutOfDeviceMemory, Placement, StageBackend
from worker.backends.stub import StubBackend
from worker.handlers import Handlers
from worker.protocol.ops import (
    EmbedAndForward,
    ForwardAndSample,
    ForwardRange,
    HiddenReply,
    Reply,
    Request,
    SampledReply,
)
from worker.protocol.payload import encode_base64
from worker.protocol.schema import ErrorCode, ProtocolError
from worker.protocol.stage import StageSlice
from worker.sessions import Sessions
from worker.stopwatch import Stopwatch

FIRST, MIDDLE, LAST, WHOLE = (
    StageSlice(a, b, 128) for a, b in ((0, 40), (40, 80), (80, 128), (0, 128))
)
PROMPT, TOKENS = (1, 2, 3), (7, 8, 9, 7)
WIDTHS = {HistoryBackend: HIDDEN_DIM * 2, StubBackend: 32}
MASK = encode_base64(b"\1\1")


class Stage:
    """Handlers over a backend without a model."""

    def __init__(self, kind: type[Any], own: StageSlice) -> None:
        self.row_bytes = WIDTHS[kind]
        backend: StageBackend[Any] = kind(own)
        sessions = Sessions(backend.new_cache, 9, None, lambda rid, freed: None)
        self.handlers = Handlers(own, backend, sessions)

    def __call__(self, request: Request[Any]) -> Reply:
        return self.handlers.handle(request, Stopwatch())

    def rows(self, *fills: int) -> bytes:
        """Hidden states: one row a number."""
        return b"".join(bytes([fill]) * self.row_bytes for fill in fills)


def embed(*tokens: int, position: int, **more: Any) -> EmbedAndForward:
    return EmbedAndForward(request_id="r", tokens=tokens, position=position, **more)


def hidden_of(*replies: Reply) -> bytes:
    found = [r.hidden_b64 for r in replies if isinstance(r, HiddenReply)]
    assert len(found) == len(replies)
    return b"".join(map(binascii.a2b_base64, found))


@pytest.fixture(params=[HistoryBackend, StubBackend])
def kind(request: pytest.FixtureRequest) -> type[Any]:
    found: type[Any] = request.param
    return found


def test_a_first_stage_gives_the_rows_of_single_ops(kind: type[Any]) -> None:
    steps, singly = Stage(kind, FIRST), Stage(kind, FIRST)
    for each in (steps, singly):
        each(embed(*PROMPT, position=0))
    single = [singly(embed(token, position=i)) for i, token in enumerate(TOKENS, 3)]
    reply = steps(embed(*TOKENS, position=3, as_steps=True))
    assert hidden_of(reply) == hidden_of(*single)
    assert steps(embed(5, position=7)) == singly(embed(5, position=7))


@pytest.mark.parametrize("own", [MIDDLE, LAST])
def test_later_stages_give_what_single_ops_give(kind: type[Any], own: StageSlice) -> None:
    request: Any = ForwardRange if own is MIDDLE else ForwardAndSample
    steps, singly = Stage(kind, own), Stage(kind, own)

    def op(stage: Stage, fills: tuple[int, ...], position: int, **more: Any) -> Reply:
        hidden = encode_base64(stage.rows(*fills))
        return stage(
            request(
                request_id="r", position=position, seq_len=len(fills), hidden_b64=hidden, **more
            )
        )

    for each in (steps, singly):
        op(each, PROMPT, 0)
    single = [op(singly, (fill,), i) for i, fill in enumerate(TOKENS, 3)]
    reply = op(steps, TOKENS, 3, as_steps=True)
    if own is LAST:
        assert reply == single[-1]
    else:
        assert hidden_of(reply) == hidden_of(*single)
    assert op(steps, (5,), 7) == op(singly, (5,), 7)


def test_a_whole_model_chooses_after_the_last_step(kind: type[Any]) -> None:
    steps, singly = Stage(kind, WHOLE), Stage(kind, WHOLE)
    hidden = hidden_of(steps(embed(*TOKENS, position=0, as_steps=True)))
    single = hidden_of(*(singly(embed(token, position=i)) for i, token in enumerate(TOKENS)))
    sample = ForwardAndSample(
        request_id="r", position=0, seq_len=4, as_steps=True, hidden_b64=encode_base64(hidden)
    )
    row = ForwardAndSample(
        request_id="r",
        position=3,
        seq_len=1,
        hidden_b64=encode_base64(single[-steps.row_bytes :]),
    )
    assert (hidden, steps(sample)) == (single, singly(row))


def test_a_chunk_of_steps_may_ask_for_no_token(kind: type[Any]) -> None:
    stage = Stage(kind, LAST)
    hidden = encode_base64(stage.rows(*TOKENS))
    request = ForwardAndSample(
        position=0, seq_len=4, as_steps=True, sample=False, hidden_b64=hidden
    )
    assert stage(request) == SampledReply()


@pytest.mark.parametrize("bad", [BREAKS, EXHAUSTS])
@pytest.mark.parametrize("position", [0, 1, 3])
def test_a_step_that_fails_midway_leaves_the_session_as_it_was(bad: int, position: int) -> None:
    stage, untouched = Stage(HistoryBackend, FIRST), Stage(HistoryBackend, FIRST)
    for each in (stage, untouched):
        each(embed(*PROMPT, position=0))
    with pytest.raises((RuntimeError, OutOfDeviceMemory)):
        stage(embed(4, 5, bad, 6, position=position, as_steps=True))
    assert stage(embed(4, position=3)) == untouched(embed(4, position=3))


def test_steps_in_a_padded_session_keep_its_mask() -> None:
    steps, singly = Stage(HistoryBackend, FIRST), Stage(HistoryBackend, FIRST)
    for each in (steps, singly):
        each(embed(*PROMPT, position=0, attention_mask_b64=encode_base64(b"\0\1\1")))
    single = [singly(embed(token, position=i)) for i, token in enumerate(TOKENS, 3)]
    assert hidden_of(steps(embed(*TOKENS, position=3, as_steps=True))) == hidden_of(*single)


def test_steps_past_the_context_are_refused_as_a_whole() -> None:
    stage, untouched = Stage(HistoryBackend, FIRST), Stage(HistoryBackend, FIRST)
    for each in (stage, untouched):
        each(embed(*PROMPT, position=0))
    with pytest.raises(ProtocolError) as caught:
        stage(embed(*[1] * 48, position=3, as_steps=True))
    assert caught.value.code is ErrorCode.CONTEXT_FULL
    assert stage(embed(4, position=3)) == untouched(embed(4, position=3))


@pytest.mark.parametrize("odd", [{"batch": 2}, {"attention_mask_b64": MASK}])
@pytest.mark.parametrize(
    "request_",
    [
        (EmbedAndForward, {"tokens": (1, 2)}),
        (ForwardRange, {"position": 0, "seq_len": 2, "hidden_b64": b""}),
        (ForwardAndSample, {"position": 0, "seq_len": 2, "hidden_b64": b""}),
    ],
)
def test_steps_of_several_or_padded_sequences_are_refused(
    request_: tuple[type[Any], dict[str, Any]], odd: dict[str, Any]
) -> None:
    kind, fields = request_
    complaints = [kind(**fields, **odd, as_steps=steps).complaint() for steps in (False, True)]
    assert complaints[0] is None
    assert "'as_steps' works on one sequence without a mask" in complaints[1]


def test_the_last_stage_also_minds_how_many_ids_come_along() -> None:
    request = ForwardAndSample(position=0, seq_len=2, tokens=(1,), hidden_b64=b"")
    assert request.complaint() == "'tokens' has 1 ids, batch*seq_len needs 2"


def test_a_column_stands_where_its_own_op_would() -> None:
    whole = Placement(position=3, batch=1, seq_len=2, attention_mask=b"\0\1\1\1\1")
    assert [whole.step(i) for i in range(2)] == [
        Placement(3, 1, 1, b"\0\1\1\1"),
        Placement(4, 1, 1, b"\0\1\1\1\1"),
    ]
