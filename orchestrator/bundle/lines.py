"""One line of a bundle's file -> a typed record, as lenient as other versions need it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import MISSING, dataclass
from typing import Any, TypeVar

from worker.protocol.codec import Garbage, WorkerLine, decode_worker_line
from worker.protocol.schema import ProtocolError, parse, rules_of

T = TypeVar("T")

LATEST_MS = 1e15  # Some 30,000 years; a larger number is no time.
_MOST = 10**18  # Larger numbers would overflow where they are added up; nobody measures such.


@dataclass(frozen=True, slots=True)
class StageLine:
    """A line of a worker's stdout; `wall_ms` is the orchestrator's clock."""

    stage: int
    host: str
    wall_ms: float
    message: WorkerLine
    raw: str


class BadLineError(Exception):
    """What is wrong with one line or file."""


def object_of(line: bytes) -> dict[str, Any]:
    """Read a JSON object.

    Raises:
        BadLineError: it is none.
    """
    try:
        values = json.loads(line.decode("utf-8"), parse_float=_real, parse_int=_whole)
    except (ValueError, RecursionError):
        raise BadLineError("not JSON, or cut") from None
    if not isinstance(values, dict):
        raise BadLineError("no JSON object")
    return values


def _real(digits: str) -> float:
    return max(-float(_MOST), min(float(_MOST), float(digits)))


def _whole(digits: str) -> int:
    return max(-_MOST, min(_MOST, int(digits)))


def parser_of(message: type[T]) -> Callable[[dict[str, Any]], T]:
    """Return `build` for one kind of record."""
    return lambda values: build(message, values)


def build(message: type[T], values: dict[str, Any]) -> T:
    """Build a record; an optional field that cannot be read counts as absent.

    Raises:
        BadLineError: a field that it needs is missing or cannot be read.
    """
    try:
        return parse(message, values)
    except ProtocolError:
        bad = _unreadable(message, values)
        kept = {name: value for name, value in values.items() if name not in bad}
    try:
        return parse(message, kept)
    except ProtocolError as error:
        raise BadLineError(error.text) from None


def _unreadable(message: type[Any], values: dict[str, Any]) -> set[str]:
    return {
        field.name
        for field, known in rules_of(message)
        if field.default is not MISSING
        and not (known.accepts(value := values.get(field.name)) and known.check(value) is None)
    }


def stage_line(values: dict[str, Any]) -> StageLine:
    """Build a line of events.jsonl.

    Raises:
        BadLineError: it does not tell whose line it is, or when it came.
    """
    stage, host, wall_ms = values.get("stage"), values.get("host"), values.get("wall_ms")
    if (
        not (isinstance(stage, int) and isinstance(host, str))
        or isinstance(stage, bool)
        or not isinstance(wall_ms, (int, float))
        or not 0 <= wall_ms < LATEST_MS
    ):
        raise BadLineError("'stage', 'host' and 'wall_ms' must tell whose line it is, and when")
    message: WorkerLine
    if isinstance(line := values.get("line"), dict):
        raw = json.dumps(line, separators=(",", ":"))
        message = decode_worker_line(raw.encode("ascii"))
    else:
        raw = str(values.get("garbage", ""))
        message = Garbage(raw.encode("utf-8", "replace"), "neither a reply, an event nor ready")
    return StageLine(stage, host, float(wall_ms), message, raw)
