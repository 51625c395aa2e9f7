"""Begins with a login banner that ends without a newline, as far as the protocol tolerates it."""

from tests.support.peers.honest import HonestPeer


class Peer(HonestPeer):
    """Has a chatty login script."""

    def hello(self) -> None:
        """Write noise, the newline that every worker begins with, and hello."""
        self.write(b"\x1b[1mWelcome!\x1b[0m\n" * 1000 + b"no newline here" + b"\n")
        super().hello()


Peer().run()
