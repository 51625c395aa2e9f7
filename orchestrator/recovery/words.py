"""Recovery in words: one line for each lost stage, and one for each that is back."""

from __future__ import annotations

import re
from typing import Any

from orchestrator.failures import StageFailure
from worker.protocol.ops import DecodeStep, EmbedAndForward, ForwardAndSample, ForwardRange, Request

_MOST_CHARS = 120
_ADVICE = re.compile(r"(: |; | \()")
_DOING = re.compile(r" while (serving \S+|\w+)$")


def moment_of(failure: StageFailure, request: Request[Any] | None) -> str:
    """Return when a stage was lost: `in decode`, `in prefill`, `while idle`, …

    Args:
        failure: of the stage.
        request: the op it was at, if any.
    """
    if request is None:
        phase = failure.scene.phase
        return f"while {phase}" if phase in ("connecting", "loading", "idle") else f"in {phase}"
    if isinstance(request, DecodeStep):
        return "in decode"
    if isinstance(request, EmbedAndForward):
        return "in prefill"
    if isinstance(request, (ForwardRange, ForwardAndSample)):
        return "in decode" if request.seq_len == 1 and request.position > 0 else "in prefill"
    return f"in {request.op}"


def lost_words(failure: StageFailure, moment: str) -> str:
    """Return a failure without its details and advice: `stage 1 on B was killed by SIGKILL …`."""
    title = failure.sentence.removesuffix(failure.cause).strip()
    cause = failure.cause
    if cause.startswith("cannot"):
        return f"{title} {cause.split('; ')[0][:_MOST_CHARS]}"
    short = _DOING.sub("", _ADVICE.split(cause, maxsplit=1)[0][:_MOST_CHARS])
    return f"{title} {short} {moment}"


def restart_notice(
    lost: str, attempt: int, most: int, *, spare: str | None, pause_s: float, positions: int
) -> str:
    """Return the line that tells of a lost stage and what is done about it."""
    doing = "restarting" if spare is None else f"moving it to {spare}"
    pause = f" in {pause_s:g} s" if pause_s else ""
    replaying = f", replaying {positions} tokens" if positions else ""
    return f"{lost}; {doing} ({attempt}/{most}){pause}{replaying}"


def back_notice(
    stage: int,
    host: str,
    new_host: str | None,
    *,
    total_s: float,
    restart_s: float,
    replay_s: float,
) -> str:
    """Return the line that tells that a stage serves again."""
    what = (
        f"stage {stage} on {host} serves again"
        if new_host is None
        else f"stage {stage} moved from {host} to {new_host} and serves again"
    )
    return f"{what} after {total_s:.1f} s (restart {restart_s:.1f} s, replay {replay_s:.1f} s)"


def given_up(first: StageFailure, last: StageFailure, attempts: int, *, made: int) -> StageFailure:
    """Return the failure that ends the wait for a stage.

    Args:
        first: why the stage was lost.
        last: the newest failure of an attempt, or `first` without one.
        attempts: restarts in a row, of earlier rounds too.
        made: of these, in this round.
    """
    if made == 0 and attempts == 0:
        return first
    if made == 0:
        times = "once" if attempts == 1 else f"{attempts} times"
        tail = f"it was restarted {times} in a row and lost again each time"
    else:
        own = last.sentence if last.scene.host != first.scene.host else f"it {last.cause}"
        tail = (
            f"its restart failed: {own}"
            if made == 1
            else f"{made} restarts failed, the last one so: {own}"
        )
    return type(first)(
        first.scene, f"{first.cause}; {tail}", first.exit_code, may_pass=first.may_pass
    )
