"""Serve a test hub on loopback, and leave nothing open behind."""

from __future__ import annotations

import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from typing import Any

from tests.support.hub_handler import HubHandler, HubServer, Site


class _Server(HubServer):
    """A server whose end closes its connections too."""

    request_queue_size = 64

    def __init__(self, handler: type[BaseHTTPRequestHandler]) -> None:
        super().__init__(("127.0.0.1", 0), handler)
        self.ended = threading.Event()
        self._open: set[socket.socket] = set()

    def process_request(self, request: Any, client_address: Any) -> None:
        self._open.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        self._open.discard(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Keep quiet about a client that went away, which is no error here."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)

    def end(self) -> None:
        """Stop serving and close every connection."""
        self.ended.set()
        self.shutdown()
        for connection in list(self._open):
            try:
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue  # its thread was faster
        self.server_close()


@contextmanager
def serve(site: Site, at: str) -> Iterator[str]:
    """Serve on a free port of loopback until the block ends; yield the address."""

    class Handler(HubHandler):
        pass

    Handler.site, Handler.at = site, at
    server = _Server(Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.end()
        thread.join()
