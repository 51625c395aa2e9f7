"""Closes its stdout in its first op and lives on."""

import os
import signal
from typing import Any

from tests.support.peers.honest import HonestPeer
from worker.protocol.ops import Request


class Peer(HonestPeer):
    """Loses its stdout."""

    def serve(self, request: Request[Any]) -> None:
        """Close and wait for a signal."""
        os.close(1)
        signal.pause()


Peer().run()
