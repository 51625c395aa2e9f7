"""What of earlier requests is used again."""

from __future__ import annotations

from collections.abc import Collection
from enum import StrEnum

from worker.protocol.capabilities import Capability


class Reuse(StrEnum):
    """How prompts are computed; `turns` has other last bits than the other two.

    Attributes:
        TURNS: answers within a chat as the decode steps that they were; all of it may be kept.
        CHUNKS: every prompt in prefill chunks from its start; whole chunks may be kept.
        OFF: as `CHUNKS`, and nothing is kept.
    """

    TURNS = "turns"
    CHUNKS = "chunks"
    OFF = "off"

    def within(self, capabilities: Collection[str]) -> Reuse:
        """Return what of it stages with these capabilities can do."""
        if Capability.CROP not in capabilities:
            return Reuse.OFF
        if self is Reuse.TURNS and Capability.AS_STEPS not in capabilities:
            return Reuse.CHUNKS
        return self
