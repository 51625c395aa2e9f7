"""Closes its stdin once it is ready and lives on."""

import os
import signal

from tests.support.peers.honest import HonestPeer

peer = HonestPeer()
peer.hello()
os.close(0)
peer.ready()
signal.pause()
