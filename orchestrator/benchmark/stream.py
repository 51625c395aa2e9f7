"""Requests that run at once through one pipeline, and how fast each was."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from dataclasses import dataclass

from orchestrator.bundle.records import Recorder
from orchestrator.generate import generate
from orchestrator.request import GenerationRequest
from orchestrator.speculation.speculator import Speculator
from orchestrator.stage.together import at_once
from orchestrator.stages import Stages
from orchestrator.token_source import Guesses


@dataclass(frozen=True, slots=True)
class StreamSample:
    """One request, with the moments that its tokens were handed on, in ms of the wall clock.

    Attributes:
        guesses: tokens that were guessed ahead; None where that was off.
    """

    prompt_tokens: int
    begun_ms: float
    token_ms: tuple[float, ...]
    token_ids: tuple[int, ...]
    guesses: Guesses | None = None

    @property
    def ttft_ms(self) -> float:
        """From the request to its first token."""
        return self.token_ms[0] - self.begun_ms

    @property
    def decode_ms(self) -> float:
        """From the first token to the last."""
        return self.token_ms[-1] - self.token_ms[0]

    @property
    def decode_tokens_per_s(self) -> float:
        """Of the tokens after the first."""
        return (len(self.token_ms) - 1) * 1e3 / max(self.decode_ms, 1e-6)

    @property
    def longest_gap_ms(self) -> float:
        """The longest wait between two tokens."""
        ends = zip(self.token_ms, self.token_ms[1:], strict=False)
        return max(later - earlier for earlier, later in ends)


async def run_streams(
    pipeline: Stages,
    requests: Sequence[GenerationRequest],
    recorder: Recorder,
    speculator: Speculator | None = None,
) -> list[StreamSample]:
    """Run the requests at once and return one sample of each.

    Raises:
        RequestRefused, OpRejected, StageFailure: see `generate`; the others have been cancelled.
    """
    return await at_once(_run(pipeline, request, recorder, speculator) for request in requests)


async def _run(
    pipeline: Stages,
    request: GenerationRequest,
    recorder: Recorder,
    speculator: Speculator | None,
) -> StreamSample:
    begun_ms, prompt_tokens = _now_ms(), 0
    token_ms: list[float] = []
    token_ids: list[int] = []
    guesses: Guesses | None = None
    async with contextlib.aclosing(generate(pipeline, request, recorder, speculator)) as outputs:
        async for output in outputs:
            token_ms.append(_now_ms())
            token_ids.append(output.token_id)
            prompt_tokens = output.prompt_tokens
            guesses = output.finish.guesses if output.finish else None
    return StreamSample(prompt_tokens, begun_ms, tuple(token_ms), tuple(token_ids), guesses)


def _now_ms() -> float:
    return time.time_ns() / 1e6
