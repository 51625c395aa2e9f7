"""The tokens of an op that chose one after each of its rows."""

from __future__ import annotations

from orchestrator.failures import OpRejected
from orchestrator.specs import StageSpec
from worker.protocol.codec import ReplyLine, parse_reply
from worker.protocol.errors import ErrorCode, ProtocolError
from worker.protocol.ops import ForwardAndSample, RequestId, SampledReply


def replies_of_rows(
    spec: StageSpec, rid: RequestId, rows: int, reply: SampledReply
) -> tuple[SampledReply, ...]:
    """Return for each row what an op of its own would have been answered.

    Args:
        spec: of the last stage.
        rid: of the request.
        rows: how many there were.
        reply: to the op.

    Raises:
        OpRejected: the stage has not answered that.
    """
    steps = reply.steps or ()
    try:
        if len(steps) == rows:
            return tuple(parse_reply(SampledReply, ReplyLine(rid, step)) for step in steps)
        text = f"it has chosen {len(steps)} tokens for {rows} rows"
    except ProtocolError as error:
        text = error.text
    op, code = ForwardAndSample.op, str(ErrorCode.INTERNAL)
    raise OpRejected(spec.stage, spec.host, op, code, f"'steps' is wrong: {text}")
