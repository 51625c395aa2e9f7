"""A port that is open for one connection, for a short while, to the one who knows the token."""

from __future__ import annotations

import contextlib
import hmac
import socket
import threading
import time
from collections.abc import Callable

from worker.links.certificate import Certificate
from worker.links.errors import LinkClosed
from worker.links.wire import (
    TOKEN_BYTES,
    bounded,
    hang_up,
    keep_alive,
    read_exactly,
)

OPEN_S = 30.0
HANDSHAKE_S = 5.0


class Listener:
    """Waits for the stage before; whoever else connects is turned away, and nobody told why.

    Args:
        address: to listen on; "" is every one of this host.
        certificate: what it shows.
        token: what the stage before must send.
        accept: takes the connection, and owes it `ACCEPTED`; called from a thread.

    Raises:
        OSError: it cannot listen there.
    """

    def __init__(
        self,
        address: str,
        certificate: Certificate,
        token: bytes,
        accept: Callable[[socket.socket], None],
    ) -> None:
        if address or not socket.has_dualstack_ipv6():
            self._socket = socket.create_server((address, 0))
        else:
            self._socket = socket.create_server(
                ("", 0), family=socket.AF_INET6, dualstack_ipv6=True
            )
        self.port: int = self._socket.getsockname()[1]
        self._certificate = certificate
        self._token = token
        self._accept = accept
        threading.Thread(target=self._wait, name="worker_link_listen", daemon=True).start()

    def close(self) -> None:
        """Close the port; safe to call again."""
        hang_up(self._socket)

    def _wait(self) -> None:
        until_s = time.monotonic() + OPEN_S
        with self._socket:
            while (left_s := until_s - time.monotonic()) > 0:
                self._socket.settimeout(left_s)
                try:
                    plain, _ = self._socket.accept()
                except OSError:
                    return  # Nobody came, or it was closed.
                if self._greet(plain):
                    return

    def _greet(self, plain: socket.socket) -> bool:
        """Let the stage before in; tell whether it was that."""
        plain.settimeout(HANDSHAKE_S)
        # What a stranger sends is his own affair: a scan of ports must not fill a log.
        with contextlib.suppress(OSError, ValueError), bounded(plain, HANDSHAKE_S):
            connection = self._certificate.context.wrap_socket(plain, server_side=True)
            if self._is_known(connection):
                keep_alive(connection)
                connection.settimeout(None)
                self._accept(connection)
                return True
            connection.close()
        plain.close()
        return False

    def _is_known(self, connection: socket.socket) -> bool:
        try:
            return hmac.compare_digest(read_exactly(connection, TOKEN_BYTES), self._token)
        except (OSError, LinkClosed):
            return False
