"""What a diagnosis consists of."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum


class Rank(IntEnum):
    """How near to the root a finding is; findings are shown in this order."""

    CAUSE = 0
    REQUEST = 1  # One request suffered; the stages live.
    RUN = 2  # About the run as a whole; says little where a stage has a cause.
    SYMPTOM = 3
    NOTE = 4


@dataclass(frozen=True, slots=True)
class Evidence:
    """What a finding rests on: a place in the bundle, and what stands there."""

    where: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that went wrong.

    Attributes:
        rule: name of the rule that found it.
        stage: whose trouble it is; None for the run's.
        sentence: what happened.
        advice: what to do next.
        at_ms: when it was noticed, by the orchestrator's clock.
        is_told: whether `sentence` is what the user was told when it happened.
        cause: stable name of what happened.
        phase: what the stage was doing.
    """

    rule: str
    rank: Rank
    sentence: str
    advice: str
    at_ms: float
    stage: int | None = None
    host: str = ""
    evidence: tuple[Evidence, ...] = ()
    is_told: bool = False
    cause: str = ""
    phase: str = ""
