"""What several requests hand on over a link reaches each of them, and nothing of it comes back."""

from __future__ import annotations

import base64
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from worker.protocol.codec import ErrorReply
from worker.protocol.errors import ErrorCode, ProtocolError
from worker.protocol.ops import ForwardRange, HiddenReply, Reply
from worker.protocol.roles import StageIdentity
from worker.protocol.stage import StageSlice
from worker.protocol.together import (
    join_replies,
    join_requests,
    linked_hidden,
    split_replies,
    split_requests,
)

MIDDLE = StageIdentity(StageSlice(1, 2, 3))
FAILED = ProtocolError(ErrorCode.CONTEXT_FULL, "it is full")


def asked(rid: int) -> ForwardRange:
    return ForwardRange(request_id=rid, position=7, seq_len=1, hidden_b64=b"")


@given(st.lists(st.none() | st.binary(min_size=1, max_size=40), min_size=1, max_size=9))
def test_each_gets_its_own_hidden_states_and_those_that_failed_none(
    outputs: list[bytes | None],
) -> None:
    requests = [asked(i) for i in range(len(outputs))]
    answers: list[Reply | ProtocolError] = [
        FAILED if data is None else HiddenReply(seq_len=1, hidden_b64=base64.b64encode(data))
        for data in outputs
    ]
    over_link, left = linked_hidden(join_replies(answers))
    there = replace(join_requests("t", requests), hidden_b64=over_link)
    got = [
        None if isinstance(part, ProtocolError) else part.hidden_b64  # type: ignore[attr-defined]
        for part in split_requests(there, MIDDLE)
    ]
    back = [
        None if isinstance(part, ErrorReply) else part.hidden_b64  # type: ignore[attr-defined]
        for part in split_replies(requests, left)
    ]
    assert got == [base64.b64encode(data or b"") for data in outputs]
    assert back == [None if data is None else b"" for data in outputs]
