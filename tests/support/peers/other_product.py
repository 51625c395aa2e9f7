"""Speaks the same protocol, as another version of the product."""

from tests.support.peers.honest import HonestPeer

peer = HonestPeer()
peer.version = "9.9"
peer.run()
