"""What Prometheus is told of the server, in a registry of its own."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from orchestrator import __version__
from orchestrator.generate import TokenOutput
from orchestrator.serve.desk import Desk

_TTFT_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)
_BETWEEN_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
_QUEUE_S = (0.01, 0.1, 0.5, 1, 5, 10, 30, 60, 300)


class Meters:
    """The metrics; docs/serve.md says what each means.

    Attributes:
        registry: what /metrics shows.
    """

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        gauge, counter = partial(Gauge, registry=registry), partial(Counter, registry=registry)
        histogram, stage = partial(Histogram, registry=registry), ("stage", "host")
        self._info = gauge("stageline_info", "What is served", ("model", "version"))
        self._ttft_s = histogram(
            "stageline_ttft_seconds",
            "From the start of an answer's work up to its first token",
            buckets=_TTFT_S,
        )
        self._between_s = histogram(
            "stageline_inter_token_seconds",
            "From one token of an answer to the next",
            buckets=_BETWEEN_S,
        )
        self._queue_s = histogram(
            "stageline_queue_seconds", "That an answer waited for its place", buckets=_QUEUE_S
        )
        self.prompt_tokens = counter("stageline_prompt_tokens", "Tokens of prompts")
        self.cached_tokens = counter(
            "stageline_cached_prompt_tokens", "Tokens of prompts that the stages held already"
        )
        self.generated_tokens = counter("stageline_generated_tokens", "Tokens of answers")
        self.answers = counter("stageline_answers", "Answers that have ended", ("finish_reason",))
        self.http_requests = counter(
            "stageline_http_requests", "Requests over HTTP", ("route", "status")
        )
        self.stage_busy_s = counter(
            "stageline_stage_busy_seconds", "That a stage has computed", stage
        )
        self.stage_ops = counter(
            "stageline_stage_ops", "Ops that a stage has answered", (*stage, "op")
        )
        self.stage_sent_bytes = counter(
            "stageline_stage_sent_bytes", "Of ops, sent to a stage", stage
        )
        self.stage_received_bytes = counter(
            "stageline_stage_received_bytes", "Of replies, received from a stage", stage
        )
        self.stage_failures = counter(
            "stageline_stage_failures", "Times that a stage was lost", (*stage, "kind")
        )
        self.stage_restarts = counter(
            "stageline_stage_restarts", "Attempts to start a lost stage again", (*stage, "ok")
        )
        self._stage_busy_share = gauge(
            "stageline_stage_busy_share",
            "Share of the last 10 seconds in which a stage has computed",
            ("stage",),
        )

    def begin(self, model: str, desk: Desk) -> None:
        """Tell which model is served, and show what the desk has, asked anew at each look."""
        self._info.labels(model, __version__).set(1)
        for name, text, value in (
            ("stageline_running", "Answers that are being generated", lambda: desk.running),
            ("stageline_queued", "Answers that wait for a place", lambda: desk.queued),
            ("stageline_places", "Answers that can be generated at once", lambda: desk.places),
        ):
            Gauge(name, text, registry=self.registry).set_function(value)

    def watch_stage(self, stage: int, share: Callable[[], float]) -> None:
        """Show the share of the last seconds in which a stage has computed."""
        self._stage_busy_share.labels(str(stage)).set_function(share)

    def waited(self, wait_s: float) -> None:
        """Count the wait for a place."""
        self._queue_s.observe(wait_s)

    def token(self, since_s: float, *, is_first: bool) -> None:
        """Count one token, `since_s` after the one before or after the answer began."""
        (self._ttft_s if is_first else self._between_s).observe(since_s)
        self.generated_tokens.inc()

    def answer(self, last: TokenOutput) -> None:
        """Count what is known of an answer only once its stages have worked on it."""
        self.cached_tokens.inc(last.cached_tokens)

    def text(self) -> bytes:
        """Return everything in the text format of Prometheus."""
        return generate_latest(self.registry)
