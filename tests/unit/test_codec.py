"""One line, one meaning: spliced or parsed, from our writer or another."""

from __future__ import annotations

import json

import pytest

from worker.protocol import codec
from worker.protocol.events import Envelope, Heartbeat, Op, UnknownEvent
from worker.protocol.ops import ForwardAndSample, ForwardRange, HiddenReply, Ping
from worker.protocol.roles import StageIdentity
from worker.protocol.schema import ErrorCode, ProtocolError
from worker.protocol.stage import StageSlice

MIDDLE = StageIdentity(StageSlice(2, 4, 6), 1, 3)
LAST = StageIdentity(StageSlice(4, 6, 6), 2, 3)


def test_hidden_states_are_the_last_field_of_request_and_reply() -> None:
    request = ForwardRange(request_id=7, position=3, seq_len=1, hidden_b64=b"AAAA")
    reply = HiddenReply(seq_len=1, hidden_b64=b"AAAA")
    lines = [codec.encode_request(request), codec.encode_reply(7, reply)]
    assert lines == [
        b'{"op":"forward_range","request_id":7,"position":3,"seq_len":1,"hidden_b64":"AAAA"}\n',
        b'{"request_id":7,"seq_len":1,"hidden_b64":"AAAA"}\n',
    ]


@pytest.mark.parametrize(
    "line",
    [
        '{"op":"forward_range","request_id":"a","position":3,"seq_len":1,"hidden_b64":"AAAA"}',
        '{"hidden_b64":"AAAA","op":"forward_range","request_id":"a","position":3,"seq_len":1}',
        (
            ' { "hidden_b64" : "AAAA", "seq_len": 1, "op": "forward_range", "position": 3,'
            ' "request_id": "a", "unknown": [{"hidden_b64": "B"}] } '
        ),
        '{"op":"forward_range","request_id":"a","position":3,"seq_len":1,"hidden_b64":"AA\\u0041A"}',
        (
            '{"op":"forward_range","hidden_b64":"first","request_id":"a","position":3,"seq_len":1,'
            '"hidden_b64":"AAAA"}'
        ),
        (
            '{"x":{"hidden_b64":"nested"},"op":"forward_range","request_id":"a","position":3,'
            '"seq_len":1,"hidden_b64": "AAAA"}'
        ),
        (
            '{"x":"\\"hidden_b64\\":\\"z\\"","op":"forward_range","request_id":"a","position":3,'
            '"seq_len":1,"hidden_b64":"AAAA"}\r'
        ),
    ],
)
def test_every_spelling_means_the_same(line: str) -> None:
    expected = ForwardRange(request_id="a", position=3, seq_len=1, hidden_b64=b"AAAA")
    assert codec.decode_request(line.encode(), MIDDLE) == expected


@pytest.mark.parametrize(
    ("line", "code", "request_id", "says"),
    [
        (b"{", ErrorCode.BAD_JSON, None, "invalid JSON"),
        (b"\xff\xfe", ErrorCode.BAD_JSON, None, "invalid JSON"),
        (b"[" * 100_000, ErrorCode.BAD_JSON, None, "invalid JSON"),
        (b'{"op":"ping","request_id":' + b"9" * 5000 + b"}", ErrorCode.BAD_JSON, None, "JSON"),
        (b"[]", ErrorCode.BAD_JSON, None, "must be a JSON object, got list"),
        (b'{"request_id":4}', ErrorCode.MISSING_FIELD, 4, "missing 'op'"),
        (b'{"op":"nope","request_id":4}', ErrorCode.UNKNOWN_OP, 4, "'nope'"),
        (b'{"op":["ping"],"request_id":4}', ErrorCode.UNKNOWN_OP, 4, "['ping']"),
        (b'{"op":"tokenize","request_id":4}', ErrorCode.WRONG_ROLE, 4, "on stage 0"),
        (b'{"op":"ping","request_id":true}', ErrorCode.BAD_FIELD, None, "request_id"),
        (b'{"op":"ping","request_id":1.5}', ErrorCode.BAD_FIELD, None, "request_id"),
        (
            b'{"op":"forward_range","request_id":4,"seq_len":1,"hidden_b64":""}',
            ErrorCode.MISSING_FIELD,
            4,
            "'position' must be a non-negative int",
        ),
        (
            (
                b'{"op":"forward_range","request_id":4,"position":0,"seq_len":2,"tokens":[1],'
                b'"hidden_b64":""}'
            ),
            ErrorCode.BAD_FIELD,
            4,
            "'tokens' has 1 ids, batch*seq_len needs 2",
        ),
        (
            b'{"op":"forward_range","request_id":4,"position":true,"seq_len":1,"hidden_b64":""}',
            ErrorCode.BAD_FIELD,
            4,
            "'position' must be a non-negative int",
        ),
    ],
)
def test_what_cannot_be_read_says_why_and_whose_it_was(
    line: bytes, code: ErrorCode, request_id: int | None, says: str
) -> None:
    with pytest.raises(ProtocolError) as caught:
        codec.decode_request(line, MIDDLE)
    assert (caught.value.code, caught.value.request_id) == (code, request_id)
    assert says in caught.value.text


def test_an_error_carries_request_id_whenever_an_object_was_read() -> None:
    lines = [
        codec.encode_error(ProtocolError(ErrorCode.BAD_JSON, "x")),
        codec.encode_error(ProtocolError(ErrorCode.BAD_FIELD, "x")),
        codec.encode_error(ProtocolError(ErrorCode.INTERNAL, "x", "r")),
    ]
    assert [json.loads(line) for line in lines] == [
        {"error": "x", "code": "bad_json"},
        {"request_id": None, "error": "x", "code": "bad_field"},
        {"request_id": "r", "error": "x", "code": "internal"},
    ]


def test_numbers_json_does_not_know_are_refused_where_they_would_count() -> None:
    line = (
        b'{"op":"forward_and_sample","request_id":1,"position":0,"seq_len":1,"temperature":NaN,'
        b'"hidden_b64":""}'
    )
    with pytest.raises(ProtocolError, match="'temperature' must be a finite number"):
        codec.decode_request(line, LAST)


def test_sampling_fields_reach_the_request() -> None:
    line = (
        b'{"op":"forward_and_sample","request_id":1,"position":2,"seq_len":1,"temperature":0.5,'
        b'"penalty_tokens":[1,2],"sample":false,"hidden_b64":"AA=="}'
    )
    assert codec.decode_request(line, LAST) == ForwardAndSample(
        request_id=1,
        position=2,
        seq_len=1,
        temperature=0.5,
        penalty_tokens=(1, 2),
        sample=False,
        hidden_b64=b"AA==",
    )


def test_unknown_events_and_unreadable_ones_are_kept_whole() -> None:
    new = b'{"event":"of_tomorrow","x":1,"stage":2,"wall_ms":5,"uptime_ms":6}'
    changed = b'{"event":"heartbeat","rss_mb":"many"}'
    assert [codec.decode_worker_line(line) for line in (new, changed)] == [
        codec.EventLine(
            UnknownEvent(fields=json.loads(new)), Envelope(stage=2, wall_ms=5, uptime_ms=6)
        ),
        codec.EventLine(UnknownEvent(fields=json.loads(changed)), Envelope()),
    ]


def test_events_come_back_with_their_envelope() -> None:
    event, envelope = Heartbeat(rss_mb=1.5, requests_served=3), Envelope(stage=1, uptime_ms=9)
    line = codec.encode_event(event, envelope)
    assert codec.decode_worker_line(line) == codec.EventLine(event, envelope)


def test_an_op_event_is_known_without_reading_its_fields_and_only_where_it_is_one() -> None:
    event = Op(op="ping", duration_ms=1, idle_ms_before=2, ok=True, in_bytes=3, out_bytes=4)
    line = codec.encode_event(event, Envelope())
    others = [
        codec.encode_event(Heartbeat(rss_mb=1.5, requests_served=2), Envelope()),
        line[:-3] + b"\n",
        line.replace(b":1", b":1]"),
        line.replace(b'"op"', b'"op2"', 1),
        b'["event","op"]\n',
    ]
    assert [codec.is_op_event(one) for one in (line, *others)] == [True] + [False] * len(others)


@pytest.mark.parametrize("line", [b"Welcome to host", b"{}", b"[]", b'{"status":"busy"}', b""])
def test_anything_else_is_garbage_with_its_bytes(line: bytes) -> None:
    read = codec.decode_worker_line(line)
    assert isinstance(read, codec.Garbage)
    assert read.line == line


def test_only_a_ping_is_taken_for_one() -> None:
    lines = [
        b'{"op":"ping","request_id":"p"}\r',
        b'{"op":"tokenize","prompt":"ping"}',
        b'{"op":"ping","request_id":[]}',
        b"ping",
    ]
    assert [codec.decode_ping(line) for line in lines] == [Ping(request_id="p"), None, None, None]
