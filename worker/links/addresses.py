"""Addresses under which other hosts may reach this one."""

from __future__ import annotations

import ipaddress
import socket


def own_addresses() -> tuple[str, ...]:
    """Return this host's addresses: IPv4 before IPv6, loopback last, link-local ones left out."""
    # Imported here: most runs have no links.
    import psutil

    found = [
        address.address
        for addresses in psutil.net_if_addrs().values()
        for address in addresses
        if address.family in (socket.AF_INET, socket.AF_INET6)
    ]
    known = [ipaddress.ip_address(text) for text in found if "%" not in text]
    usable = [address for address in known if not address.is_link_local]
    return tuple(
        str(address) for address in sorted(usable, key=lambda a: (a.is_loopback, a.version))
    )
