"""Collects three ops and answers the last first; the ops of one request stay in order."""

from typing import Any

from tests.support.peers.honest import HonestPeer
from worker.protocol.ops import Request, Tokenize


class Peer(HonestPeer):
    """Has a mind of its own about order."""

    kept: tuple[Request[Any], ...] = ()

    def serve(self, request: Request[Any]) -> None:
        """Keep tokenize requests until there are three."""
        if not isinstance(request, Tokenize):
            super().serve(request)
            return
        self.kept = (*self.kept, request)
        if len(self.kept) == 3:
            for asked in sorted(self.kept, key=lambda r: str(r.request_id), reverse=True):
                super().serve(asked)


Peer().run()
