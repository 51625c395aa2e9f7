"""Begins with more noise than the protocol tolerates."""

from tests.support.peers.honest import HonestPeer


class Peer(HonestPeer):
    """Has a login script without end."""

    def hello(self) -> None:
        """Write too much."""
        self.write(b"Welcome!\n" * 10_000)
        super().hello()


Peer().run()
