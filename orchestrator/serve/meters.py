"""What Prometheus is told of the server, in a registry of its own."""

from __future__ import annotations

from collections.abc import Callable

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
        self._info = Gauge(
            "stageline_info", "What is served", ["model", "version"], registry=registry
        )
        self._ttft_s = Histogram(
            "stageline_ttft_seconds",
            "From the start of an answer's work up to its first token",
            buckets=_TTFT_S,
            registry=registry,
        )
        self._between_s = Histogram(
            "stageline_inter_token_seconds",
            "From one token of an answer to the next",
            buckets=_BETWEEN_S,
            registry=registry,
        )
        self._queue_s = Histogram(
            "stageline_queue_seconds",
            "That an answer waited for its place",
            buckets=_QUEUE_S,
            registry=registry,
        )
        self.prompt_tokens = Counter(
            "stageline_prompt_tokens", "Tokens of prompts", registry=registry
        )
        self.cached_tokens = Counter(
            "stageline_cached_prompt_tokens",
            "Tokens of prompts that the stages held already",
            registry=registry,
        )
        self.generated_tokens = Counter(
            "stageline_generated_tokens", "Tokens of answers", registry=registry
        )
        self.answers = Counter(
            "stageline_answers", "Answers that have ended", ["finish_reason"], registry=registry
        )
        self.http_requests = Counter(
            "stageline_http_requests",
            "Requests over HTTP",
            ["route", "status"],
            registry=registry,
        )
        self.stage_busy_s = Counter(
            "stageline_stage_busy_seconds",
            "That a stage has computed",
            ["stage", "host"],
            registry=registry,
        )
        self.stage_ops = Counter(
            "stageline_stage_ops",
            "Ops that a stage has answered",
            ["stage", "host", "op"],
            registry=registry,
        )
        self.stage_sent_bytes = Counter(
            "stageline_stage_sent_bytes",
            "Of ops, sent to a stage",
            ["stage", "host"],
            registry=registry,
        )
        self.stage_received_bytes = Counter(
            "stageline_stage_received_bytes",
            "Of replies, received from a stage",
            ["stage", "host"],
            registry=registry,
        )
        self.stage_failures = Counter(
            "stageline_stage_failures",
            "Times that a stage was lost",
            ["stage", "host", "kind"],
            registry=registry,
        )
        self.stage_restarts = Counter(
            "stageline_stage_restarts",
            "Attempts to start a lost stage again",
            ["stage", "host", "ok"],
            registry=registry,
        )
        self._stage_busy_share = Gauge(
            "stageline_stage_busy_share",
            "Share of the last 10 seconds in which a stage has computed",
            ["stage"],
            registry=registry,
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
