"""Says twice that it is ready."""

from tests.support.peers.honest import HonestPeer

peer = HonestPeer()
peer.hello()
peer.ready()
peer.ready()
for asked in peer.requests():
    peer.serve(asked)
