"""Writes 8 MiB to stderr before each answer."""

import sys
from typing import Any

from tests.support.peers.honest import HonestPeer
from worker.protocol.ops import Request


class Peer(HonestPeer):
    """Has a progress bar."""

    def serve(self, request: Request[Any]) -> None:
        """Write a lot, then answer."""
        sys.stderr.write("progress |###| 100%\r" * (8 * 1024 * 1024 // 20))
        sys.stderr.flush()
        super().serve(request)


Peer().run()
