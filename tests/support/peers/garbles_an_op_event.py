"""A worker in which a library prints in the middle of an op event, after many whole ones."""

from __future__ import annotations

from typing import Any

from tests.support.peers.honest import HonestPeer
from worker.protocol.codec import OP_EVENT_HEAD, encode_event
from worker.protocol.events import Envelope, Op
from worker.protocol.ops import Request

# So many that the stage's client does not look into each any more.
WHOLE = 66
EVENT = Op(op="ping", rid=None, duration_ms=1, idle_ms_before=1, ok=True, in_bytes=1, out_bytes=1)


class Peer(HonestPeer):
    """Tells of ops that nobody asked for, and never answers."""

    def serve(self, request: Request[Any]) -> None:
        """Tell, and garble the last one."""
        whole = encode_event(EVENT, Envelope(stage=0, wall_ms=1.0, uptime_ms=1.0))
        self.write(whole * WHOLE + OP_EVENT_HEAD + b'"op":"pi Loading weights: 100%}\n')


Peer().run()
