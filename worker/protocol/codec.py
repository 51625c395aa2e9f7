"""Bytes of one line <-> messages. Both ends use this file, so they cannot disagree.

Hidden states make lines long, and scanning a long string with a JSON parser costs far more than
moving it. So `hidden_b64` is written last in its object and spliced: encoding joins it in as it
is, decoding cuts it out before the JSON parser runs. A line from another writer (other spacing,
other key order) is parsed in the ordinary way and means the same.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeVar

from worker.protocol.events import EVENTS, Envelope, Event, Op, UnknownEvent
from worker.protocol.ops import OPS, Ping, Reply, Request, RequestId
from worker.protocol.ready import Ready
from worker.protocol.roles import StageIdentity
from worker.protocol.schema import REQUEST_ID, ErrorCode, ProtocolError, parse, to_fields

PROTOCOL_VERSION = "1.0"
MAX_LINE_BYTES = 256 * 1024 * 1024

# The longest request_id, escaped, fits several times.
_MAX_PING_BYTES = 8192
# What every `op` event of ours begins with.
OP_EVENT_HEAD = f'{{"event":"{Op.kind}",'.encode()
_HIDDEN = "hidden_b64"
_HIDDEN_HEAD = f'"{_HIDDEN}":"'.encode()
# What stands around hidden states is kept parsed up to this size.
_MOST_KEPT_BYTES = 512
# Made once: json.dumps makes one for each call that wants other separators than its own.
_ENCODER = json.JSONEncoder(separators=(",", ":"), allow_nan=False)

_DECODER = json.JSONDecoder()

R = TypeVar("R", bound=Reply)


@dataclass(frozen=True, slots=True)
class ReplyLine:
    """A reply whose type the asker knows; see `parse_reply`."""

    request_id: RequestId
    fields: dict[str, Any]


@dataclass(frozen=True, slots=True)
class ErrorReply:
    """An op that was refused; the worker serves on."""

    request_id: RequestId
    error: str
    code: str


@dataclass(frozen=True, slots=True)
class EventLine:
    """An event with what its emitter added."""

    event: Event
    envelope: Envelope


@dataclass(frozen=True, slots=True)
class Garbage:
    """A line that is none of these."""

    line: bytes
    reason: str


WorkerLine = ReplyLine | ErrorReply | Ready | EventLine | Garbage


def major(version: str) -> str:
    """Return the part of a protocol version that must be equal on both ends."""
    return version.partition(".")[0]


def decode_request(line: bytes, identity: StageIdentity | None) -> Request[Any]:
    """Read one request line for the stage that `identity` describes; None is none yet.

    Raises:
        ProtocolError: with the request_id where it could be read.
    """
    return parse_request(_object(line), identity)


def parse_request(values: dict[str, Any], identity: StageIdentity | None) -> Request[Any]:
    """Read one request from decoded JSON, for the stage that `identity` describes; None is none.

    Raises:
        ProtocolError: with the request_id where it could be read.
    """
    request_id = values.get("request_id")
    if not REQUEST_ID.accepts(request_id):
        raise ProtocolError(ErrorCode.BAD_FIELD, f"'request_id' must be {REQUEST_ID.expects}")
    op: str | None = None
    try:
        if "op" not in values:
            raise ProtocolError(ErrorCode.MISSING_FIELD, "missing 'op' field")
        name = values["op"]
        request = OPS.get(name) if isinstance(name, str) else None
        if request is None:
            shown = ascii(name)
            shown = shown if len(shown) <= 80 else shown[:77] + "..."
            raise ProtocolError(
                ErrorCode.UNKNOWN_OP, f"unknown op {shown}; this worker knows {', '.join(OPS)}"
            )
        op = request.op
        if identity is not None:
            identity.require_role(request)
        return parse(request, values)
    except ProtocolError as error:
        error.request_id, error.op = request_id, op
        raise


def decode_ping(line: bytes) -> Ping | None:
    """Return the ping that a line is, or None; cheap on every other line, and never raises."""
    if len(line) > _MAX_PING_BYTES or b"ping" not in line:
        return None
    try:
        values = _object(line)
        return parse(Ping, values) if values.get("op") == Ping.op else None
    except ProtocolError:
        return None  # The serving thread says what is wrong with it.


def decode_worker_line(line: bytes) -> WorkerLine:
    """Read one line of a worker's stdout; never raises."""
    try:
        values = _object(line)
        if "event" in values:
            return _event(values)
        if values.get("status") == "ready":
            return parse(Ready, values)
        if isinstance(values.get("error"), str):
            return ErrorReply(
                values.get("request_id"),
                values["error"],
                str(values.get("code", ErrorCode.INTERNAL)),
            )
        if "request_id" in values and REQUEST_ID.accepts(values["request_id"]):
            return ReplyLine(values.pop("request_id"), values)
    except ProtocolError as error:
        return Garbage(line, error.text)
    return Garbage(line, "neither a reply, an event nor the ready line")


def is_op_event(line: bytes) -> bool:
    """Tell whether a worker's line is an `op` event, without reading its fields.

    Every op has one, and who only keeps them need not know more. False says nothing: another
    writer's line is found by `decode_worker_line`.
    """
    if not line.startswith(OP_EVENT_HEAD):
        return False
    try:
        return isinstance(_json(line), dict)
    except ProtocolError:
        return False


def parse_reply(reply: type[R], line: ReplyLine) -> R:
    """Read a reply as the type its op promises.

    Raises:
        ProtocolError: the worker broke the protocol.
    """
    return parse(reply, line.fields)


def encode_request(request: Request[Any]) -> bytes:
    """Return the request as one line."""
    fields = to_fields(request, without=_HIDDEN)
    return _line({"op": request.op, "request_id": request.request_id, **fields}, request)


def encode_reply(request_id: RequestId, reply: Reply) -> bytes:
    """Return the reply as one line."""
    return _line({"request_id": request_id, **to_fields(reply, without=_HIDDEN)}, reply)


def encode_error(error: ProtocolError) -> bytes:
    """Return an error reply as one line; without request_id where no object could be read."""
    unread = error.code is ErrorCode.BAD_JSON
    fields: dict[str, Any] = {} if unread else {"request_id": error.request_id}
    return _dump({**fields, "error": error.text, "code": str(error.code)}) + b"\n"


def encode_ready(ready: Ready) -> bytes:
    """Return the ready line."""
    return _dump({"status": "ready", **to_fields(ready)}) + b"\n"


def encode_event(event: Event, envelope: Envelope) -> bytes:
    """Return the event as one line."""
    own = event.fields if isinstance(event, UnknownEvent) else to_fields(event)
    return _dump({"event": event.kind, **own, **to_fields(envelope)}) + b"\n"


def _event(values: dict[str, Any]) -> EventLine:
    kind = values["event"]
    try:
        envelope = parse(Envelope, values)
    except ProtocolError:
        envelope = Envelope()
    known = EVENTS.get(kind) if isinstance(kind, str) else None
    if known is not None:
        try:
            return EventLine(parse(known, values), envelope)
        except ProtocolError:
            pass  # Another version's fields: kept whole below, so nothing is lost.
    return EventLine(UnknownEvent(fields=values), envelope)


def _dump(values: dict[str, Any]) -> bytes:
    return _ENCODER.encode(values).encode("ascii")


def _line(values: dict[str, Any], message: object) -> bytes:
    hidden: bytes | None = getattr(message, _HIDDEN, None)
    if hidden is None:
        return _dump(values) + b"\n"
    return b"".join((_dump(values)[:-1], b",", _HIDDEN_HEAD, hidden, b'"}\n'))


def _object(line: bytes) -> dict[str, Any]:
    if len(line) > MAX_LINE_BYTES:
        raise ProtocolError(
            ErrorCode.BAD_JSON, f"line of {len(line)} bytes is over the limit of {MAX_LINE_BYTES}"
        )
    values = _spliced(line)
    if values is None:
        values = _json(line)
    if not isinstance(values, dict):
        raise ProtocolError(
            ErrorCode.BAD_JSON, f"request must be a JSON object, got {type(values).__name__}"
        )
    return values


def _spliced(line: bytes) -> dict[str, Any] | None:
    """Cut the hidden states out before parsing; None when the line must be parsed whole."""
    head = line.find(_HIDDEN_HEAD)
    if head < 1 or line[head - 1 : head] not in (b",", b"{"):
        return None
    start = head + len(_HIDDEN_HEAD)
    end = line.find(b'"', start)
    if end < 0 or line.find(_HIDDEN_HEAD, end) >= 0 or line.find(b"\\", start, end) >= 0:
        return None
    around = line[:start] + line[end:]
    # The same at each step of an answer. What is nested in it is shared: nobody changes it.
    values = _json(around) if len(around) > _MOST_KEPT_BYTES else _kept_around(around)
    if not isinstance(values, dict) or values.get("hidden_b64") != "":
        return None  # The pattern was nested deeper; no message of ours does that.
    return {**values, "hidden_b64": line[start:end]}


@lru_cache(maxsize=64)
def _kept_around(around: bytes) -> Any:
    return _json(around)


def _json(line: bytes) -> Any:
    try:
        text = line.decode("utf-8")
        if text.startswith("{"):
            # What json.loads does first, without its search for blanks: our own lines have none.
            values, end = _DECODER.raw_decode(text)
            if text[end:] in ("", "\n"):
                return values
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        # ValueError covers bad UTF-8, bad JSON and integers of absurd length.
        raise ProtocolError(ErrorCode.BAD_JSON, f"invalid JSON: {error}") from None
