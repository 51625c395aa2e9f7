"""What a client sends, read as HTTP with bounds that h11 does not have."""

from __future__ import annotations

import re
from http import HTTPStatus
from urllib.parse import urlsplit

import h11

from orchestrator.serve.errors import ApiError

_HEAD_END = re.compile(rb"\n\r?\n")
# A line costs this program tens of microseconds.
_MOST_LINES = 256
# A chunk costs it more than a hundred bytes do. Some may be small, all may not.
_MOST_SMALL_CHUNKS = 4096
_LEAST_CHUNK_BYTES = 128


class Connection(h11.Connection):
    """The server's end of a connection.

    Args:
        most_head_bytes: of a request's head, however it comes.

    Attributes:
        refusal: why what came cannot be read; set where `next_event` raises.
    """

    def __init__(self, most_head_bytes: int) -> None:
        super().__init__(h11.SERVER, most_head_bytes)
        self.refusal: ApiError | None = None
        self._most_head_bytes = most_head_bytes
        self._num_chunks = 0
        self._chunked_bytes = 0

    def next_event(self) -> h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]:
        """Return what has come next, a request for this server in the form that starts with `/`.

        Raises:
            h11.RemoteProtocolError: it cannot be read, or not at this price.
        """
        try:
            if self.their_state is h11.IDLE:
                self._check_head()
            event = super().next_event()
            if isinstance(event, h11.Data):
                self._count(event)
        except h11.RemoteProtocolError as error:
            self.refusal = self.refusal or ApiError(
                HTTPStatus.BAD_REQUEST,
                f"the request is no HTTP that can be read here: {error!s:.100}; send HTTP/1.1",
            )
            raise
        if isinstance(event, h11.Request):
            self._num_chunks = self._chunked_bytes = 0
            return _in_origin_form(event)
        return event

    def _check_head(self) -> None:
        """Refuse a head before it is read: h11 takes any size that came at once."""
        received, most = self.trailing_data[0], self._most_head_bytes
        found = _HEAD_END.search(received, 0, most)
        num_lines = received.count(b"\n", 0, len(received) if found is None else found.end())
        if found is None and len(received) > most:
            what, more = f"{most} bytes", "fewer or shorter"
        elif num_lines > _MOST_LINES:
            what, more = f"{_MOST_LINES} lines", "fewer"
        else:
            return
        self._refuse(
            HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE,
            f"the request's head has more than {what}; send {more} headers",
        )

    def _count(self, data: h11.Data) -> None:
        """Refuse a body of too many small chunks; one of a Content-Length has no chunks."""
        self._num_chunks += data.chunk_end
        self._chunked_bytes += len(data.data)
        small = self._num_chunks - self._chunked_bytes // _LEAST_CHUNK_BYTES
        if small > _MOST_SMALL_CHUNKS:
            self._refuse(
                HTTPStatus.BAD_REQUEST,
                f"the first {self._num_chunks} chunks of the body have {self._chunked_bytes} bytes "
                f"together; send chunks of {_LEAST_CHUNK_BYTES} bytes or more, or a "
                "Content-Length",
            )

    def _refuse(self, status: HTTPStatus, message: str) -> None:
        self.refusal = ApiError(status, message)
        raise h11.RemoteProtocolError(message, error_status_hint=status)


def _in_origin_form(request: h11.Request) -> h11.Request:
    """Return the request as clients send it to a server that they take for no proxy.

    One that names the whole address is answered alike, and for the host that the address names,
    whatever its Host header says (RFC 9112, 3.2.2).
    """
    if request.target.startswith(b"/"):
        return request
    try:
        url = urlsplit(request.target)
    except ValueError:
        return request
    if url.scheme not in (b"http", b"https") or not url.netloc:
        return request
    others = [(name, value) for name, value in request.headers if name != b"host"]
    query = b"?" + url.query if url.query else b""
    return h11.Request(
        method=request.method,
        headers=[(b"host", url.netloc), *others],
        target=(url.path or b"/") + query,
        http_version=request.http_version,
    )
