"""Answer the requests to a test hub: ranges, counted bodies, and faults as they are told."""

from __future__ import annotations

import re
import select
import socket
import struct
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Protocol

from tests.support.hub_faults import Asked, Fault, Faults

_CHUNK_BYTES = 256 << 10
_RESET = struct.pack("ii", 1, 0)
# How often a connection that is kept silent is looked at.
_LOOK_S = 0.01


@dataclass(frozen=True, slots=True)
class Answer:
    """What to answer: a file where there is one, of which a range may have been asked."""

    status: int
    headers: dict[str, str] = field(default_factory=dict)
    file: Path | None = None


class Site(Protocol):
    """What is served."""

    faults: Faults

    def note(self, asked: Asked) -> None:
        """Record a request."""

    def count(self, file: str, num_bytes: int) -> None:
        """Record bytes sent."""

    def answer(self, asked: Asked) -> Answer:
        """Return the right answer."""


class HubServer(ThreadingHTTPServer):
    """What a handler needs of its server.

    Attributes:
        ended: set when the server ends.
    """

    ended: threading.Event


class HubHandler(BaseHTTPRequestHandler):
    """Answers for one of the addresses, `at`, of a site."""

    protocol_version = "HTTP/1.1"
    # headers and body are written one after the other, which Nagle's algorithm would hold up
    disable_nagle_algorithm = True
    site: Site
    at: str
    server: HubServer

    def do_HEAD(self) -> None:
        self._serve()

    def do_GET(self) -> None:
        self._serve()

    def log_message(self, *_args: Any) -> None:
        """Keep quiet."""

    def _serve(self) -> None:
        name = self.path.partition("?")[0].rpartition("/")[2]
        headers = {key.lower(): value for key, value in self.headers.items()}
        asked = Asked(self.command, self.at, name, headers, self.path)
        self.site.note(asked)
        fault = self.site.faults.next(asked)
        if fault.mute:
            self._keep_silent()
        if fault.mute or fault.drop:
            self._end(reset=fault.reset)
            return
        if fault.status is not None:
            code = {"X-Error-Code": fault.code} if fault.code else {}
            answer = Answer(fault.status, code)
        else:
            answer = self.site.answer(asked)
        self._send(asked, answer, fault)

    def _send(self, asked: Asked, answer: Answer, fault: Fault) -> None:
        status, headers = answer.status, dict(answer.headers)
        start = end = 0
        if answer.file is not None:
            size_bytes = answer.file.stat().st_size
            headers["Accept-Ranges"] = "bytes"
            start, end = 0, size_bytes
            if asked.range and not fault.whole:
                start, end = _range(asked.range, size_bytes)
                if start >= size_bytes:
                    status, start, end = 416, 0, 0
                    headers["Content-Range"] = f"bytes */{size_bytes}"
                else:
                    status = 206
                    start, end = start + fault.shift_bytes, end + fault.shift_bytes
                    headers["Content-Range"] = f"bytes {start}-{end - 1}/{size_bytes}"
        headers["Content-Length"] = str(end - start + fault.extra_bytes)
        if fault.chunked:
            del headers["Content-Length"]
            headers["Transfer-Encoding"] = "chunked"
        self.send_response_only(status)
        headers["Date"] = self.date_time_string()
        for key, value in (headers | dict(fault.headers)).items():
            if value is not None:
                self.send_header(key, value)
        self.end_headers()
        if self.command == "GET" and answer.file is not None:
            self._send_body(asked.file, answer.file, start, end, fault)
        elif fault.cut_bytes is not None:
            self._end(reset=fault.reset)

    def _send_body(self, name: str, file: Path, start: int, end: int, fault: Fault) -> None:
        stop = end
        for limit in (fault.cut_bytes, fault.stall_bytes):
            if limit is not None:
                stop = min(stop, start + limit)
        step = fault.trickle_bytes if fault.trickle_s is not None else _CHUNK_BYTES
        with file.open("rb") as opened:
            opened.seek(start)
            while start < stop:
                data = opened.read(min(step, stop - start))
                start += len(data)
                if start == end:
                    data += b"x" * fault.extra_bytes
                if not self._write(name, data, fault):
                    return
                if fault.trickle_s is not None and self.server.ended.wait(fault.trickle_s):
                    return
        if fault.stall_bytes is not None:
            self._keep_silent()
        if fault.chunked:
            self.wfile.write(b"0\r\n\r\n")
        elif fault.cut_bytes is not None or fault.stall_bytes is not None:
            self._end(reset=fault.reset)

    def _write(self, name: str, data: bytes, fault: Fault) -> bool:
        """Send a piece of a body and count it; tell whether the client still listens."""
        framed = b"%x\r\n%s\r\n" % (len(data), data) if fault.chunked else data
        # Counted first: a client may have read it, and a test looked, before this thread goes on.
        self.site.count(name, len(data))
        try:
            self.wfile.write(framed)
        except OSError:
            self.site.count(name, -len(data))
            self.close_connection = True
            return False
        return True

    def _keep_silent(self) -> None:
        """Wait until the client closes the connection or the server ends."""
        while not self.server.ended.is_set():
            readable, _, _ = select.select([self.connection], [], [], _LOOK_S)
            if readable and not self.connection.recv(1, socket.MSG_PEEK):
                return

    def _end(self, *, reset: bool) -> None:
        self.close_connection = True
        if reset:
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            # shutdown, which the server does for each request, would send the ordinary end first
            self.rfile.close()
            self.connection.close()


def _range(header: str, size_bytes: int) -> tuple[int, int]:
    """Return the half-open range that `bytes=first-last` asks of a file."""
    found = re.fullmatch(r"bytes=(\d+)-(\d*)", header)
    assert found, f"not a range that this hub knows: {header}"
    first, last = found.groups()
    return int(first), min(int(last) + 1, size_bytes) if last else size_bytes
