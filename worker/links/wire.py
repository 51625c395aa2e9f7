"""Bytes of a link: a proof of who connects, then frames in one direction."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum

from worker.links.errors import LinkClosed
from worker.protocol.codec import MAX_LINE_BYTES

# A token is told over the pipe of the orchestrator; it has this length, so that no more is read
# from whoever connects.
TOKEN_BYTES = 64
ACCEPTED = b"ok\n"
_HEAD = struct.Struct("<BQI")
# A cut link is noticed by the end that only reads, in some 11 s, and by the one that writes.
_KEEP_ALIVE = {"TCP_KEEPIDLE": 5, "TCP_KEEPINTVL": 2, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": 10_000}


class Kind(IntEnum):
    """What a frame is."""

    HIDDEN = 0
    FAILED = 1
    WARM = 2


@dataclass(frozen=True, slots=True)
class Frame:
    """One message: hidden states as base64, or why there are none."""

    kind: Kind
    ticket: int = 0
    data: bytes = b""

    def encode(self) -> bytes:
        """Return its bytes."""
        return _HEAD.pack(self.kind, self.ticket, len(self.data)) + self.data


def read_frame(connection: socket.socket) -> Frame:
    """Wait for a frame.

    Raises:
        LinkClosed: there will be none.
        OSError: the connection is lost.
    """
    kind, ticket, size_bytes = _HEAD.unpack(read_exactly(connection, _HEAD.size))
    if size_bytes > MAX_LINE_BYTES or kind not in tuple(Kind):
        raise LinkClosed(f"a frame of kind {kind} and {size_bytes} bytes is none of this link")
    return Frame(Kind(kind), ticket, read_exactly(connection, size_bytes))


def read_exactly(connection: socket.socket, size_bytes: int) -> bytes:
    """Wait for so many bytes.

    Raises:
        LinkClosed: the connection ended before.
        OSError: the connection is lost.
    """
    data = bytearray(size_bytes)
    rest = memoryview(data)
    while rest:
        came = connection.recv_into(rest)
        if not came:
            raise LinkClosed("the stage before has closed it")
        rest = rest[came:]
    return bytes(data)


def keep_alive(connection: socket.socket) -> None:
    """Have the kernel notice when the other end is gone without a word; send at once."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEP_ALIVE.items():
        with contextlib.suppress(AttributeError, OSError):  # Not on this system.
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


@contextlib.contextmanager
def bounded(connection: socket.socket, limit_s: float) -> Iterator[None]:
    """Hang up where the block takes longer, however slowly the other end drips its bytes."""
    # A double, as TLS takes the socket itself over.
    with connection.dup() as double:
        timer = threading.Timer(limit_s, hang_up, (double,))
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()
            timer.join()


def hang_up(connection: socket.socket) -> None:
    """End a connection that another thread may be reading; that thread closes it."""
    with contextlib.suppress(OSError):  # It has ended already.
        # Not SSLSocket's own, which takes the state away that the other thread is using.
        socket.socket.shutdown(connection, socket.SHUT_RDWR)
