"""Laws of requests that travel together: nothing is lost, mixed or taken for another's."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.protocol.codec import (
    ErrorReply,
    ReplyLine,
    decode_request,
    decode_worker_line,
    encode_reply,
    encode_request,
    parse_reply,
)
from worker.protocol.errors import ErrorCode, ProtocolError
from worker.protocol.ops import (
    DecodeStep,
    EmbedAndForward,
    ForwardAndSample,
    ForwardRange,
    HiddenReply,
    Release,
    Reply,
    Request,
    SampledReply,
    Together,
    TogetherReply,
)
from worker.protocol.payload import encode_base64
from worker.protocol.roles import StageIdentity
from worker.protocol.stage import StageSlice
from worker.protocol.together import (
    join_replies,
    join_requests,
    split_replies,
    split_requests,
)

FIRST = StageIdentity(StageSlice(0, 2, 6), 0, 3)
MIDDLE = StageIdentity(StageSlice(2, 4, 6), 1, 3)
LAST = StageIdentity(StageSlice(4, 6, 6), 2, 3)

HIDDEN = st.binary(max_size=64).map(encode_base64)
POSITIONS = st.integers(0, 1 << 20)
IDS = st.one_of(st.integers(), st.text(max_size=8))


def _named(*requests: st.SearchStrategy[Request[Any]]) -> st.SearchStrategy[list[Request[Any]]]:
    """Give lists of these requests, each with an id of its own."""
    one = st.one_of(*requests)
    ids = st.lists(IDS, min_size=1, max_size=6, unique_by=repr)
    return ids.flatmap(
        lambda names: st.tuples(*(one for _ in names)).map(
            lambda made: [
                replace(request, request_id=name) for request, name in zip(made, names, strict=True)
            ]
        )
    )


STEPS = st.builds(DecodeStep, token_id=st.integers(0, 99), position=POSITIONS)
EMBEDS = st.builds(
    EmbedAndForward,
    tokens=st.lists(st.integers(0, 99), min_size=1, max_size=5).map(tuple),
    position=POSITIONS,
    as_steps=st.booleans(),
)
RANGES = st.builds(ForwardRange, position=POSITIONS, seq_len=st.just(3), hidden_b64=HIDDEN)
CHOICES = st.builds(
    ForwardAndSample,
    position=POSITIONS,
    seq_len=st.just(2),
    temperature=st.floats(0, 2),
    hidden_b64=HIDDEN,
)
CASES = st.one_of(
    st.tuples(st.just(FIRST), _named(STEPS, EMBEDS)),
    st.tuples(st.just(MIDDLE), _named(RANGES)),
    st.tuples(st.just(LAST), _named(CHOICES)),
)


@given(CASES)
def test_requests_that_travel_together_arrive_as_they_were_sent(
    case: tuple[StageIdentity, list[Request[Any]]],
) -> None:
    identity, requests = case
    line = encode_request(join_requests("group-1", requests))
    together = decode_request(line, identity)
    assert isinstance(together, Together)
    assert split_requests(together, identity) == requests


ANSWERS: dict[type[Reply], st.SearchStrategy[Reply]] = {
    HiddenReply: st.builds(HiddenReply, seq_len=st.integers(1, 9), hidden_b64=HIDDEN),
    SampledReply: st.builds(SampledReply, token_id=st.integers(0, 99)),
}
ERRORS = st.builds(ProtocolError, st.sampled_from(ErrorCode), st.text(max_size=20))


@given(st.data(), CASES)
def test_each_reply_reaches_its_own_request(
    data: st.DataObject, case: tuple[StageIdentity, list[Request[Any]]]
) -> None:
    _, requests = case
    answers = [
        data.draw(st.one_of(ANSWERS[request.reply], ERRORS), label=repr(request.request_id))
        for request in requests
    ]
    line = decode_worker_line(encode_reply("group-1", join_replies(answers)))
    assert isinstance(line, ReplyLine)
    got = split_replies(requests, parse_reply(TogetherReply, line))
    assert got == [
        ErrorReply(request.request_id, answer.text, str(answer.code))
        if isinstance(answer, ProtocolError)
        else answer
        for request, answer in zip(requests, answers, strict=True)
    ]


def _objects(*requests: Request[Any]) -> tuple[dict[str, Any], ...]:
    return join_requests(None, requests).requests


STEP = DecodeStep(request_id="a", token_id=1, position=1)
RANGE = ForwardRange(request_id="a", position=0, seq_len=1, hidden_b64=b"AAAA")


@pytest.mark.parametrize(
    ("identity", "together", "text"),
    [
        (FIRST, Together(requests=()), "'requests' must be non-empty"),
        (
            FIRST,
            Together(requests=_objects(STEP, STEP)),
            "'requests' names a request_id twice: send one after the other",
        ),
        (
            FIRST,
            Together(requests=_objects(STEP, Release(request_id="b"))),
            (
                "'requests' holds op 'release'; only embed_and_forward, decode_step, "
                "forward_range, forward_and_sample go together"
            ),
        ),
        (
            MIDDLE,
            Together(requests=_objects(RANGE), hidden_b64=b"AAAA.AAAA"),
            "'hidden_b64' has 2 parts joined by '.', there are 1 requests with hidden states",
        ),
        (
            MIDDLE,
            Together(requests=_objects(RANGE)),
            "'hidden_b64' has 0 parts joined by '.', there are 1 requests with hidden states",
        ),
    ],
)
def test_requests_that_do_not_go_together_are_refused_as_a_whole(
    identity: StageIdentity, together: Together, text: str
) -> None:
    with pytest.raises(ProtocolError) as caught:
        split_requests(together, identity)
    assert (caught.value.code, caught.value.text) == (ErrorCode.BAD_FIELD, text)


def test_a_bad_request_among_others_is_refused_alone() -> None:
    bad = {**_objects(STEP)[0], "request_id": "b", "position": -1}
    together = Together(requests=(*_objects(STEP), bad, *_objects(replace(RANGE, request_id="c"))))
    first, second, third = split_requests(replace(together, hidden_b64=b"AAAA"), FIRST)
    assert first == STEP
    assert isinstance(second, ProtocolError)
    assert (second.request_id, second.code) == ("b", ErrorCode.BAD_FIELD)
    assert isinstance(third, ProtocolError)
    assert (third.request_id, third.code) == ("c", ErrorCode.WRONG_ROLE)


def test_replies_that_are_too_few_are_no_replies() -> None:
    with pytest.raises(ProtocolError, match="'replies' has 0 replies to 1 requests"):
        split_replies([STEP], TogetherReply(replies=()))
