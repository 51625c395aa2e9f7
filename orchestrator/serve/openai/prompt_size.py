"""A prompt that is far too long, seen before a stage spends seconds on tokenizing it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from orchestrator.pipeline import Pipeline
from orchestrator.request import GenerationRequest
from worker.protocol.capabilities import Capability

# A token of most texts has some four bytes; what is within this is not worth a look.
_USUAL_BYTES = 8


async def fewest_tokens(pipeline: Pipeline, request: GenerationRequest, limit: int) -> int:
    """Return a number that the prompt's tokens cannot be below; 0 where that is not worth knowing.

    Every message has a token, and no token has more bytes than the longest of the vocabulary.

    Args:
        pipeline: whose vocabulary counts.
        request: has the prompt.
        limit: how many tokens there may be.

    Raises:
        OpRejected, StageFailure, ConnectionError: see `Pipeline.vocabulary`.
    """
    num_messages = len(request.messages or ())
    size_bytes = sum(len(text.encode()) for text in _texts([request.prompt, request.messages]))
    if num_messages > limit or size_bytes <= limit * _USUAL_BYTES:
        return num_messages
    if Capability.VOCABULARY not in pipeline.facts.capabilities:
        return num_messages
    pieces = (await pipeline.vocabulary()).pieces
    longest_bytes = max(map(len, pieces), default=0) or size_bytes
    return max(num_messages, -(-size_bytes // longest_bytes))


def _texts(value: Any) -> Iterator[str]:
    """Give every text in messages but the names of their fields and their roles."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _texts(item)
    elif isinstance(value, dict):
        yield from _texts(value.get("content"))
        yield from _texts(value.get("text"))
