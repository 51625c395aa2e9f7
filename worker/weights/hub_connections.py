"""The connections that a fetch has made, so that blocked reads can be ended from outside."""

from __future__ import annotations

import socket
import threading
import weakref
from contextlib import suppress
from typing import Any


class Connections:
    """Learns of connections as they are made; any thread may shut them all."""

    def __init__(self) -> None:
        self._streams: weakref.WeakSet[Any] = weakref.WeakSet()
        self._lock = threading.Lock()
        self._shut = False

    def watch(self, event: str, info: dict[str, Any]) -> None:
        """Note what the HTTP client did: its `trace` extension.

        Both the making of a connection and its change to TLS hand out a network stream.
        Source: httpx, "Request extensions".
        """
        if event.endswith((".connect_tcp.complete", ".start_tls.complete")):
            self.add(info["return_value"])

    def add(self, stream: Any) -> None:
        """Note a network stream; one that comes too late is shut at once."""
        with self._lock:
            self._streams.add(stream)
            shut = self._shut
        if shut:
            _shut(stream)

    def shut(self) -> None:
        """Shut them all: whoever reads from one gets its end."""
        with self._lock:
            self._shut = True
            streams = list(self._streams)
        for stream in streams:
            _shut(stream)


def _shut(stream: Any) -> None:
    connection = stream.get_extra_info("socket")
    with suppress(OSError):  # it was closed meanwhile
        # not SSLSocket's own shutdown: it takes the TLS state away under the reading thread
        socket.socket.shutdown(connection, socket.SHUT_RDWR)
