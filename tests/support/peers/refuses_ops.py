"""Refuses its first op and serves the others."""

from typing import Any

from tests.support.peers.honest import HonestPeer
from worker.protocol.codec import encode_error
from worker.protocol.ops import Request
from worker.protocol.schema import ErrorCode, ProtocolError


class Peer(HonestPeer):
    """Says no once."""

    refused = False

    def serve(self, request: Request[Any]) -> None:
        """Refuse, then serve."""
        if self.refused:
            super().serve(request)
            return
        self.refused = True
        error = ProtocolError(ErrorCode.CONTEXT_FULL, "9 of 8 positions", request.request_id)
        self.write(encode_error(error))


Peer().run()
