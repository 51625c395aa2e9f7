"""Has not enough memory for its layers."""

import sys

from tests.support.peers.honest import HonestPeer
from worker.protocol.events import Exiting, ModelLoadFailed

peer = HonestPeer()
peer.hello()
peer.event(ModelLoadFailed(error="needs 9.0 GiB, 4.0 GiB are free", error_type="X"))
peer.event(Exiting(code=4, reason="load_failed"))
sys.exit(4)
