"""HTTP as uvicorn speaks it, with a deadline for whatever a client may leave undone."""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from orchestrator.serve.connection import Connection
from orchestrator.serve.errors import ApiError
from orchestrator.serve.limits import MOST_HEAD_BYTES

# A client that still sends would lose the refusal to the system's answer to a closed port.
_LINGER_S = 2.0


class PunctualProtocol(H11Protocol):
    """Cuts clients that take too long to send a request's head, or to read what they asked for.

    uvicorn waits for both for ever. `receive_timeout_s` and `send_timeout_s` are set by
    `punctual`. What cannot be read is refused in OpenAI's shape.
    """

    receive_timeout_s: float
    send_timeout_s: float
    conn: Connection
    _cut_head: asyncio.TimerHandle | None = None
    _cut_unread: asyncio.TimerHandle | None = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.conn = Connection(self.config.h11_max_incomplete_event_size or MOST_HEAD_BYTES)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Wait for a request's head, and hold back no more than the system's own buffer."""
        super().connection_made(transport)
        # A client that reads nothing is noticed at the first byte that the system does not take.
        transport.set_write_buffer_limits(high=0)
        self._watch_head()

    def data_received(self, data: bytes) -> None:
        """Take bytes; as long as they are a part of a head, its deadline stands."""
        if self.conn.refusal is not None:
            return
        super().data_received(data)
        self._watch_head()

    def send_400_response(self, msg: str) -> None:
        """Refuse what cannot be read, where no answer has begun, and end the connection."""
        refusal = self.conn.refusal
        assert refusal is not None
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        if self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            self.transport.close()
            return
        self._write(refusal)
        self.transport.write_eof()
        # What still comes is thrown away; it may be held back by a body that nobody took.
        self.flow.resume_reading()
        self._forget_head()
        self._cut_head = self.loop.call_later(_LINGER_S, self.transport.abort)

    def on_response_complete(self) -> None:
        """Wait for the next request's head, if it has begun already."""
        super().on_response_complete()
        self._watch_head()

    def pause_writing(self) -> None:
        """Begin to wait for the client to read."""
        super().pause_writing()
        if self._cut_unread is None:
            self._cut_unread = self.loop.call_later(self.send_timeout_s, self.transport.abort)

    def resume_writing(self) -> None:
        """End to wait: it has read."""
        super().resume_writing()
        self._forget_unread()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the deadlines."""
        super().connection_lost(exc)
        self._forget_head()
        self._forget_unread()

    def _write(self, refusal: ApiError) -> None:
        response = refusal.response()
        response.headers["Connection"] = "close"
        is_head = self.conn.our_state is h11.SEND_RESPONSE and self.scope["method"] == "HEAD"
        for event in (
            h11.Response(
                status_code=response.status_code,
                headers=response.raw_headers,
                reason=HTTPStatus(response.status_code).phrase.encode(),
            ),
            h11.Data(data=b"" if is_head else bytes(response.body)),
            h11.EndOfMessage(),
        ):
            self.transport.write(self.conn.send(event))

    def _watch_head(self) -> None:
        if self.conn.refusal is not None:
            return  # It has a deadline of its own.
        # A connection without a first request counts too; later ones have the keep-alive timer.
        is_new = self.cycle is None
        has_part = bool(self.conn.trailing_data[0])
        if self.conn.their_state is not h11.IDLE or not (is_new or has_part):
            self._forget_head()
        elif self._cut_head is None:
            self._cut_head = self.loop.call_later(self.receive_timeout_s, self.transport.abort)

    def _forget_head(self) -> None:
        if self._cut_head is not None:
            self._cut_head.cancel()
            self._cut_head = None

    def _forget_unread(self) -> None:
        if self._cut_unread is not None:
            self._cut_unread.cancel()
            self._cut_unread = None


def punctual(receive_timeout_s: float, send_timeout_s: float) -> type[PunctualProtocol]:
    """Return the protocol with its deadlines; uvicorn wants a class."""
    values = {"receive_timeout_s": receive_timeout_s, "send_timeout_s": send_timeout_s}
    return type("Punctual", (PunctualProtocol,), values)
