"""Make the link between two neighbouring stages; each is told over its own pipe."""

from __future__ import annotations

import ipaddress
import itertools
import secrets
from collections.abc import Sequence

from orchestrator.specs import StageSpec
from orchestrator.stage import StageClient
from worker.protocol.ops import Connect, Listen

HERE = "127.0.0.1"
# Each that does not answer costs seconds.
_MOST_ADDRESSES = 4
# A worker tries each address for 3 s, once for the connection and once for the rest; resolving a
# name may take half a minute on top, and the other op of a stage waits for that. A stage that is
# late would be taken for lost, which a link is not worth.
LIMIT_S = 300.0


async def make_link(before: StageClient, after: StageClient, names: itertools.count[int]) -> str:
    """Have a stage connect to the one after it; return the address that it was reached at.

    Raises:
        OpRejected: there is no way, or one of them cannot.
        StageFailure, ConnectionError: one of them is lost or closed.
    """
    name, token = f"stageline:link-{next(names)}", secrets.token_hex(32)
    same_host = _is_here(before.spec) and _is_here(after.spec)
    address = HERE if same_host else ""
    there = await after.call(Listen(request_id=name, address=address, token=token), LIMIT_S)
    hosts = (HERE,) if same_host else tuple(_ways(before.spec, after.spec, there.addresses))
    reply = await before.call(
        Connect(
            request_id=name,
            hosts=hosts[:_MOST_ADDRESSES],
            port=there.port,
            cert_sha256=there.cert_sha256,
            token=token,
        ),
        LIMIT_S,
    )
    return reply.host


def are_apart(before: StageSpec, after: StageSpec) -> bool:
    """Tell whether two stages are on different hosts, as far as is known."""
    if before.transport == after.transport == "ssh":
        return (
            before.ssh is not None and after.ssh is not None and before.ssh.host != after.ssh.host
        )
    return not (_is_here(before) and _is_here(after))


def _is_here(spec: StageSpec) -> bool:
    return spec.transport == "local"


def _ways(before: StageSpec, after: StageSpec, addresses: Sequence[str]) -> Sequence[str]:
    """Return where the stage after may be reached, the best first.

    A name of the hosts file may be an alias that only this host's ssh knows, so it comes last.
    """
    own = [text for text in addresses if not ipaddress.ip_address(text).is_loopback]
    if not are_apart(before, after):
        return [HERE, *own]
    return own if after.ssh is None else [*own, after.ssh.host]
