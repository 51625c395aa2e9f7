"""Answers its first op when the second has come, and is killed by that one at once."""

import os
import signal
import sys
from typing import Any

from tests.support.peers.honest import HonestPeer
from worker.protocol.ops import Request


class Peer(HonestPeer):
    """Lets its answer and its end be read in one turn."""

    first: Request[Any] | None = None

    def serve(self, request: Request[Any]) -> None:
        """Wait for two, answer one."""
        if self.first is None:
            self.first = request
            return
        super().serve(self.first)
        sys.stdout.flush()
        os.kill(os.getpid(), signal.SIGKILL)


Peer().run()
