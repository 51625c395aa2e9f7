"""What protocol.md shows is what happens."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.protocol_text import Exchange, blocks, exchanges
from tests.support.worker_process import stub_worker
from tools.protocol_doc import DOCUMENT, render
from worker.protocol import codec
from worker.protocol.events import UnknownEvent
from worker.protocol.ready import Ready


def comparable(reply: dict[str, Any]) -> dict[str, Any]:
    """Leave out whether the worker was still busy, which is a matter of microseconds."""
    return {key: value for key, value in reply.items() if key != "busy"}


@pytest.mark.parametrize("exchange", exchanges(), ids=str)
def test_every_exchange_happens_as_shown(exchange: Exchange) -> None:
    with stub_worker(stage=exchange.stage, num_stages=exchange.num_stages) as worker:
        worker.send(*(line.encode() + b"\n" for line in exchange.requests))
        worker.stdin.close()
        assert worker.end() == 0
    by_id = {json.dumps(r.get("request_id")): comparable(r) for r in worker.replies()}
    shown = [json.loads(line) for line in exchange.replies]
    # By request_id, because a ping overtakes.
    assert by_id == {json.dumps(r.get("request_id")): r for r in shown}


def test_every_worker_line_is_read_whole() -> None:
    lines = [body.strip() for info, body in blocks("json") if info == "worker"]
    for line in lines:
        read = codec.decode_worker_line(line.encode())
        if isinstance(read, Ready):
            again = codec.encode_ready(read)
        else:
            assert isinstance(read, codec.EventLine)
            assert not isinstance(read.event, UnknownEvent)
            again = codec.encode_event(read.event, read.envelope)
        assert json.loads(again) == json.loads(line)
    assert len(lines) == 3


def test_the_tables_are_those_of_the_code() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    assert render(text) == text
