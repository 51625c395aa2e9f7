"""Cannot load its model."""

import sys

from tests.support.peers.honest import HonestPeer
from worker.protocol.events import Exiting, ModelLoadFailed

peer = HonestPeer()
peer.hello()
peer.event(ModelLoadFailed(error="config.json is missing in /m; give a model", error_type="X"))
peer.event(Exiting(code=3, reason="load_failed"))
sys.exit(3)
