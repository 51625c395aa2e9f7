"""The loop: line -> request -> handler -> reply -> `op` event.

Errors are caught here and nowhere else: a `ProtocolError` is answered with its code, anything
else with `internal` and a traceback event; the worker serves on.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from worker.channel import Channel, End
from worker.handlers import Handlers
from worker.links import Links
from worker.protocol.codec import decode_request, encode_error, encode_reply
from worker.protocol.events import Event, Op, OpTraceback
from worker.protocol.exits import ExitCode
from worker.protocol.ops import OPS, Request, Shutdown
from worker.protocol.roles import StageIdentity
from worker.protocol.schema import ErrorCode, ProtocolError
from worker.stopwatch import Stopwatch

_UNKNOWN_OP = "?"


@dataclass(slots=True)
class Outcome:
    """What one line led to."""

    line: bytes
    request: Request[Any] | None = None
    error: ProtocolError | None = None


class Server:
    """Answers every line of a channel, one after the other."""

    def __init__(
        self,
        channel: Channel,
        identity: StageIdentity,
        handlers: Handlers[Any],
        emit: Callable[[Event], None],
        links: Links | None = None,
    ) -> None:
        self._channel = channel
        self._identity = identity
        self._handlers = handlers
        self._emit = emit
        self._links = links or Links()
        self._seen: set[str] = set()
        self.requests_served = 0

    def run(self) -> End:
        """Serve until there is no more to serve; return why."""
        while True:
            idle_from_s = time.perf_counter()
            taken = self._channel.take()
            if isinstance(taken, End):
                return taken
            taken_s = time.perf_counter()
            timed = Stopwatch()
            outcome = self._answer(taken, timed)
            self._channel.reply(outcome.line)  # Before its event: the reply is what is waited for.
            self.requests_served += 1
            done_s = time.perf_counter()
            in_bytes = len(taken) if isinstance(taken, bytes) else 0
            idle_ms, took_ms = (taken_s - idle_from_s) * 1000, (done_s - taken_s) * 1000
            for event in timed.tracebacks:
                self._emit(event)
            idle_ms, took_ms = idle_ms + timed.waited_ms, took_ms - timed.waited_ms
            self._report(outcome, timed, in_bytes, idle_ms, took_ms)
            if isinstance(outcome.request, Shutdown):
                return End("shutdown", ExitCode.OK)

    def _answer(self, taken: bytes | ProtocolError, timed: Stopwatch) -> Outcome:
        request = None
        try:
            if isinstance(taken, ProtocolError):
                raise taken
            with timed("decode"):
                request = decode_request(taken, self._identity)
            if getattr(request, "take_link", None) is not None:
                request = self._wait(request, timed)
            about_links = self._links.handler(request)
            if about_links is not None:
                reply = about_links(request)
            else:
                reply = self._links.handed_on(request, self._handlers.handle(request, timed))
            with timed("encode"):
                return Outcome(encode_reply(request.request_id, reply), request)
        except ProtocolError as error:
            problem = error
        except Exception as error:  # noqa: BLE001 - whatever a model does, the worker serves on.
            problem = self._failed(request, error)
        if request is not None:
            problem.request_id = request.request_id
        self._links.failed(request, problem.text)
        return Outcome(encode_error(problem), request, problem)

    def _wait(self, request: Request[Any], timed: Stopwatch) -> Request[Any]:
        """Return the request with the hidden states that come over the link."""
        start_s = time.perf_counter()
        try:
            return self._links.filled(request)
        finally:
            timed.waited_ms = (time.perf_counter() - start_s) * 1000

    def _failed(self, request: Request[Any] | None, error: Exception) -> ProtocolError:
        if request is not None:
            problem, event = self._handlers.failures.told(request, error)
            if event is not None:
                self._emit(event)
            return problem
        if isinstance(error, MemoryError):
            return ProtocolError(ErrorCode.OUT_OF_MEMORY, f"no memory for the line: {error}")
        text = "".join(traceback.format_exception(error))
        self._emit(OpTraceback(op=_UNKNOWN_OP, traceback=text))
        told = f"op '{_UNKNOWN_OP}' failed: {type(error).__name__}: {error}"
        return ProtocolError(ErrorCode.INTERNAL, told)

    def _report(
        self, outcome: Outcome, timed: Stopwatch, in_bytes: int, idle_ms: float, took_ms: float
    ) -> None:
        request, error = outcome.request, outcome.error
        named = request or error
        name = (named.op if named else None) or _UNKNOWN_OP
        self._emit(
            Op(
                op=name,
                rid=named.request_id if named else None,
                duration_ms=round(took_ms, 3),
                idle_ms_before=round(idle_ms, 3),
                first_call=name in OPS and name not in self._seen,
                ok=error is None,
                code=str(error.code) if error else None,
                in_bytes=in_bytes,
                out_bytes=len(outcome.line),
                seq_len=_seq_len(request) if timed.rows is None else timed.rows,
                requests=timed.requests,
                compute_ms=timed.compute_ms,
            )
        )
        self._seen.add(name)


def _seq_len(request: Request[Any] | None) -> int | None:
    """Return the rows per sequence an op worked on, where it works on rows."""
    if request is None:
        return None
    tokens = getattr(request, "tokens", None)
    if (seq_len := getattr(request, "seq_len", None)) is not None:
        return int(seq_len)
    if tokens is not None:
        return len(tokens) // getattr(request, "batch", 1)
    return 1 if request.op == "decode_step" else None
