"""Every op is the same composition of primitives, whoever computes."""

from __future__ import annotations

import binascii
from typing import Any

import pytest

from tests.support.history_backend import (
    BREAKS,
    EXHAUSTS,
    HIDDEN_DIM,
    MAX_CONTEXT,
    VOCAB_SIZE,
    HistoryBackend,
)
from worker.backends.base import OutOfDeviceMemory
from worker.handlers import Handlers
from worker.protocol.ops import (
    DecodeStep,
    Detokenize,
    EmbedAndForward,
    ForwardAndSample,
    ForwardRange,
    GeneratedReply,
    GenerateFull,
    HiddenReply,
    Release,
    ReleasedReply,
    Reply,
    Request,
    SampledReply,
    TextReply,
    Tokenize,
    TokensReply,
)
from worker.protocol.payload import encode_base64
from worker.protocol.schema import ErrorCode, ProtocolError
from worker.protocol.stage import StageSlice
from worker.sessions import Sessions
from worker.stopwatch import Stopwatch

FIRST, MIDDLE, LAST, WHOLE = (StageSlice(a, b, 6) for a, b in ((0, 2), (2, 4), (4, 6), (0, 6)))


class Stage:
    """Handlers over the history backend."""

    def __init__(self, own: StageSlice) -> None:
        backend = HistoryBackend(own)
        sessions = Sessions(backend.new_cache, 9, None, lambda rid, freed: None)
        self.handlers = Handlers(own, backend, sessions)
        self.timed = Stopwatch()

    def __call__(self, request: Request[Any]) -> Reply:
        return self.handlers.handle(request, self.timed)

    def refusal(self, request: Request[Any]) -> tuple[ErrorCode, str]:
        with pytest.raises(ProtocolError) as caught:
            self(request)
        return caught.value.code, caught.value.text


def hidden_of(reply: Reply) -> bytes:
    assert isinstance(reply, HiddenReply)
    return binascii.a2b_base64(reply.hidden_b64)


def embed(*tokens: int, position: int = 0, rid: str = "r", **more: Any) -> EmbedAndForward:
    return EmbedAndForward(request_id=rid, tokens=tokens, position=position, **more)


def rows(n: int, fill: int = 1) -> bytes:
    return encode_base64(bytes([fill]) * (n * HIDDEN_DIM * 2))


def test_text_ops() -> None:
    stage = Stage(WHOLE)
    replies = [
        stage(Tokenize(prompt="AB")),
        stage(Detokenize(tokens=(0, 1))),
        stage(GenerateFull(prompt="ABC", max_tokens=2)),
    ]
    assert replies == [
        TokensReply(tokens=(65, 66)),
        TextReply(text="ab"),
        GeneratedReply(tokens=(65, 66)),
    ]


def test_a_decode_step_is_an_embed_and_forward_of_one_token() -> None:
    stage, other = Stage(FIRST), Stage(FIRST)
    for each in (stage, other):
        each(embed(1, 2, 3))
    assert stage(DecodeStep(request_id="r", token_id=4, position=3)) == other(embed(4, position=3))


def test_chunks_give_what_one_piece_gives_and_sessions_do_not_mix() -> None:
    whole, chunked = Stage(FIRST), Stage(FIRST)
    one = hidden_of(whole(embed(1, 2, 3, 4)))
    chunked(embed(1, 2, 3))
    chunked(embed(9, 9, rid="other"))
    last = hidden_of(chunked(embed(4, position=3)))
    assert one.endswith(last[-8:])


def test_a_retry_and_a_rollback_give_the_same_bytes() -> None:
    stage = Stage(FIRST)
    stage(embed(1, 2, 3))
    first = stage(embed(4, 5, position=3))
    again = stage(embed(4, 5, position=3))
    stage(embed(7, 7, 7, position=1))
    stage(embed(2, 3, position=1))
    rolled = stage(embed(4, 5, position=3))
    assert first == again == rolled


def test_hidden_shape_is_told_only_where_it_is_not_the_usual() -> None:
    stage = Stage(FIRST)
    shapes = [
        stage(embed(1, 2, 3)).hidden_shape,  # type: ignore[attr-defined]
        stage(embed(1, 2, 3, 4, batch=2, rid="b")).hidden_shape,  # type: ignore[attr-defined]
    ]
    assert shapes == [None, (2, 2, HIDDEN_DIM)]


def test_a_batch_samples_one_token_each_and_a_chunk_may_ask_for_none() -> None:
    stage = Stage(LAST)
    silent = ForwardAndSample(
        request_id="r", position=0, seq_len=2, batch=2, sample=False, hidden_b64=rows(4)
    )
    loud = ForwardAndSample(request_id="r", position=2, seq_len=1, batch=2, hidden_b64=rows(2))
    replies = [stage(silent), stage(loud)]
    assert replies[0] == SampledReply()
    assert isinstance(replies[1], SampledReply)
    assert replies[1].token_ids is not None
    assert (len(replies[1].token_ids), replies[1].token_ids[0]) == (2, replies[1].token_id)


def test_left_padding_does_not_count() -> None:
    padded, plain = Stage(FIRST), Stage(FIRST)
    mask = encode_base64(b"\0\1\1")
    shown = hidden_of(padded(embed(7, 1, 2, attention_mask_b64=mask)))
    assert shown.endswith(hidden_of(plain(embed(1, 2)))[-8:])


def test_on_a_whole_model_sampling_uses_no_session() -> None:
    stage = Stage(WHOLE)
    hidden = hidden_of(stage(embed(1, 2, 3)))
    request = ForwardAndSample(
        request_id="r", position=0, seq_len=3, hidden_b64=encode_base64(hidden)
    )
    replies = [
        stage(request),
        stage(request),
        stage(DecodeStep(request_id="r", token_id=1, position=3)),
    ]
    assert replies[0] == replies[1]
    assert isinstance(replies[2], HiddenReply)


@pytest.mark.parametrize(
    ("own", "request_", "code", "says"),
    [
        (FIRST, embed(1, 200), ErrorCode.BAD_FIELD, ["200", "index 1", "100"]),
        (FIRST, embed(*[1] * 51), ErrorCode.CONTEXT_FULL, ["0", "51", str(MAX_CONTEXT)]),
        (
            MIDDLE,
            ForwardRange(position=49, seq_len=2, hidden_b64=rows(2)),
            ErrorCode.CONTEXT_FULL,
            ["49", "2", "51", "50"],
        ),
        (
            LAST,
            ForwardAndSample(position=50, seq_len=1, hidden_b64=rows(1)),
            ErrorCode.CONTEXT_FULL,
            ["50", "51"],
        ),
        (
            MIDDLE,
            ForwardRange(position=0, seq_len=2, hidden_b64=rows(1)),
            ErrorCode.BAD_FIELD,
            ["8", "2*4*2 = 16"],
        ),
        (
            MIDDLE,
            ForwardRange(position=0, seq_len=1, hidden_b64=b"!"),
            ErrorCode.BAD_FIELD,
            ["base64"],
        ),
        (
            MIDDLE,
            ForwardRange(position=0, seq_len=1, hidden_dtype="float32", hidden_b64=rows(2)),
            ErrorCode.BAD_FIELD,
            ["float32", "bfloat16"],
        ),
        (
            FIRST,
            embed(1, 2, attention_mask_b64=encode_base64(b"\1")),
            ErrorCode.BAD_FIELD,
            ["1 bytes", "1*2 = 2"],
        ),
        (
            FIRST,
            embed(1, attention_mask_b64=encode_base64(b"\2")),
            ErrorCode.BAD_FIELD,
            ["0 or 1"],
        ),
        (FIRST, embed(1, position=1, rid="new"), ErrorCode.NO_SESSION, ["position 0"]),
        (
            LAST,
            ForwardAndSample(position=0, seq_len=1, hidden_b64=rows(1), penalty_tokens=(3, 100)),
            ErrorCode.BAD_FIELD,
            ["100"],
        ),
        (WHOLE, Detokenize(tokens=(10**30,)), ErrorCode.BAD_FIELD, ["1" + "0" * 30]),
    ],
)
def test_what_is_refused_says_the_numbers(
    own: StageSlice, request_: Request[Any], code: ErrorCode, says: list[str]
) -> None:
    found, text = Stage(own).refusal(request_)
    assert found is code
    assert [word for word in says if word not in text] == []


@pytest.mark.parametrize("bad", [BREAKS, EXHAUSTS])
@pytest.mark.parametrize("position", [0, 1, 3])
def test_an_op_that_fails_inside_leaves_the_session_as_it_was(bad: int, position: int) -> None:
    stage, untouched = Stage(FIRST), Stage(FIRST)
    for each in (stage, untouched):
        each(embed(1, 2, 3))
    with pytest.raises((RuntimeError, OutOfDeviceMemory)):
        stage(embed(bad, position=position))
    assert stage(embed(4, position=3)) == untouched(embed(4, position=3))


def test_a_choice_that_fails_leaves_the_session_as_it_was() -> None:
    def step(position: int, suppressed: range = range(0)) -> ForwardAndSample:
        return ForwardAndSample(
            request_id="r",
            position=position,
            seq_len=1,
            hidden_b64=rows(1),
            suppress_tokens=tuple(suppressed),
        )

    stage, untouched = Stage(LAST), Stage(LAST)
    for each in (stage, untouched):
        each(step(0))
    assert stage.refusal(step(1, range(VOCAB_SIZE)))[0] is ErrorCode.BAD_FIELD
    assert stage(step(1)) == untouched(step(1))


def test_release_frees_the_session() -> None:
    stage = Stage(FIRST)
    stage(embed(1, 2))
    replies = [stage(Release(request_id="r")), stage(Release(request_id="r"))]
    assert replies == [ReleasedReply(released=True), ReleasedReply(released=False)]
    assert stage.refusal(embed(1, position=2))[0] is ErrorCode.NO_SESSION


def test_every_primitive_is_timed() -> None:
    stage = Stage(LAST)
    stage(ForwardAndSample(request_id="r", position=0, seq_len=1, hidden_b64=rows(1)))
    assert list(stage.timed.compute_ms) == ["load", "forward", "sample"]
