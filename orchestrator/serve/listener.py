"""The socket that is listened at, taken before anything else is started."""

from __future__ import annotations

import errno
import ipaddress
import socket
from dataclasses import dataclass

_BACKLOG = 512
_FIRST_FREE_PORT = 1024
# The system grows it to megabytes for a client that does not read; that much is written in vain.
_SEND_BUFFER_BYTES = 128 * 1024


class CannotListen(Exception):
    """The address cannot be listened at; one sentence."""


@dataclass(frozen=True, slots=True)
class Listener:
    """A socket that listens; whoever has it closes it.

    Attributes:
        host: as the user named it.
        port: the one that it has; chosen by the system where 0 was asked for.
    """

    socket: socket.socket
    host: str
    port: int

    def close(self) -> None:
        """Let the port go."""
        self.socket.close()

    @property
    def is_loopback(self) -> bool:
        """Whether only programs on this machine reach it."""
        return ipaddress.ip_address(self.socket.getsockname()[0].partition("%")[0]).is_loopback

    @property
    def is_everywhere(self) -> bool:
        """Whether it has every address of this machine."""
        return ipaddress.ip_address(self.socket.getsockname()[0].partition("%")[0]).is_unspecified

    @property
    def url(self) -> str:
        """Where a client on this machine finds it."""
        host = self.host
        if self.is_everywhere:
            host = "::1" if self.socket.family == socket.AF_INET6 else "127.0.0.1"
        return f"http://[{host}]:{self.port}" if ":" in host else f"http://{host}:{self.port}"

    @property
    def scope(self) -> str:
        """What the URL does not say of where it is found, as the begin of a list; else empty."""
        return "all addresses of this machine; " if self.is_everywhere else ""


def listen(host: str, port: int) -> Listener:
    """Listen; clients that come before the server accepts wait.

    Raises:
        CannotListen: there is no such address, or the port is taken or not ours to take.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        why = getattr(error, "strerror", None) or "no such name"
        raise CannotListen(
            f"--host {host!r} is no address of this machine ({why}); give one, as 127.0.0.1"
        ) from None
    # `localhost` is often both; what most clients try is taken.
    family, kind, number, _, address = min(found, key=lambda one: one[0] != socket.AF_INET)
    taken = socket.socket(family, kind, number)
    try:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # Each connection has it from here.
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER_BYTES)
        taken.bind(address)
        # Only who listens keeps others from the port.
        taken.listen(_BACKLOG)
        taken.setblocking(False)
    except OSError as error:
        taken.close()
        raise CannotListen(_why(host, port, error)) from None
    return Listener(taken, host, taken.getsockname()[1])


def _why(host: str, port: int, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return (
            f"port {port} of {host} is taken by another program; choose another with --port, or 0 "
            "for a free one"
        )
    if error.errno in (errno.EACCES, errno.EPERM):
        return (
            f"port {port} of {host} may not be listened at ({error.strerror}); choose one from "
            f"{_FIRST_FREE_PORT} on with --port"
        )
    if error.errno == errno.EADDRNOTAVAIL:
        return f"--host {host} is no address of this machine; give one, as 127.0.0.1 or 0.0.0.0"
    return f"cannot listen at {host}, port {port}: {error.strerror}; choose others"
