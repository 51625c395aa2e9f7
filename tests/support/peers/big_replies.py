"""Answers 64 MiB of hidden states to everything that asks for hidden states."""

from typing import Any

from tests.support.peers.honest import HonestPeer
from worker.protocol.ops import EmbedAndForward, HiddenReply, Reply, Request


class Peer(HonestPeer):
    """Has wide layers."""

    def answer(self, request: Request[Any]) -> Reply:
        """Return a long line."""
        if isinstance(request, EmbedAndForward):
            return HiddenReply(seq_len=1, hidden_b64=b"A" * (64 * 1024 * 1024))
        return super().answer(request)


Peer().run()
