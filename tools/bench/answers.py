"""Answers that were asked for at once, and how fast they came."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from orchestrator.benchmark.stream import StreamSample

FIGURES = ("prefill_tokens_per_s", "decode_tokens_per_s", "tokens_per_s")


@dataclass(frozen=True, slots=True)
class Answers:
    """One or several answers; of one alone, the figures are its own prefill and decode."""

    streams: tuple[StreamSample, ...]

    @property
    def token_ids(self) -> tuple[tuple[int, ...], ...]:
        """The ids of each answer."""
        return tuple(stream.token_ids for stream in self.streams)

    @property
    def prefill_tokens_per_s(self) -> float:
        """Of all prompts, by the time until each answer had its first token."""
        prompts = sum(stream.prompt_tokens for stream in self.streams)
        return prompts * 1e3 / (self._all_first_ms - self._begun_ms)

    @property
    def decode_tokens_per_s(self) -> float:
        """Of the tokens after that moment, by the time that they took."""
        after = sum(ms > self._all_first_ms for stream in self.streams for ms in stream.token_ms)
        return after * 1e3 / max(self._end_ms - self._all_first_ms, 1e-6)

    @property
    def tokens_per_s(self) -> float:
        """Of all new tokens, by the whole time, prompts included."""
        new = sum(len(stream.token_ms) for stream in self.streams)
        return new * 1e3 / (self._end_ms - self._begun_ms)

    @property
    def _begun_ms(self) -> float:
        return min(stream.begun_ms for stream in self.streams)

    @property
    def _all_first_ms(self) -> float:
        return max(stream.token_ms[0] for stream in self.streams)

    @property
    def _end_ms(self) -> float:
        return max(stream.token_ms[-1] for stream in self.streams)


def figures(answers: Sequence[Answers]) -> dict[str, list[float]]:
    """Return each figure of all rounds."""
    return {name: [getattr(one, name) for one in answers] for name in FIGURES}


def ratios(mine: Sequence[Answers], theirs: Sequence[Answers]) -> dict[str, float]:
    """Return the medians of the one by those of the other."""
    above, below = figures(mine), figures(theirs)
    return {name: median(above[name]) / median(below[name]) for name in FIGURES}


def shared_beginning(one: Sequence[int], other: Sequence[int]) -> int:
    """Return how many tokens two answers have in common before the first that differs."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((at for at, (a, b) in pairs if a != b), min(len(one), len(other)))
