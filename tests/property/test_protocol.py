"""Every message survives its line; no line breaks the reader."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.messages import fields_of, junk_lines
from worker.protocol import codec
from worker.protocol.events import EVENTS, Envelope, Event
from worker.protocol.ops import OPS, Reply, Request
from worker.protocol.ready import Ready
from worker.protocol.roles import StageIdentity
from worker.protocol.schema import ProtocolError, parse
from worker.protocol.stage import Role, StageSlice

OWNERS = {
    Role.FIRST: StageIdentity(StageSlice(0, 2, 6)),
    Role.MIDDLE: StageIdentity(StageSlice(2, 4, 6)),
    Role.LAST: StageIdentity(StageSlice(4, 6, 6)),
    Role.WHOLE: StageIdentity(StageSlice(0, 6, 6)),
}
REPLIES = sorted({request.reply for request in OPS.values()}, key=lambda reply: reply.__name__)


@pytest.mark.parametrize("request_type", OPS.values(), ids=OPS)
@settings(max_examples=25)
@given(data=st.data())
def test_requests_survive_their_line(request_type: type[Request[Any]], data: Any) -> None:
    values = data.draw(fields_of(request_type))
    request = parse(request_type, values)
    identity = OWNERS[min(request_type.roles)]
    assert codec.decode_request(codec.encode_request(request), identity) == request
    # Another writer's line: other order, other spacing, fields nobody knows.
    items = [*values.items(), ("op", request_type.op), ("unknown", [None])]
    random.Random(0).shuffle(items)
    assert codec.decode_request(json.dumps(dict(items)).encode(), identity) == request


@pytest.mark.parametrize("reply_type", REPLIES, ids=lambda reply: reply.__name__)
@settings(max_examples=25)
@given(data=st.data())
def test_replies_survive_their_line(reply_type: type[Reply], data: Any) -> None:
    reply = parse(reply_type, data.draw(fields_of(reply_type)))
    request_id = data.draw(st.none() | st.integers() | st.text(max_size=20))
    line = codec.decode_worker_line(codec.encode_reply(request_id, reply))
    assert isinstance(line, codec.ReplyLine)
    assert (line.request_id, codec.parse_reply(reply_type, line)) == (request_id, reply)


@pytest.mark.parametrize("event_type", EVENTS.values(), ids=EVENTS)
@settings(max_examples=15)
@given(data=st.data())
def test_events_survive_their_line(event_type: type[Event], data: Any) -> None:
    event = parse(event_type, data.draw(fields_of(event_type)))
    envelope = parse(Envelope, data.draw(fields_of(Envelope)))
    line = codec.encode_event(event, envelope)
    assert codec.decode_worker_line(line) == codec.EventLine(event, envelope)
    assert "request_id" not in json.loads(line)


@settings(max_examples=25)
@given(values=fields_of(Ready))
def test_the_ready_line_survives(values: dict[str, Any]) -> None:
    ready = parse(Ready, values)
    assert codec.decode_worker_line(codec.encode_ready(ready)) == ready


@settings(max_examples=300)
@given(line=junk_lines() | st.binary())
def test_any_bytes_are_a_request_or_a_protocol_error(line: bytes) -> None:
    try:
        request = codec.decode_request(line, OWNERS[Role.WHOLE])
    except ProtocolError as error:
        answer = json.loads(codec.encode_error(error))
        assert {"error", "code"} <= set(answer)
    else:
        assert isinstance(request, Request)
    assert codec.decode_worker_line(line) is not None
    assert codec.decode_ping(line) is None or b"ping" in line
