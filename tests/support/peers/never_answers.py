"""Answers pings and no op."""

from typing import Any

from tests.support.peers.honest import HonestPeer
from worker.protocol.ops import Request


class Peer(HonestPeer):
    """Takes ops and forgets them."""

    def serve(self, request: Request[Any]) -> None:
        """Do nothing."""


Peer().run()
