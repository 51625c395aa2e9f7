"""Where ssh goes: `[user@]host[:port]`, an alias of the ssh configuration, or `[IPv6]:port`."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass

_USER = re.compile(r"[\w.][\w.+-]*\$?")
_HOST = re.compile(r"\w[\w.-]*")


@dataclass(frozen=True, slots=True)
class Address:
    """A host for the ssh client; what is None is left to its configuration."""

    host: str
    user: str | None = None
    port: int | None = None

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        user = f"{self.user}@" if self.user else ""
        return user + host + (f":{self.port}" if self.port else "")


def parse_address(text: str) -> Address:
    """Read an address.

    Raises:
        ValueError: it is none; the text says what is wrong.
    """
    # ssh would take such a word for an option, and some options run programs.
    if text.startswith("-") or "@-" in text:
        raise ValueError(f"host {text!r} begins with '-'; write the host's name or address")
    user, at, rest = text.rpartition("@")
    if at and not _USER.fullmatch(user):
        raise ValueError(f"{user!r} before '@' is not a user name; write user@host")
    host, port_text = _split_port(rest)
    return Address(host, user or None, None if port_text is None else _port(port_text))


def _split_port(text: str) -> tuple[str, str | None]:
    if text.startswith("["):
        inside, bracket, after = text[1:].partition("]")
        if not bracket or (after and not after.startswith(":")):
            raise ValueError(f"{text!r} is not [IPv6] or [IPv6]:port")
        if not _is_ipv6(inside):
            raise ValueError(f"{inside!r} in brackets is not an IPv6 address")
        return inside, after[1:] if after else None
    if _is_ipv6(text):
        raise ValueError(
            f"write the IPv6 address in brackets: [{text}], or [{text}]:22 with a port"
        )
    host, colon, port = text.partition(":")
    if not _HOST.fullmatch(host):
        raise ValueError(
            f"{host!r} is not a host name; write host, user@host, host:port, [IPv6]:port, local "
            'or command="…"'
        )
    return host, port if colon else None


def _port(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,5}", text) or not 1 <= int(text) <= 65535:
        raise ValueError(f"port {text!r} must be a number from 1 to 65535")
    return int(text)


def _is_ipv6(text: str) -> bool:
    try:
        ipaddress.IPv6Address(text)
    except ValueError:
        return False
    return True
