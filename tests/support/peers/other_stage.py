"""Says that it is another stage than it was started as."""

from tests.support.peers.honest import HonestPeer

peer = HonestPeer()
peer.num_stages += 1
peer.run()
