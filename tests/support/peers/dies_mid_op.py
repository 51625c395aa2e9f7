"""Is killed by SIGKILL in its first op."""

import os
import signal
from typing import Any

from tests.support.peers.honest import HonestPeer
from worker.protocol.ops import Request


class Peer(HonestPeer):
    """Kills itself in place of an answer."""

    def serve(self, request: Request[Any]) -> None:
        """Die."""
        os.kill(os.getpid(), signal.SIGKILL)


Peer().run()
