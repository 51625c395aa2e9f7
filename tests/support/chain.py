"""Stages of a real model in this process: the worker's own handlers, without pipes between."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from worker.backends.transformers import open_stage
from worker.config import WorkerConfig
from worker.handlers import Handlers
from worker.protocol.events import Event
from worker.protocol.ops import (
    EmbedAndForward,
    ForwardAndSample,
    ForwardRange,
    HiddenReply,
    Request,
    SampledReply,
)
from worker.protocol.payload import encode_base64
from worker.protocol.roles import StageIdentity
from worker.sessions import Sessions
from worker.stopwatch import Stopwatch


class Stage:
    """One opened stage, with the events of its opening."""

    def __init__(self, model: Path, start: int, end: int, **config: Any) -> None:
        self.events: list[Event] = []
        whole_config = WorkerConfig(
            model_id=str(model), shard_start=start, shard_end=end, device="cpu", **config
        )
        self.identity: StageIdentity
        self.identity, self.backend = open_stage(whole_config, self.events.append)
        self.sessions = Sessions(self.backend.new_cache, 16, None, lambda rid, freed: None)
        self.handlers = Handlers(self.identity.slice, self.backend, self.sessions)

    def call(self, request: Request[Any]) -> Any:
        """Work on one request and return its reply."""
        return self.handlers.handle(request, Stopwatch())


class Chain:
    """Stages cut at `bounds`, driven as the orchestrator drives workers."""

    def __init__(self, model: Path, bounds: Sequence[int], **config: Any) -> None:
        self.stages = [Stage(model, a, b, **config) for a, b in pairwise(bounds)]

    def first(self, rid: int, tokens: Sequence[int], position: int, **more: Any) -> HiddenReply:
        """Run the first stage alone."""
        request = EmbedAndForward(request_id=rid, tokens=tuple(tokens), position=position, **more)
        reply: HiddenReply = self.stages[0].call(request)
        return reply

    def forward(
        self,
        rid: int,
        tokens: Sequence[int],
        position: int,
        *,
        batch: int = 1,
        mask: bytes | None = None,
        encoding: str = "bf16",
        **chosen: Any,
    ) -> SampledReply:
        """Run tokens `[batch, seq]` through every stage and sample; `chosen` says how."""
        padded: dict[str, Any] = {
            "batch": batch,
            "attention_mask_b64": None if mask is None else encode_base64(mask),
        }
        hidden = self.first(rid, tokens, position, reply_encoding=encoding, **padded)
        onward = {"request_id": rid, "position": position, **padded}
        if self.stages[0].backend.facts.needs_tokens:
            onward["tokens"] = tuple(tokens)
        for stage in self.stages[1:-1]:
            request = ForwardRange(**onward, reply_encoding=encoding, **carried(hidden))
            hidden = stage.call(request)
        last = ForwardAndSample(**onward, **chosen, **carried(hidden))
        reply: SampledReply = self.stages[-1].call(last)
        return reply

    def answer(self, rid: int, prompt: Sequence[int], max_new_tokens: int) -> list[int]:
        """Generate greedily, the prompt in one chunk, without regard to end tokens."""
        new = [self.forward(rid, prompt, 0).token_id or 0]
        while len(new) < max_new_tokens:
            reply = self.forward(rid, new[-1:], len(prompt) + len(new) - 1)
            new.append(reply.token_id or 0)
        return new


def carried(hidden: HiddenReply) -> dict[str, Any]:
    """Return what the next stage is sent of a reply."""
    return {
        "seq_len": hidden.seq_len,
        "hidden_shape": hidden.hidden_shape,
        "hidden_dtype": hidden.hidden_dtype,
        "hidden_encoding": hidden.hidden_encoding,
        "hidden_b64": hidden.hidden_b64,
    }
