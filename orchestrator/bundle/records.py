"""What a run records: plain facts, one frozen dataclass each, and the Recorder that takes them.

The stage client, the pipeline and the generator only know `Recorder`; `bundle.writer` is the one
that writes files. The fields carry the rules of the wire (worker.protocol.schema), so that writing
and reading a record need no code of their own. A field added later needs a default: bundles of
older versions do not have it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from worker.protocol.ops import RequestId
from worker.protocol.schema import (
    FLAG,
    INTEGER,
    NON_NEGATIVE,
    NON_NEGATIVE_NUMBER,
    OBJECT,
    POSITIVE,
    REQUEST_ID,
    TEXT,
    TEXTS,
    rule,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class StageRecord:
    """One stage of the plan."""

    stage: int = rule(NON_NEGATIVE, "stage index")
    host: str = rule(TEXT, "host label")
    transport: str = rule(TEXT, "local, ssh or command")
    layer_range: str | None = rule(TEXT, "`start:end`, half-open, where it was chosen", None)
    quantization: str | None = rule(
        TEXT, "bfloat16, int8, nf4, int8-weight or int4-weight, where it was chosen", None
    )
    device: str | None = rule(TEXT, "cpu, cuda:0, mps, where it was chosen", None)
    threads: int | None = rule(POSITIVE, "compute threads, where they were chosen", None)
    command: tuple[str, ...] = rule(TEXTS, "how the process was started", ())


# Not frozen: one is made for every op, and would cost twice as much.
@dataclass(slots=True, kw_only=True, unsafe_hash=True)
class OpRecord:
    """One op as the orchestrator saw it; `wall_ms` is when the line was sent."""

    stage: int = rule(NON_NEGATIVE, "stage index")
    host: str = rule(TEXT, "host label")
    op: str = rule(TEXT, "op name")
    rid: RequestId = rule(REQUEST_ID, "the request_id", None)
    wall_ms: float = rule(NON_NEGATIVE_NUMBER, "when the line was sent")
    duration_ms: float = rule(NON_NEGATIVE_NUMBER, "from sending up to the reply")
    sent_bytes: int = rule(NON_NEGATIVE, "length of the request line")
    received_bytes: int = rule(NON_NEGATIVE, "length of the reply line")
    ok: bool = rule(FLAG, "whether the reply came and is no error")
    code: str | None = rule(TEXT, "the error code", None)
    error: str | None = rule(TEXT, "the error's text, its beginning", None)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExitRecord:
    """How a stage's process ended. `expected`: the orchestrator had asked for it."""

    stage: int = rule(NON_NEGATIVE, "stage index")
    host: str = rule(TEXT, "host label")
    wall_ms: float = rule(NON_NEGATIVE_NUMBER, "when it was noticed")
    exit_code: int | None = rule(INTEGER, "exit code", None)
    signal: str | None = rule(TEXT, "SIGKILL, SIGSEGV, …", None)
    expected: bool = rule(FLAG, "whether the orchestrator had asked for it")
    sentence: str = rule(TEXT, "the same in words")


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureRecord:
    """A stage failure, in the order in which they were noticed; the first is the cause."""

    stage: int = rule(NON_NEGATIVE, "stage index")
    host: str = rule(TEXT, "host label")
    kind: str = rule(TEXT, "class of the failure")
    phase: str = rule(TEXT, "what the stage was doing")
    cause: str = rule(TEXT, "what is known")
    sentence: str = rule(TEXT, "what the user was told")
    wall_ms: float = rule(NON_NEGATIVE_NUMBER, "when it was noticed")
    exit_status: str | None = rule(TEXT, "exit code or signal, in words", None)
    last_events: tuple[str, ...] = rule(TEXTS, "the last event lines", ())
    stderr_tail: tuple[str, ...] = rule(TEXTS, "the last lines of stderr", ())


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestRecord:
    """One request, with no text."""

    rid: RequestId = rule(REQUEST_ID, "the request_id", None)
    wall_ms: float = rule(NON_NEGATIVE_NUMBER, "when it began")
    prompt_tokens: int = rule(NON_NEGATIVE, "tokens of the prompt")
    completion_tokens: int = rule(NON_NEGATIVE, "tokens generated")
    finish_reason: str = rule(TEXT, "stop, length, error, …")
    ttft_ms: float | None = rule(NON_NEGATIVE_NUMBER, "time to the first token", None)
    duration_ms: float = rule(NON_NEGATIVE_NUMBER, "the whole request")
    decode_tokens_per_s: float | None = rule(NON_NEGATIVE_NUMBER, "after the first token", None)
    cached_tokens: int | None = rule(
        NON_NEGATIVE, "of the prompt, those that the stages held of an earlier request", None
    )
    prefix_reuse: str | None = rule(
        TEXT, "turns, chunks or off: what was kept, and how the prompt was computed", None
    )
    caches: RequestId = rule(
        REQUEST_ID, "name of its KV caches and of its ops, where that is not `rid`", None
    )
    history_bytes: int | None = rule(
        NON_NEGATIVE, "hidden states kept at its end, to be sent again to a lost stage", None
    )
    guessed_tokens: int | None = rule(
        NON_NEGATIVE, "tokens guessed ahead and worked on; absent where nothing was guessed", None
    )
    right_guesses: int | None = rule(NON_NEGATIVE, "how many of those were right", None)
    options: Mapping[str, Any] | None = rule(OBJECT, "sampling options and limits", None)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryRecord:
    """One attempt to bring a lost stage back."""

    stage: int = rule(NON_NEGATIVE, "stage index")
    host: str = rule(TEXT, "label of the host it was lost on")
    new_host: str = rule(TEXT, "label of the host it was started on")
    attempt: int = rule(POSITIVE, "which attempt in a row, from 1")
    most_attempts: int = rule(POSITIVE, "how many in a row are made")
    reason: str = rule(TEXT, "the failure that it mends, as the user was told")
    wall_ms: float = rule(NON_NEGATIVE_NUMBER, "when it began")
    restart_ms: float | None = rule(NON_NEGATIVE_NUMBER, "up to the ready line", None)
    replay_ms: float | None = rule(NON_NEGATIVE_NUMBER, "from there until all is replayed", None)
    requests: int = rule(NON_NEGATIVE, "requests whose KV caches were rebuilt", 0)
    tokens: int = rule(NON_NEGATIVE, "positions replayed", 0)
    ok: bool = rule(FLAG, "whether the stage serves again")
    error: str | None = rule(TEXT, "why it does not", None)


class Recorder(Protocol):
    """Takes facts as they happen; no method waits or raises."""

    def line(self, stage: int, host: str, line: bytes, wall_ms: float) -> None:
        """Keep an event line, the ready line or a line that is none of the protocol."""

    def stderr(self, stage: int, host: str, text: bytes) -> None:
        """Keep what a stage wrote to stderr."""

    def op(self, record: OpRecord) -> None:
        """Keep one op."""

    def exit(self, record: ExitRecord) -> None:
        """Keep the end of a process."""

    def failure(self, record: FailureRecord) -> None:
        """Keep a failure."""

    def request(self, record: RequestRecord) -> None:
        """Keep a finished request."""

    def recovery(self, record: RecoveryRecord) -> None:
        """Keep an attempt to bring a stage back, once it has ended."""


class NoRecorder:
    """Keeps nothing."""

    def line(self, stage: int, host: str, line: bytes, wall_ms: float) -> None:
        """Ignore the line."""

    def stderr(self, stage: int, host: str, text: bytes) -> None:
        """Ignore the text."""

    def op(self, record: OpRecord) -> None:
        """Ignore the op."""

    def exit(self, record: ExitRecord) -> None:
        """Ignore the exit."""

    def failure(self, record: FailureRecord) -> None:
        """Ignore the failure."""

    def request(self, record: RequestRecord) -> None:
        """Ignore the request."""

    def recovery(self, record: RecoveryRecord) -> None:
        """Ignore the attempt."""
