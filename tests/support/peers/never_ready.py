"""Says hello and loads for ever."""

from tests.support.peers.honest import HonestPeer
from worker.protocol.events import LoadingModel


class Peer(HonestPeer):
    """Never stops loading."""

    def load(self) -> None:
        """Announce loading and wait for the end of stdin."""
        self.event(LoadingModel(model_id="m", layer_range="0:1", quantization="bfloat16"))
        for _ in self.requests():
            pass


Peer().run()
