"""What a run has answered so far: complete at any moment, also when it is cut short."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from orchestrator.bundle.records import RecoveryRecord
from orchestrator.generate import Finish, TokenOutput
from orchestrator.meter import Meter, Timings
from orchestrator.stages import Stages
from orchestrator.trouble import Trouble
from worker.protocol.ready import Ready
from worker.protocol.schema import to_fields


@dataclass(slots=True)
class Answer:
    """The one answer of a run.

    Attributes:
        pieces: text that was shown.
        start_ms: how long the stages took to serve; None while they start.
        hosts: host of each stage, for `ready`.
        ready: ready line of each stage, once they serve.
        bundle: where the bundle is, if there is one.
        seed: of the draws; None where decoding is greedy.
        recoveries: attempts to bring a lost stage back.
        history_bytes: the most hidden states that were kept for that.
        wire_encodings: what hidden states were on the wire.
        direct_links: for each stage but the last, whether it handed them straight on at the end.
    """

    pieces: list[str] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    prompt_tokens: int = 0
    finish: Finish | None = None
    start_ms: float | None = None
    hosts: tuple[str, ...] = ()
    ready: tuple[Ready, ...] = ()
    bundle: Path | None = None
    seed: int | None = None
    notes: list[str] = field(default_factory=list)
    recoveries: tuple[RecoveryRecord, ...] = ()
    history_bytes: int = 0
    wire_encodings: tuple[str, ...] = ()
    direct_links: tuple[bool, ...] = ()
    _meter: Meter | None = None
    _begun_s: float = field(default_factory=time.perf_counter)

    def started(self, hosts: tuple[str, ...], ready: tuple[Ready, ...]) -> None:
        """Note that all stages serve."""
        self.hosts, self.ready = hosts, ready
        self.start_ms = (time.perf_counter() - self._begun_s) * 1e3

    def asked(self) -> None:
        """Note that the request begins."""
        self._meter = Meter()

    def ended(self, pipeline: Stages) -> None:
        """Note what became of the stages."""
        self.hosts, self.ready = pipeline.hosts, pipeline.ready
        self.recoveries = tuple(pipeline.recoveries)
        self.history_bytes = pipeline.peak_history_bytes
        self.wire_encodings = pipeline.encodings_used
        self.direct_links = pipeline.links_live

    def take(self, output: TokenOutput) -> None:
        """Add a token."""
        self.pieces.append(output.text)
        self.token_ids.append(output.token_id)
        self.prompt_tokens = output.prompt_tokens
        self.finish = output.finish
        if self._meter is not None:
            self._meter.token()

    @property
    def ends_line(self) -> bool:
        """Whether the text is empty or ends with a line break."""
        text = "".join(self.pieces)
        return not text or text.endswith("\n")

    def as_json(self, trouble: Trouble | None) -> dict[str, Any]:
        """Return the object that --json prints; with trouble the finish reason is no "stop"."""
        finish = self.finish if trouble is None else None
        reason = finish.reason if finish else ("cancelled" if _is_cancel(trouble) else "error")
        result: dict[str, Any] = {
            "text": "".join(self.pieces),
            "token_ids": self.token_ids,
            "finish_reason": reason,
            "matched_stop": finish.matched_stop if finish else None,
            "usage": self._usage(),
            "timings": self._timings(),
            "seed": self.seed,
            "bundle": None if self.bundle is None else str(self.bundle),
            "stages": [
                _stage_fields(index, host, ready)
                for index, (host, ready) in enumerate(zip(self.hosts, self.ready, strict=True))
            ],
            "notes": self.notes,
            "recoveries": [to_fields(record) for record in self.recoveries],
            "history_bytes": self.history_bytes,
            "wire_encodings": list(self.wire_encodings),
            "direct_links": list(self.direct_links),
            "speculation": self._guesses(),
        }
        return result if trouble is None else {**result, "error": trouble.fields()}

    def summary(self) -> str:
        """Return the one line that ends a run."""
        timings = self.finish.timings if self.finish else None
        parts = []
        if self.start_ms is not None:
            stages = "1 stage" if len(self.ready) == 1 else f"{len(self.ready)} stages"
            parts.append(f"{stages} ready after {self.start_ms / 1e3:.1f} s")
        parts += [f"{self.prompt_tokens} prompt + {len(self.token_ids)} new tokens"]
        if timings and timings.ttft_ms is not None:
            parts.append(f"first token after {timings.ttft_ms / 1e3:.2f} s")
        if timings and timings.tokens_per_s is not None:
            parts.append(f"{timings.tokens_per_s:.1f} tokens/s")
        guesses = self.finish.guesses if self.finish else None
        if guesses and guesses.drafted:
            parts.append(f"{guesses.accepted} of {guesses.drafted} guesses right")
        restarts = sum(record.ok for record in self.recoveries)
        if restarts:
            parts.append("1 restart" if restarts == 1 else f"{restarts} restarts")
        if self.finish:
            parts.append(f"finish: {self.finish.reason}")
        if self.bundle is not None:
            parts.append(f"bundle: {self.bundle}")
        return ", ".join(parts)

    def _usage(self) -> dict[str, int]:
        new = len(self.token_ids)
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": new,
            "total_tokens": self.prompt_tokens + new,
        }

    def _guesses(self) -> dict[str, int] | None:
        guesses = self.finish.guesses if self.finish else None
        if guesses is None:
            return None
        return {"guessed_tokens": guesses.drafted, "right_guesses": guesses.accepted}

    def _request_timings(self) -> Timings | None:
        """Return how fast the request was; one that was cut short, as far as it came."""
        if self.finish is not None:
            return self.finish.timings
        return None if self._meter is None else self._meter.timings()

    def _timings(self) -> dict[str, float | None]:
        timings = self._request_timings()
        total_ms = (time.perf_counter() - self._begun_s) * 1e3
        values = {
            "start_ms": self.start_ms,
            "ttft_ms": timings.ttft_ms if timings else None,
            "tokens_per_s": timings.tokens_per_s if timings else None,
            "total_ms": total_ms,
        }
        return {name: None if v is None else round(v, 3) for name, v in values.items()}


def _is_cancel(trouble: Trouble | None) -> bool:
    return trouble is None or trouble.kind in ("interrupted", "output_closed")


def _stage_fields(stage: int, host: str, ready: Ready) -> dict[str, Any]:
    return {
        "stage": stage,
        "host": host,
        "layer_range": list(ready.layer_range),
        "device": ready.device,
        "quantization": ready.quantization,
        "pid": ready.pid,
    }
