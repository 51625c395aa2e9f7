"""A worker in one thread that keeps every rule; the other peers change one thing about it."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from typing import Any

from worker import __version__
from worker.protocol.codec import (
    PROTOCOL_VERSION,
    decode_request,
    encode_event,
    encode_ready,
    encode_reply,
)
from worker.protocol.events import Envelope, Event, Starting, WorkerReady
from worker.protocol.ops import (
    Detokenize,
    EmbedAndForward,
    ForwardAndSample,
    HiddenReply,
    Ping,
    PongReply,
    Release,
    ReleasedReply,
    Reply,
    Request,
    SampledReply,
    Shutdown,
    ShutdownReply,
    TextReply,
    Tokenize,
    TokensReply,
)
from worker.protocol.payload import encode_base64
from worker.protocol.ready import Ready
from worker.protocol.roles import StageIdentity
from worker.protocol.stage import split_layers

NUM_LAYERS = 8
HIDDEN_DIM = 4


class HonestPeer:
    """Says hello and ready, answers every op; `before` and `answer` are the places to misbehave."""

    def __init__(self) -> None:
        self.nonce = self._flag("nonce", "")
        self.stage = int(self._flag("stage", "0"))
        self.num_stages = int(self._flag("num-stages", "1"))
        self.slice = split_layers(NUM_LAYERS, self.num_stages)[self.stage]
        self.protocol_version = PROTOCOL_VERSION
        self.version = __version__

    def run(self) -> None:
        """Live from hello to the end of stdin."""
        self.hello()
        self.load()
        self.ready()
        for request in self.requests():
            self.serve(request)
            if isinstance(request, Shutdown):
                return

    def hello(self) -> None:
        """Write the first line."""
        self.event(
            Starting(
                protocol_version=self.protocol_version,
                version=self.version,
                python="3",
                pid=os.getpid(),
                host="peer",
                nonce=self.nonce,
            )
        )

    def load(self) -> None:
        """Do what comes between hello and ready: nothing."""

    def ready(self) -> None:
        """Write the ready line and its mirror."""
        layers = (self.slice.shard_start, self.slice.shard_end)
        ready = Ready(
            pid=os.getpid(),
            stage=self.stage,
            num_stages=self.num_stages,
            protocol_version=PROTOCOL_VERSION,
            version=self.version,
            layer_range=layers,
            total_blocks=NUM_LAYERS,
            hidden_dim=HIDDEN_DIM,
            vocab_size=100,
        )
        self.write(encode_ready(ready))
        self.event(WorkerReady(layer_range=str(self.slice)))

    def requests(self) -> Iterator[Request[Any]]:
        """Read requests to the end of stdin; pings are answered here."""
        identity = StageIdentity(self.slice, self.stage, self.num_stages)
        for line in sys.stdin.buffer:
            request = decode_request(line, identity)
            if isinstance(request, Ping):
                self.write(encode_reply(request.request_id, PongReply(pong=True)))
            else:
                yield request

    def serve(self, request: Request[Any]) -> None:
        """Answer one request."""
        self.write(encode_reply(request.request_id, self.answer(request)))

    def answer(self, request: Request[Any]) -> Reply:
        """Return the reply to a request."""
        if isinstance(request, Tokenize):
            return TokensReply(tokens=tuple(range(len((request.prompt or "").split()))))
        if isinstance(request, Detokenize):
            return TextReply(text=" ".join(map(str, request.tokens)))
        if isinstance(request, ForwardAndSample):
            return SampledReply(token_id=request.position if request.sample else None)
        if isinstance(request, Release):
            return ReleasedReply(released=True)
        if isinstance(request, Shutdown):
            return ShutdownReply(shutting_down=True)
        seq_len = getattr(request, "seq_len", 1)
        if isinstance(request, EmbedAndForward):
            seq_len = len(request.tokens)
        data = encode_base64(bytes(seq_len * HIDDEN_DIM * 2))
        return HiddenReply(seq_len=seq_len, hidden_b64=data)

    def event(self, event: Event) -> None:
        """Write an event."""
        self.write(encode_event(event, Envelope(stage=self.stage)))

    def write(self, data: bytes) -> None:
        """Write bytes to stdout now."""
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()

    @staticmethod
    def _flag(name: str, default: str) -> str:
        for word in sys.argv[1:]:
            if found := re.fullmatch(f"--{name}=(.*)", word):
                return found[1]
        return default


if __name__ == "__main__":
    HonestPeer().run()
