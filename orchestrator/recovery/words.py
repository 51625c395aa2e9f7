"""Recovery in words: one line for each lost stage, and one for each that is back."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from orchestrator.failures import StageFailure
from worker.protocol.ops import (
    DecodeStep,
    EmbedAndForward,
    ForwardAndSample,
    ForwardRange,
    Request,
    Together,
)

_MOST_CHARS = 120
_ADVICE = re.compile(r"(: |; | \()")
_SILENCE = re.compile(r"nothing came from it for [\d.]+ s")
_DOING = re.compile(r" while (serving \S+|\w+)$")


def moment_of(failure: StageFailure, request: Request[Any] | None, *, answers: bool) -> str:
    """Return when a stage was lost: `in decode`, `in prefill`, `while idle`, …

    Args:
        failure: of the stage.
        request: the op it was at, if any.
        answers: whether the stage holds the cache of an answer that is under way.
    """
    if request is None:
        phase = failure.scene.phase
        if phase == "idle" and answers:
            return "between two ops of an answer"
        return f"while {phase}" if phase in ("connecting", "loading", "idle") else f"in {phase}"
    if isinstance(request, (DecodeStep, Together)):
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
    short, silence = _ADVICE.split(cause, maxsplit=1)[0][:_MOST_CHARS], _SILENCE.search(cause)
    long = f" ({silence[0]})" if silence and silence[0] not in short else ""
    return f"{title} {_DOING.sub('', short)} {moment}{long}"


def left_behind(failure: StageFailure, pid: int) -> str:
    """Return what the user may have to do about a process that nobody can end from here."""
    return (
        f"; pid {pid} on {failure.scene.host} may still be there, stopped, and hold its memory: "
        "kill it"
    )


def doing_words(home: str, place: str, newest: StageFailure, *, has_served: bool) -> str:
    """Return what is done about a lost stage.

    Args:
        home: its own host.
        place: the host where it is started next.
        newest: the newest failure; of the stage itself, or of an attempt somewhere.
        has_served: whether the stage has served anywhere.
    """
    if place != home:
        return f"moving it to {place}" if has_served else f"starting it on {place} instead"
    return "restarting" if newest.scene.host == home else f"going back to {home}"


def restart_notice(
    lost: str, attempt: int, most: int, *, doing: str, pause_s: float, positions: int
) -> str:
    """Return the line that tells of a lost stage and what is done about it."""
    pause = f" in {pause_s:g} s" if pause_s else ""
    replaying = f", replaying {positions} tokens" if positions else ""
    return f"{lost}; {doing} ({attempt}/{most}){pause}{replaying}"


def first_notice(stage: int, host: str, new_host: str | None, *, total_s: float) -> str:
    """Return the line that tells that a stage serves which could not when it was first started."""
    what = (
        f"stage {stage} on {host} serves now"
        if new_host is None
        else f"stage {stage} started on {new_host} instead of {host}"
    )
    return f"{what} after {total_s:.1f} s"


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


def given_up(
    first: StageFailure,
    last: StageFailure,
    attempts: int,
    *,
    made: int,
    elsewhere: Sequence[StageFailure] = (),
) -> StageFailure:
    """Return the failure that ends the wait for a stage.

    Args:
        first: why the stage was lost.
        last: the newest failure of an attempt, or `first` without one.
        attempts: restarts in a row, of earlier rounds too.
        made: of these, in this round.
        elsewhere: the failures of spares in this round.
    """
    if made == 0 and attempts == 0:
        return first
    if made == 0:
        times = "once" if attempts == 1 else f"{attempts} times"
        tail = f"it was restarted {times} in a row and lost again each time"
    else:
        tail = _restarts_failed(first, last, made)
        others = {one.scene.host: one.cause for one in elsewhere if one is not last}
        tail += "".join(f"; the spare {host} {cause}" for host, cause in others.items())
    return type(first)(
        first.scene, f"{first.cause}; {tail}", first.exit_code, may_pass=first.may_pass
    )


def _restarts_failed(first: StageFailure, last: StageFailure, made: int) -> str:
    same_place = last.scene.host == first.scene.host
    if same_place and last.cause == first.cause:
        times = "its restart" if made == 1 else f"the last of {made} restarts"
        return f"{times} failed in the same way"
    own = f"it {last.cause}" if same_place else last.sentence
    if made == 1:
        return f"its restart failed: {own}"
    return f"{made} restarts failed, the last one so: {own}"
