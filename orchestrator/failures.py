"""What can go wrong with a stage: one class for each kind, one sentence for each case."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from orchestrator.transport.base import ExitStatus
from worker.protocol.exits import ExitCode


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """Where and when a failure happened, and what was known of the stage then.

    Attributes:
        phase: "connecting", "loading", "serving <op>", "idle" or "closing".
        last_events: kinds of the last events, newest last.
        stderr_tail: last lines of stderr, newest last.
        title: what the sentence calls the worker; "" is `stage N on HOST`.
    """

    stage: int
    host: str
    phase: str
    exit_status: ExitStatus | None = None
    last_events: tuple[str, ...] = ()
    stderr_tail: tuple[str, ...] = ()
    title: str = ""


class StageFailure(Exception):
    """A stage is lost. `str()` is one sentence for the user.

    Args:
        scene: stage, host, phase and what was seen last.
        cause: a verb phrase that completes "stage 1 on HOST …", with the next step.
        exit_code: what the orchestrator should exit with.
        may_pass: whether another try may go better; None is what the class says.
    """

    kind: ClassVar[str] = "failed"
    usually_passes: ClassVar[bool] = False

    def __init__(
        self,
        scene: Scene,
        cause: str,
        exit_code: ExitCode = ExitCode.PEER_GONE,
        *,
        may_pass: bool | None = None,
    ) -> None:
        title = scene.title or f"stage {scene.stage} on {scene.host}"
        super().__init__(f"{title} {cause}")
        self.scene = scene
        self.cause = cause
        self.exit_code = exit_code
        self.may_pass = self.usually_passes if may_pass is None else may_pass

    @property
    def sentence(self) -> str:
        """The failure in one sentence."""
        return str(self)


class SpawnFailed(StageFailure):
    """The worker's program never ran."""

    kind = "spawn_failed"


class HostUnreachable(StageFailure):
    """SSH could not connect, or the connection was lost."""

    kind = "host_unreachable"
    usually_passes = True


class NotReady(StageFailure):
    """The worker ran but could not serve: bad configuration, load failed, no memory, too slow."""

    kind = "not_ready"


class Crashed(StageFailure):
    """The worker's process ended though nobody asked it to."""

    kind = "crashed"
    usually_passes = True


class Hung(StageFailure):
    """The worker is there but does not answer."""

    kind = "hung"
    usually_passes = True


class ProtocolViolation(StageFailure):
    """The worker wrote what the protocol does not allow."""

    kind = "protocol_violation"
    usually_passes = True


class VersionMismatch(StageFailure):
    """The worker speaks another version of the protocol."""

    kind = "version_mismatch"


class HostsNotAsked(StageFailure):
    """Some hosts could not be surveyed: one line for each, then the next step.

    Stage, kind and exit code are those of the first.

    Args:
        failures: at least one, in the order noticed; none is of this kind.
        advice: the last line; "" is none.
    """

    def __init__(self, failures: Sequence[StageFailure], advice: str = "") -> None:
        first = failures[0]
        super().__init__(first.scene, first.cause, first.exit_code, may_pass=first.may_pass)
        self.failures = tuple(failures)
        self.kind = first.kind  # type: ignore[misc]  # of this one alone
        self.args = ("\n".join([*map(str, failures), *([advice] if advice else [])]),)


class PipelineMismatch(Exception):
    """The stages are each ready but do not make one model; one sentence."""

    exit_code = ExitCode.USAGE


class OpRejected(Exception):
    """The worker refused one op; the stage lives and serves on."""

    def __init__(self, stage: int, host: str, op: str, code: str, text: str) -> None:
        super().__init__(f"stage {stage} on {host} refused {op} ({code}): {text}")
        self.stage = stage
        self.host = host
        self.op = op
        self.code = code
        self.text = text
