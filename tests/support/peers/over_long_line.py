"""Writes a line without end in its first op."""

from typing import Any

from tests.support.peers.honest import HonestPeer
from worker.protocol.ops import Request


class Peer(HonestPeer):
    """Never ends its line."""

    def serve(self, request: Request[Any]) -> None:
        """Write until nobody reads."""
        chunk = b"x" * (1 << 20)
        while True:
            self.write(chunk)


Peer().run()
