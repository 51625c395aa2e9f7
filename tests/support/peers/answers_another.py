"""Answers a request that was not asked."""

from typing import Any

from tests.support.peers.honest import HonestPeer
from worker.protocol.codec import encode_reply
from worker.protocol.ops import Request


class Peer(HonestPeer):
    """Gives every answer another name."""

    def serve(self, request: Request[Any]) -> None:
        """Answer someone else."""
        self.write(encode_reply("someone-else", self.answer(request)))


Peer().run()
