"""Which stages are to be linked, by which way, and what the user hears where there is none."""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import dataclass, field
from typing import Any

import pytest

from orchestrator.failures import OpRejected
from orchestrator.links.links import Links
from orchestrator.links.make import make_link
from orchestrator.links.names import AUTO, CHAIN, STAR
from orchestrator.specs import StageSpec, WorkerOptions
from orchestrator.transport.ssh import SshTarget
from worker.protocol.capabilities import Capability
from worker.protocol.ops import Connect, ConnectedReply, Listen, ListeningReply
from worker.protocol.ready import Ready

ABLE = (Capability.CHAIN, Capability.CROP)
ADDRESSES = ("10.0.0.9", "fd00::9", "127.0.0.1")


def spec(stage: int, host: str | None) -> StageSpec:
    """A stage on a host that ssh reaches, or here."""
    more: dict[str, Any] = {}
    if host is not None:
        more = {"transport": "ssh", "host": host, "ssh": SshTarget(host=host)}
    return StageSpec(stage=stage, num_stages=3, options=WorkerOptions(stub=True), **more)


@dataclass
class Client:
    """A stage that listens, and connects unless nothing answers."""

    spec: StageSpec
    reachable: bool = True
    asked: list[Any] = field(default_factory=list)

    async def call(self, request: Any, timeout_s: float | None = None) -> Any:
        self.asked.append(request)
        if isinstance(request, Listen):
            return ListeningReply(port=4, cert_sha256="c", addresses=ADDRESSES)
        if not self.reachable:
            raise OpRejected(0, "h", "connect", "link_lost", "10.0.0.9 port 4: refused")
        return ConnectedReply(host=request.hosts[0])


@dataclass
class Place:
    """A seat that always serves."""

    client: Any
    capabilities: tuple[str, ...] = ABLE
    is_serving: bool = True

    @property
    def spec(self) -> StageSpec:
        found: StageSpec = self.client.spec
        return found

    @property
    def ready(self) -> Ready:
        return Ready(
            pid=1,
            protocol_version="1.0",
            version="1",
            layer_range=(0, 4),
            total_blocks=8,
            hidden_dim=4,
            vocab_size=9,
            capabilities=self.capabilities,
        )


def opened(asked: str, places: list[Any]) -> tuple[tuple[bool, ...], list[str]]:
    async def run() -> tuple[tuple[bool, ...], list[str]]:
        notices: list[str] = []
        links = Links(places, asked, notices.append)
        await links.open()
        await links.aclose()
        return links.live, notices

    return asyncio.run(run())


def places(*hosts: str | None, **more: Any) -> list[Place]:
    return [Place(Client(spec(i, host), **more)) for i, host in enumerate(hosts)]


@pytest.mark.parametrize(
    ("asked", "live"),
    [(STAR, (False, False)), (CHAIN, (True, True)), (AUTO, (False, True))],
)
def test_auto_links_stages_on_different_hosts_alone(asked: str, live: tuple[bool, ...]) -> None:
    assert opened(asked, places(None, None, "far")) == (live, [])


def test_a_link_that_cannot_be_made_is_done_without_and_told_where_it_was_asked_for() -> None:
    told = "stages 0 and 1 have no direct link (10.0.0.9 port 4: refused)"
    assert opened(CHAIN, places("a", "b", reachable=False)) == ((False,), [told])
    assert opened(AUTO, places("a", "b", reachable=False)) == ((False,), [])


def test_a_model_whose_state_cannot_go_back_is_not_linked() -> None:
    unable = [*places("a", "b"), Place(Client(spec(2, "c")), (Capability.CHAIN,))]
    live, (notice,) = opened(CHAIN, unable)
    assert live == (False, False)
    assert notice.startswith("stage 2 on c cannot be linked (it needs the program openssl, and ")


@pytest.mark.parametrize(
    ("before", "after", "address", "hosts"),
    [
        (None, None, "127.0.0.1", ("127.0.0.1",)),
        ("a", "a", "", ("127.0.0.1", "10.0.0.9", "fd00::9")),
        ("a", "b", "", ("10.0.0.9", "fd00::9", "b")),
        ("a", None, "", ("10.0.0.9", "fd00::9")),
    ],
)
def test_each_end_is_told_the_same_secret_and_the_best_address_first(
    before: str | None, after: str | None, address: str, hosts: tuple[str, ...]
) -> None:
    one: Any = Client(spec(0, before))
    other: Any = Client(spec(1, after))
    assert asyncio.run(make_link(one, other, itertools.count())) == hosts[0]
    (connect,), (listen,) = one.asked, other.asked
    assert isinstance(connect, Connect) and isinstance(listen, Listen)
    assert (listen.address, connect.hosts, connect.port) == (address, hosts, 4)
    assert (connect.token, connect.cert_sha256) == (listen.token, "c")
