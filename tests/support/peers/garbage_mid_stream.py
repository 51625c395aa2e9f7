"""Prints a library's message to stdout in front of its first reply."""

from typing import Any

from tests.support.peers.honest import HonestPeer
from worker.protocol.ops import Request


class Peer(HonestPeer):
    """Lets something else print."""

    def serve(self, request: Request[Any]) -> None:
        """Print, then answer."""
        self.write(b"Loading weights: 100%\n")
        super().serve(request)


Peer().run()
