"""Answers with an error that names no request."""

from typing import Any

from tests.support.peers.honest import HonestPeer
from worker.protocol.codec import encode_error
from worker.protocol.ops import Request
from worker.protocol.schema import ErrorCode, ProtocolError


class Peer(HonestPeer):
    """Understands nothing."""

    def serve(self, request: Request[Any]) -> None:
        """Complain."""
        error = ProtocolError(ErrorCode.BAD_JSON, "invalid JSON")  # this code names no request
        self.write(encode_error(error))


Peer().run()
