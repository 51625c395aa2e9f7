"""The sending end of a link."""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import socket
import ssl
import threading
import time
from collections.abc import Sequence

from worker.links.errors import LinkClosed, Unreachable
from worker.links.wire import (
    ACCEPTED,
    Frame,
    Kind,
    bounded,
    hang_up,
    keep_alive,
    read_exactly,
)

CONNECT_S = 3.0
# TCP starts slowly again after an idle time of its retransmission timeout, 200 ms at least: a line
# of more than 10 segments then takes a round trip more. Less than that apart, while it is in use.
_WARM_S = 0.1
_IN_USE_S = 5.0


class Outgoing:
    """Hands hidden states on, and keeps the connection warm in between."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._writing = threading.Lock()
        self._closed = threading.Event()
        self._used = threading.Event()
        self._used_s = 0.0
        threading.Thread(target=self._keep_warm, name="worker_link_warm", daemon=True).start()

    def hand_on(self, ticket: int, hidden_b64: bytes) -> None:
        """Send hidden states.

        Raises:
            OSError: the link is lost.
        """
        self._send(Frame(Kind.HIDDEN, ticket, hidden_b64))

    def fail(self, ticket: int, why: str) -> None:
        """Tell that there will be no hidden states; where the link is lost, its end says so."""
        with contextlib.suppress(OSError):
            self._send(Frame(Kind.FAILED, ticket, why.encode()))

    def close(self) -> None:
        """End the link."""
        self._closed.set()
        self._used.set()
        hang_up(self._connection)
        with self._writing:
            self._connection.close()

    def _send(self, frame: Frame) -> None:
        with self._writing:
            self._connection.sendall(frame.encode())
        self._used_s = time.monotonic()
        self._used.set()

    def _keep_warm(self) -> None:
        frame = Frame(Kind.WARM).encode()
        with contextlib.suppress(OSError, ValueError):  # The next `give` tells that it is lost.
            while self._used.wait() and not self._closed.wait(_WARM_S):
                if time.monotonic() - self._used_s > _IN_USE_S:
                    self._used.clear()
                    continue
                with self._writing:
                    self._connection.sendall(frame)


def connect(
    hosts: Sequence[str], port: int, cert_sha256: str, token: bytes
) -> tuple[str, Outgoing]:
    """Return the first host that answers as the one that is meant, and the link to it.

    Raises:
        Unreachable: none does; the sentence says why, for each.
    """
    failed = []
    for host in hosts:
        try:
            return host, _connect(host, port, cert_sha256, token)
        except (OSError, LinkClosed) as error:
            why = getattr(error, "strerror", None) or str(error) or type(error).__name__
            failed.append(f"{host} port {port}: {why}")
    raise Unreachable("; ".join(failed) or "no address was given")


def _connect(host: str, port: int, cert_sha256: str, token: bytes) -> Outgoing:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    # Known by its hash, which came over the orchestrator's pipe, and by nothing else.
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    plain = socket.create_connection((host, port), CONNECT_S)
    try:
        with bounded(plain, CONNECT_S):
            keep_alive(plain)
            return Outgoing(_proven(context.wrap_socket(plain), cert_sha256, token))
    finally:
        plain.close()  # TLS has taken it over, where it got that far.


def _proven(connection: ssl.SSLSocket, cert_sha256: str, token: bytes) -> ssl.SSLSocket:
    """Return the connection once each end has proven to the other who it is."""
    try:
        shown = hashlib.sha256(connection.getpeercert(binary_form=True) or b"").hexdigest()
        if not hmac.compare_digest(shown, cert_sha256):
            raise LinkClosed("who answers there shows another certificate")
        connection.sendall(token)
        if read_exactly(connection, len(ACCEPTED)) != ACCEPTED:
            raise LinkClosed("who answers there speaks another protocol")
        connection.settimeout(None)
    except BaseException:
        connection.close()
        raise
    return connection
