"""Speaks the next protocol."""

from tests.support.peers.honest import HonestPeer

peer = HonestPeer()
peer.protocol_version = "2.0"
peer.version = "9.9"
peer.run()
