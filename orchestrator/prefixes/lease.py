"""What one request has of the stages while it is answered."""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.chunk import Chunk
from orchestrator.prefixes.canon import Pieces
from worker.protocol.ops import RequestId


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """The KV caches of a request, and what is to be computed before its first token.

    Attributes:
        name: of the caches: the `request_id` of its ops.
        prompt: ids.
        pieces: how all of the prompt is computed.
        ops: what of it is still to be sent; the last one chooses a token.
        cached_tokens: how many positions were in the caches when it began.
    """

    name: RequestId
    prompt: tuple[int, ...]
    pieces: Pieces
    ops: tuple[Chunk, ...]
    cached_tokens: int = 0
