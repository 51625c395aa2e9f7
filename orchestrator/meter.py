"""What a request costs in time and tokens."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from orchestrator.bundle.records import RequestRecord
from orchestrator.request import GenerationRequest
from orchestrator.token_source import Guesses
from worker.protocol.ops import RequestId


@dataclass(frozen=True, slots=True, kw_only=True)
class Timings:
    """How fast a request was.

    Attributes:
        ttft_ms: from the request to its first token with its text; None without a token.
        tokens_per_s: of the tokens after the first; None with fewer than two.
        duration_ms: from the request to its newest token.
    """

    ttft_ms: float | None
    tokens_per_s: float | None
    duration_ms: float


@dataclass(slots=True)
class Meter:
    """Counts one request from its making on.

    Attributes:
        cached_tokens: of the prompt, those that the stages held; None before it is computed.
        prefix_reuse: see `Reuse`.
        caches: name of its KV caches, and of its ops.
        history_bytes: hidden states kept for recovery at its end.
    """

    prompt_tokens: int = 0
    completion_tokens: int = 0
    finish_reason: str = "cancelled"
    guesses: Guesses | None = None
    cached_tokens: int | None = None
    prefix_reuse: str | None = None
    caches: RequestId = None
    history_bytes: int = 0
    _wall_ms: float = field(default_factory=lambda: time.time_ns() / 1e6)
    _start_s: float = field(default_factory=time.perf_counter)
    _first_s: float | None = None
    _newest_s: float | None = None

    def token(self) -> None:
        """Count a token as it is handed on."""
        self.completion_tokens += 1
        self._newest_s = time.perf_counter()
        if self._first_s is None:
            self._first_s = self._newest_s

    def timings(self) -> Timings:
        """Return how fast it was so far."""
        if self._first_s is None or self._newest_s is None:
            elapsed_ms = (time.perf_counter() - self._start_s) * 1e3
            return Timings(ttft_ms=None, tokens_per_s=None, duration_ms=elapsed_ms)
        decode_s = self._newest_s - self._first_s
        return Timings(
            ttft_ms=(self._first_s - self._start_s) * 1e3,
            tokens_per_s=(self.completion_tokens - 1) / decode_s if decode_s > 0 else None,
            duration_ms=(self._newest_s - self._start_s) * 1e3,
        )

    def record(self, request: GenerationRequest) -> RequestRecord:
        """Return what the bundle keeps."""
        timings = self.timings()
        return RequestRecord(
            rid=request.request_id,
            wall_ms=self._wall_ms,
            prompt_tokens=self.prompt_tokens,
            completion_tokens=self.completion_tokens,
            finish_reason=self.finish_reason,
            ttft_ms=timings.ttft_ms,
            duration_ms=(time.perf_counter() - self._start_s) * 1e3,
            decode_tokens_per_s=timings.tokens_per_s,
            cached_tokens=self.cached_tokens,
            prefix_reuse=self.prefix_reuse,
            caches=None if self.caches == request.request_id else self.caches,
            history_bytes=self.history_bytes,
            guessed_tokens=None if self.guesses is None else self.guesses.drafted,
            right_guesses=None if self.guesses is None else self.guesses.accepted,
            options=request.options(),
        )
