"""What is asked of a server under load, and what became of it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A prompt and the one right answer.

    Attributes:
        max_tokens: tokens of the answer, all of which come.
    """

    prompt: str
    max_tokens: int
    answer: str


@dataclass(slots=True)
class Tally:
    """What became of the requests.

    Attributes:
        ended: how many, by kind of client and end.
        ttft_s, total_s: of each right answer, from the request to the first text and to the end.
        faults: what should not have been, in a sentence each.
    """

    ended: Counter[tuple[str, str]] = field(default_factory=Counter)
    ttft_s: list[float] = field(default_factory=list)
    total_s: list[float] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)

    def end(self, kind: str, how: str, fault: str | None = None) -> None:
        """Count a request, and a fault if it is one."""
        self.ended[kind, how] += 1
        if fault is not None:
            self.faults.append(f"{kind}: {fault}")
