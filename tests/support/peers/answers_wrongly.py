"""Answers with the reply of another op."""

from typing import Any

from tests.support.peers.honest import HonestPeer
from worker.protocol.ops import ReleasedReply, Reply, Request


class Peer(HonestPeer):
    """Knows one answer."""

    def answer(self, request: Request[Any]) -> Reply:
        """Return what was not asked for."""
        return ReleasedReply(released=True)


Peer().run()
