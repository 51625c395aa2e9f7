"""Which encoding hidden states have on the wire."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce

from orchestrator.chunk import Chunk
from orchestrator.failures import PipelineMismatch
from worker.protocol.encodings import Encoding
from worker.protocol.ready import Ready

AUTO = "auto"
# Packing and unpacking take as long as they save at some 640 to 850 Mbit/s (transport
# measurements, one core); below this they are well worth it.
SLOW_BYTES_S = 500e6 / 8


class WireEncoding:
    """Chooses the encoding of what a stage replies.

    A lossy encoding is used for all hidden states or for none: an answer must not depend on what
    was measured, or on where a replay begins. Exact ones may come and go.

    Args:
        asked: a name of `Encoding`, or `AUTO`.
        hosts: label of each stage's host.
        ready: ready line of each stage.

    Attributes:
        used: the encodings that were asked for so far.

    Raises:
        PipelineMismatch: a stage does not know what was asked for.
    """

    def __init__(self, asked: str, hosts: Sequence[str], ready: Sequence[Ready]) -> None:
        self.used: set[str] = set()
        # A stage that is the whole model gets its own hidden states back: there is no link.
        self._asked = asked if len(ready) > 1 else Encoding.BF16.value
        known = [set(stage.encodings) for stage in ready]
        self._shared = reduce(set[str].intersection, known)
        if self._asked in (AUTO, Encoding.BF16):
            return
        for index, encodings in enumerate(known):
            if asked not in encodings:
                raise PipelineMismatch(
                    f"stage {index} on {hosts[index]} knows the wire encodings "
                    f"{', '.join(sorted(encodings))}, --wire-encoding asks for {asked}; choose one "
                    "that every stage knows (bf16-planes-zstd needs the package zstandard there, "
                    "which orchestrator setup installs)"
                )

    def of(self, chunk: Chunk, received_bytes_s: Callable[[], float | None]) -> str:
        """Return how a stage shall encode what it replies to a chunk.

        Args:
            chunk: what is asked.
            received_bytes_s: how fast the stage's long lines arrived lately; None is not known.
        """
        name = self._choice(chunk, received_bytes_s).value
        self.used.add(name)
        return name

    def _choice(self, chunk: Chunk, received_bytes_s: Callable[[], float | None]) -> Encoding:
        if self._asked == Encoding.INT8_ROW_TOP8:
            return Encoding.INT8_ROW_TOP8
        # One row is too short for packing to gain a round trip, or any time to speak of.
        if len(chunk.tokens) == 1 or chunk.is_step:
            return Encoding.BF16
        packs = self._asked == Encoding.BF16_PLANES_ZSTD or (
            self._asked == AUTO
            and Encoding.BF16_PLANES_ZSTD in self._shared
            and (bytes_s := received_bytes_s()) is not None
            and bytes_s <= SLOW_BYTES_S
        )
        return Encoding.BF16_PLANES_ZSTD if packs else Encoding.BF16
