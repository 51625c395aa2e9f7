"""Requests that travel in one line, and their replies that come back in one.

The hidden states of all of them are one text at the end of the line, as in every message that
carries such: the base64 of each, whole in itself, joined by a character that base64 has not. So
a sender splices what it was given, and neither decodes nor counts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from worker.protocol.codec import ErrorReply, ReplyLine, parse_reply, parse_request
from worker.protocol.errors import ErrorCode, ProtocolError
from worker.protocol.ops import (
    DecodeStep,
    EmbedAndForward,
    ForwardAndSample,
    ForwardRange,
    HiddenReply,
    Reply,
    Request,
    RequestId,
    Together,
    TogetherReply,
)
from worker.protocol.roles import StageIdentity
from worker.protocol.schema import to_fields

# Those that run layers; the others have nothing to share.
JOINABLE = (EmbedAndForward, DecodeStep, ForwardRange, ForwardAndSample)
_JOINT = b"."


def join_requests(request_id: RequestId, requests: Sequence[Request[Any]]) -> Together:
    """Return one request that asks for all of them; `request_id` names it, and no KV cache.

    Those of requests that go over links are named in it later: `give_link`, `take_link`.
    """
    objects, hidden = [], []
    for request in requests:
        fields = to_fields(request)
        if (own := getattr(request, "hidden_b64", None)) is not None:
            fields.pop("hidden_b64")
            hidden.append(own)
        objects.append({"op": request.op, "request_id": request.request_id, **fields})
    return Together(
        request_id=request_id,
        requests=tuple(objects),
        hidden_b64=_JOINT.join(hidden) if hidden else None,
    )


def split_requests(
    together: Together, identity: StageIdentity
) -> list[Request[Any] | ProtocolError]:
    """Return each request that was joined, or what is wrong with it.

    Raises:
        ProtocolError: `bad_field`: none are given, they do not go together, or their hidden
            states cannot be told apart.
    """
    if not together.requests:
        raise ProtocolError(ErrorCode.BAD_FIELD, "'requests' must be non-empty")
    kinds = {kind.op: kind for kind in JOINABLE}
    ops = [values.get("op") for values in together.requests]
    if foreign := [op for op in ops if not isinstance(op, str) or op not in kinds]:
        raise ProtocolError(
            ErrorCode.BAD_FIELD,
            f"'requests' holds op {ascii(foreign[0])[:80]}; only {', '.join(kinds)} go together",
        )
    ids = [values.get("request_id") for values in together.requests]
    if len({repr(one) for one in ids}) < len(ids):
        raise ProtocolError(
            ErrorCode.BAD_FIELD, "'requests' names a request_id twice: send one after the other"
        )
    carrying = [op for op in ops if op in (ForwardRange.op, ForwardAndSample.op)]
    pieces = _pieces(together.hidden_b64, len(carrying), "requests with hidden states")
    parts: list[Request[Any] | ProtocolError] = []
    for values, op in zip(together.requests, ops, strict=True):
        own = {"hidden_b64": next(pieces)} if op in (ForwardRange.op, ForwardAndSample.op) else {}
        try:
            parts.append(parse_request({**values, **own}, identity))
        except ProtocolError as error:
            parts.append(error)
    return parts


def join_replies(answers: Sequence[Reply | ProtocolError]) -> TogetherReply:
    """Return one reply that holds all of them."""
    objects: list[dict[str, Any]] = []
    hidden = []
    for answer in answers:
        if isinstance(answer, ProtocolError):
            objects.append({"error": answer.text, "code": str(answer.code)})
            continue
        fields = to_fields(answer)
        if isinstance(answer, HiddenReply):
            fields.pop("hidden_b64")
            hidden.append(answer.hidden_b64)
        objects.append(fields)
    return TogetherReply(replies=tuple(objects), hidden_b64=_JOINT.join(hidden) if hidden else None)


def linked_hidden(reply: TogetherReply) -> tuple[bytes, TogetherReply]:
    """Return what goes over the link in place of the reply's hidden states, and what stays.

    Over the link there is a part for each request, an empty one where it failed: the next stage is
    asked for all of them, as nobody knows yet.
    """
    pieces = iter((reply.hidden_b64 or b"").split(_JOINT))
    carried = [b"" if "error" in values else next(pieces) for values in reply.replies]
    succeeded = sum("error" not in values for values in reply.replies)
    empty = _JOINT.join([b""] * succeeded) if succeeded else None
    return _JOINT.join(carried), replace(reply, hidden_b64=empty)


def split_replies(
    requests: Sequence[Request[Any]], reply: TogetherReply
) -> list[Reply | ErrorReply]:
    """Return the reply to each of the requests that were joined, as its op promises.

    Raises:
        ProtocolError: the worker broke the protocol.
    """
    if len(reply.replies) != len(requests):
        raise ProtocolError(
            ErrorCode.BAD_FIELD,
            f"'replies' has {len(reply.replies)} replies to {len(requests)} requests",
        )
    carrying = [
        request.reply is HiddenReply and "error" not in values
        for request, values in zip(requests, reply.replies, strict=True)
    ]
    pieces = _pieces(reply.hidden_b64, sum(carrying), "replies with hidden states")
    parts: list[Reply | ErrorReply] = []
    for request, values, carries in zip(requests, reply.replies, carrying, strict=True):
        if isinstance(values.get("error"), str):
            code = str(values.get("code", ErrorCode.INTERNAL))
            parts.append(ErrorReply(request.request_id, values["error"], code))
            continue
        fields = {**values, "hidden_b64": next(pieces)} if carries else values
        line = ReplyLine(request.request_id, fields)
        parts.append(parse_reply(request.reply, line))
    return parts


def _pieces(hidden_b64: bytes | None, wanted: int, what: str) -> Iterator[bytes]:
    pieces = [] if hidden_b64 is None else hidden_b64.split(_JOINT)
    if len(pieces) != wanted:
        raise ProtocolError(
            ErrorCode.BAD_FIELD,
            f"'hidden_b64' has {len(pieces)} parts joined by '.', there are {wanted} {what}",
        )
    return iter(pieces)
