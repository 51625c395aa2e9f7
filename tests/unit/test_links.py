"""A link is made with who was meant and nobody else, and tells when it has nothing to give."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator
from dataclasses import replace

import pytest

from worker.links import Links
from worker.protocol.ops import (
    Connect,
    EmbedAndForward,
    ForwardAndSample,
    HiddenReply,
    Listen,
    ListeningReply,
    Request,
)
from worker.protocol.schema import ErrorCode, ProtocolError

pytestmark = pytest.mark.skipif(not Links().capabilities, reason="openssl is not here")

TOKEN, OTHER = "a" * 64, "b" * 64
HERE = "127.0.0.1"


@pytest.fixture
def ends() -> Iterator[tuple[Links, Links]]:
    """The stage before and the next one."""
    before, after = Links(), Links()
    yield before, after
    before.close()
    after.close()


def listen(links: Links, token: str = TOKEN) -> ListeningReply:
    request = Listen(address=HERE, token=token)
    handler = links.handler(request)
    assert handler is not None
    reply = handler(request)
    assert isinstance(reply, ListeningReply)
    return reply


def connect(links: Links, to: ListeningReply, token: str = TOKEN, **changes: object) -> object:
    asked = Connect(hosts=(HERE,), port=to.port, cert_sha256=to.cert_sha256, token=token)
    request = replace(asked, **changes)  # type: ignore[arg-type]
    handler = links.handler(request)
    assert handler is not None
    return handler(request)


def linked(ends: tuple[Links, Links]) -> tuple[Links, Links]:
    before, after = ends
    connect(before, listen(after))
    return before, after


def gives(ticket: int) -> EmbedAndForward:
    return EmbedAndForward(tokens=(1,), give_link=ticket)


def takes(ticket: int) -> ForwardAndSample:
    return ForwardAndSample(position=0, seq_len=1, take_link=ticket, hidden_b64=b"")


def taken(links: Links, ticket: int) -> object:
    return getattr(links.filled(takes(ticket)), "hidden_b64", None)


def lost(links: Links, request: Request[object] | ForwardAndSample) -> str:
    with pytest.raises(ProtocolError) as caught:
        links.filled(request)
    assert caught.value.code is ErrorCode.LINK_LOST
    return caught.value.text


def test_hidden_states_go_straight_on_whichever_is_asked_for_first(
    ends: tuple[Links, Links],
) -> None:
    before, after = linked(ends)
    sent = {7: b"AAAA", 3: b"BBBB" * 100_000}
    told = [
        before.handed_on(gives(ticket), HiddenReply(seq_len=1, hidden_b64=data))
        for ticket, data in sent.items()
    ]
    assert {ticket: taken(after, ticket) for ticket in sorted(sent)} == sent
    assert told == [HiddenReply(seq_len=1, hidden_b64=b"")] * 2


def test_an_op_without_a_link_goes_its_own_way() -> None:
    request, reply = EmbedAndForward(tokens=(1,)), HiddenReply(seq_len=1, hidden_b64=b"AA==")
    assert Links().filled(request) is request
    assert Links().handed_on(request, reply) is reply


def test_what_was_not_asked_for_in_time_is_told_to_be_gone(
    ends: tuple[Links, Links], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("worker.links.incoming._MOST_HELD", 2)
    before, after = linked(ends)
    for ticket in range(4):
        before.handed_on(gives(ticket), HiddenReply(seq_len=1, hidden_b64=b"AAAA"))
    assert [taken(after, ticket) for ticket in (3, 2)] == [b"AAAA"] * 2
    assert lost(after, takes(0)) == (
        "they were not kept until they were asked for (2 others came since); send hidden states "
        "by way of the orchestrator"
    )


def test_what_failed_before_fails_after(ends: tuple[Links, Links]) -> None:
    before, after = linked(ends)
    before.failed(gives(1), "no memory")
    assert lost(after, takes(1)) == (
        "the stage before failed: no memory; send hidden states by way of the orchestrator"
    )


def test_the_end_of_the_stage_before_ends_the_wait_for_it(ends: tuple[Links, Links]) -> None:
    before, after = linked(ends)
    before.close()
    assert lost(after, takes(1)) == (
        "the link from the stage before is lost: the stage before has closed it; send hidden "
        "states by way of the orchestrator"
    )


def test_without_a_link_there_is_nothing_to_wait_for(ends: tuple[Links, Links]) -> None:
    assert lost(ends[1], takes(1)).startswith("there is no link from the stage before; ")
    with pytest.raises(ProtocolError, match="there is no link to the next stage; "):
        ends[0].handed_on(gives(1), HiddenReply(seq_len=1, hidden_b64=b""))


def test_a_stranger_is_turned_away_and_the_stage_before_still_let_in(
    ends: tuple[Links, Links],
) -> None:
    before, after = ends
    to = listen(after)
    with pytest.raises(ProtocolError, match=f"no connection .*{HERE} port {to.port}"):
        connect(Links(), to, token=OTHER)
    with socket.create_connection((HERE, to.port)) as plain:
        plain.sendall(b"GET / HTTP/1.1\r\n\r\n")
        context = ssl.create_default_context()
        with pytest.raises(OSError):
            context.wrap_socket(plain, server_hostname="localhost")
    connect(before, to)
    before.handed_on(gives(1), HiddenReply(seq_len=1, hidden_b64=b"AAAA"))
    assert taken(after, 1) == b"AAAA"


def test_the_port_is_closed_after_the_one_connection(ends: tuple[Links, Links]) -> None:
    before, after = ends
    to = listen(after)
    connect(before, to)
    with pytest.raises(ProtocolError, match=f"{HERE} port {to.port}: "):
        connect(Links(), to)


def test_who_shows_another_certificate_is_given_no_token(ends: tuple[Links, Links]) -> None:
    before, after = ends
    to = listen(after)
    with pytest.raises(ProtocolError) as caught:
        connect(before, to, cert_sha256="0" * 64)
    assert caught.value.text == (
        f"no connection to the next stage: {HERE} port {to.port}: who answers there shows another "
        "certificate; send hidden states by way of the orchestrator"
    )


def test_a_new_link_takes_the_place_of_the_old_one(ends: tuple[Links, Links]) -> None:
    before, after = linked(ends)
    connect(before, listen(after, OTHER), OTHER)
    before.handed_on(gives(1), HiddenReply(seq_len=1, hidden_b64=b"AAAA"))
    assert taken(after, 1) == b"AAAA"


def test_neither_token_is_shown_in_a_message() -> None:
    assert TOKEN not in repr(Listen(token=TOKEN))
