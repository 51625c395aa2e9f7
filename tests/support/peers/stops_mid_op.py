"""Is stopped by SIGSTOP in its first op: alive, and silent."""

import os
import signal
from typing import Any

from tests.support.peers.honest import HonestPeer
from worker.protocol.ops import Request


class Peer(HonestPeer):
    """Stops itself in place of an answer."""

    def serve(self, request: Request[Any]) -> None:
        """Stop."""
        os.kill(os.getpid(), signal.SIGSTOP)


Peer().run()
