"""The two links of a stage, and what an op has to do with them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from shutil import which
from typing import TYPE_CHECKING, Any, cast

from worker.links.errors import NoCertificate, NothingHanded, Unreachable
from worker.protocol.capabilities import Capability
from worker.protocol.ops import (
    Connect,
    ConnectedReply,
    HiddenReply,
    Listen,
    ListeningReply,
    Reply,
    Request,
    TogetherReply,
)
from worker.protocol.schema import ErrorCode, ProtocolError
from worker.protocol.together import linked_hidden

if TYPE_CHECKING:
    import socket

    from worker.links.incoming import Incoming
    from worker.links.listener import Listener
    from worker.links.outgoing import Outgoing


class Links:
    """At most one link from the stage before, and one to the next.

    Few runs have any: what makes them is imported when the first one is asked for.
    """

    def __init__(self) -> None:
        self._listener: Listener | None = None
        self._incoming: Incoming | None = None
        self._outgoing: Outgoing | None = None
        self._by_request: dict[type[Request[Any]], Callable[[Any], Reply]] = {
            Listen: self._listen,
            Connect: self._connect,
        }

    @property
    def capabilities(self) -> tuple[str, ...]:
        """What the ready line says of it."""
        return (Capability.CHAIN.value,) if which("openssl") else ()

    def handler(self, request: Request[Any]) -> Callable[[Any], Reply] | None:
        """Return what does a request, where it is about the links themselves."""
        return self._by_request.get(type(request))

    def filled(self, request: Request[Any]) -> Request[Any]:
        """Return the request with the hidden states that it takes from its link; wait for them.

        Raises:
            ProtocolError: `link_lost`.
        """
        ticket = getattr(request, "take_link", None)
        if ticket is None:
            return request
        if self._incoming is None:
            raise _lost("there is no link from the stage before")
        try:
            hidden_b64 = self._incoming.take(ticket)
        except NothingHanded as error:
            raise _lost(str(error)) from None
        whole: Any = request
        return cast(Request[Any], replace(whole, take_link=None, hidden_b64=hidden_b64))

    def handed_on(self, request: Request[Any], reply: Reply) -> Reply:
        """Hand on what the request says; return the reply without it.

        Raises:
            ProtocolError: `link_lost`.
        """
        ticket = getattr(request, "give_link", None)
        if ticket is None:
            return reply
        left: Reply
        if isinstance(reply, TogetherReply):
            hidden_b64, left = linked_hidden(reply)
        elif isinstance(reply, HiddenReply):
            hidden_b64, left = reply.hidden_b64, replace(reply, hidden_b64=b"")
        else:
            return reply
        if self._outgoing is None:
            raise _lost("there is no link to the next stage")
        try:
            self._outgoing.hand_on(ticket, hidden_b64)
        except OSError as error:
            raise _lost(f"the link to the next stage is lost: {error.strerror or error}") from None
        return left

    def failed(self, request: Request[Any] | None, why: str) -> None:
        """Tell the next stage, which waits for it, that a request failed here."""
        ticket = getattr(request, "give_link", None)
        if ticket is not None and self._outgoing is not None:
            self._outgoing.fail(ticket, why)

    def close(self) -> None:
        """End both links."""
        for end in (self._listener, self._incoming, self._outgoing):
            if end is not None:
                end.close()
        self._listener = self._incoming = self._outgoing = None

    def _listen(self, request: Listen) -> ListeningReply:
        from worker.links import certificate
        from worker.links.addresses import own_addresses
        from worker.links.listener import Listener

        for old in (self._listener, self._incoming):
            if old is not None:
                old.close()
        self._listener = self._incoming = None
        try:
            made = certificate.make()
            token = request.token.encode("ascii")
            self._listener = Listener(request.address, made, token, self._accept)
        except NoCertificate as error:
            raise _lost(str(error)) from None
        except OSError as error:
            why = error.strerror or str(error)
            raise _lost(f"cannot listen on {request.address or 'any address'}: {why}") from None
        return ListeningReply(
            port=self._listener.port, cert_sha256=made.sha256, addresses=own_addresses()
        )

    def _accept(self, connection: socket.socket) -> None:
        from worker.links.incoming import Incoming

        self._incoming = Incoming(connection)
        self._incoming.start()  # Tells the other end, so that it must be known by then.

    def _connect(self, request: Connect) -> ConnectedReply:
        from worker.links.outgoing import connect

        if self._outgoing is not None:
            self._outgoing.close()
            self._outgoing = None
        token = request.token.encode("ascii")
        try:
            host, self._outgoing = connect(request.hosts, request.port, request.cert_sha256, token)
        except Unreachable as error:
            raise _lost(f"no connection to the next stage: {error}") from None
        return ConnectedReply(host=host)


def _lost(why: str) -> ProtocolError:
    return ProtocolError(
        ErrorCode.LINK_LOST, f"{why}; send hidden states by way of the orchestrator"
    )
