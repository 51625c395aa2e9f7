"""What a bench found: medians, with the lowest and the highest beside them."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from orchestrator.benchmark.figure import Figure
from orchestrator.benchmark.guess_result import GuessResult


@dataclass(frozen=True, slots=True, kw_only=True)
class StageResult:
    """One stage, as one request alone sees it; the times are of one token.

    Attributes:
        threads: compute threads; None on a device without.
        read_bytes: weights that one token reads; None where nothing tells.
        memory_gbps: 10^9 bytes a second that the host reads from memory; None likewise.
    """

    stage: int
    host: str
    layers: tuple[int, int]
    device: str | None
    threads: str | None
    compute_ms: Figure
    wire_ms: Figure
    idle_ms: Figure
    read_bytes: int | None = None
    memory_gbps: float | None = None

    @property
    def read_gbps(self) -> float | None:
        """10^9 bytes of weights a second while it computes."""
        if self.read_bytes is None or self.compute_ms.median <= 0:
            return None
        return self.read_bytes / self.compute_ms.median / 1e6

    @property
    def bandwidth_share(self) -> float | None:
        """That by what the host's memory gives; 1 is the bound of decoding one request."""
        if self.read_gbps is None or not self.memory_gbps:
            return None
        return self.read_gbps / self.memory_gbps

    def to_json(self) -> dict[str, Any]:
        """Return names with units."""
        return {
            "stage": self.stage,
            "host": self.host,
            "layers": list(self.layers),
            "device": self.device,
            "threads": self.threads,
            "compute_ms": self.compute_ms.to_json(),
            "wire_ms": self.wire_ms.to_json(),
            "idle_ms": self.idle_ms.to_json(),
            "read_bytes": self.read_bytes,
            "read_gbps": self.read_gbps,
            "memory_gbps": self.memory_gbps,
            "bandwidth_share": self.bandwidth_share,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelResult:
    """So many requests at once.

    Attributes:
        tokens_per_s: new tokens of all, from the first request's begin to the last one's end.
        each_tokens_per_s: of the median request, after its first token.
        ttft_ms: of the median request.
        longest_gap_ms: the longest wait of any request between two tokens.
        busy: by stage, the share of the time that it computed.
    """

    streams: int
    tokens_per_s: Figure
    each_tokens_per_s: Figure
    ttft_ms: Figure
    longest_gap_ms: Figure
    busy: tuple[Figure, ...]

    def to_json(self) -> dict[str, Any]:
        """Return names with units."""
        return {
            "streams": self.streams,
            "tokens_per_s": self.tokens_per_s.to_json(),
            "each_tokens_per_s": self.each_tokens_per_s.to_json(),
            "ttft_ms": self.ttft_ms.to_json(),
            "longest_gap_ms": self.longest_gap_ms.to_json(),
            "busy": [figure.to_json() for figure in self.busy],
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstRequest:
    """The request before all others, which pays for whatever is done once; no figure has it in."""

    ttft_ms: float
    tokens_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchResult:
    """Everything that is shown.

    Attributes:
        model: as the user named it.
        versions: of this program and of the libraries on the first stage.
        ready_ms: from the start of the stages until all served.
        token_ms: between two tokens of one request alone.
        guesses: what guessing ahead gained; None where that was off.
    """

    model: str
    model_type: str | None
    quantization: str | None
    versions: dict[str, str]
    started: str
    prompt_tokens: int
    new_tokens: int
    rounds: int
    ready_ms: float
    first: FirstRequest
    ttft_ms: Figure
    prefill_tokens_per_s: Figure
    decode_tokens_per_s: Figure
    token_ms: Figure
    stages: tuple[StageResult, ...]
    levels: tuple[LevelResult, ...]
    guesses: GuessResult | None = None
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return names with units; every figure with its median, spread and values."""
        return {
            "model": self.model,
            "model_type": self.model_type,
            "quantization": self.quantization,
            "versions": self.versions,
            "started": self.started,
            "prompt_tokens": self.prompt_tokens,
            "new_tokens": self.new_tokens,
            "rounds": self.rounds,
            "warm_up_requests": 1,
            "ready_ms": round(self.ready_ms, 1),
            "first_request": asdict(self.first),
            "alone": {
                "ttft_ms": self.ttft_ms.to_json(),
                "prefill_tokens_per_s": self.prefill_tokens_per_s.to_json(),
                "decode_tokens_per_s": self.decode_tokens_per_s.to_json(),
                "token_ms": self.token_ms.to_json(),
            },
            "stages": [stage.to_json() for stage in self.stages],
            "levels": [level.to_json() for level in self.levels],
            "speculation": None if self.guesses is None else self.guesses.to_json(),
            "notes": list(self.notes),
        }
