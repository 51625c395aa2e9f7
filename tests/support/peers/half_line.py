"""Dies in the middle of a reply line."""

import os
from typing import Any

from tests.support.peers.honest import HonestPeer
from worker.protocol.codec import encode_reply
from worker.protocol.ops import Request


class Peer(HonestPeer):
    """Writes half of its answer."""

    def serve(self, request: Request[Any]) -> None:
        """Write half a line and abort."""
        line = encode_reply(request.request_id, self.answer(request))
        self.write(line[: len(line) // 2])
        os.abort()


Peer().run()
