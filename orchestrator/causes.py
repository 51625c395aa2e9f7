"""Why a stage's process ended, in words: from its exit status, its last events and its stderr."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from orchestrator.errand_kind import ErrandKind
from orchestrator.failures import (
    Crashed,
    HostUnreachable,
    NotReady,
    Scene,
    SpawnFailed,
    StageFailure,
)
from orchestrator.line_words import LineWords
from orchestrator.oom import oom_evidence
from orchestrator.slurm.causes import slurm_cause
from orchestrator.ssh_causes import is_dropped, ssh_cause
from orchestrator.start_causes import Silent, lost_stdin, why_silent
from orchestrator.transport.base import ExitStatus
from orchestrator.transport.ssh import SSH_FAILED, SshTarget
from worker.protocol.events import (
    Event,
    Exiting,
    Heartbeat,
    MemoryCheck,
    ModelLoaded,
    ModelLoadFailed,
    SignalReceived,
    Starting,
    UncaughtException,
)
from worker.protocol.exits import ExitCode

E = TypeVar("E", bound=Event)

# A process that had reached this part of what was free before it loaded is taken to have died of
# it; below, a SIGKILL may have come from anyone.
_MEMORY_EVIDENCE = 0.9
_MEMORY_WORDS = ("out of memory", "oom-kill", "cannot allocate memory", "memoryerror", "bad_alloc")
_SIGNAL_MEANINGS = {
    "SIGSEGV": "a crash in native code",
    "SIGBUS": "a crash in native code, or a file that shrank while it was mapped",
    "SIGILL": "a processor instruction that this machine does not have; a library does not fit it",
    "SIGABRT": "a library gave up, often because memory could not be allocated",
    "SIGFPE": "a crash in native code",
    "SIGTERM": "someone on that host asked it to end",
    "SIGINT": "someone on that host interrupted it",
    "SIGHUP": "its terminal or connection on that host was closed",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """What is known of a process that ended though nobody asked it to.

    Attributes:
        scene: stage, host, phase, exit status.
        transport: "local", "ssh" or "command".
        said_hello: whether its first protocol line had come.
        events: the last events, newest last, and every memory figure.
        stderr_lines: last lines of stderr, newest last.
        noise: lines of stdout before its first protocol line.
        errand: what it was started for, where that was not to serve.
        ssh: where it was logged in.
        python: the interpreter that was asked for, or None.
        line: what its line of the hosts file sets.
    """

    scene: Scene
    transport: str
    said_hello: bool
    events: Sequence[Event] = ()
    stderr_lines: Sequence[str] = ()
    noise: Sequence[str] = ()
    errand: ErrandKind | None = None
    ssh: SshTarget | None = None
    python: str | None = None
    line: LineWords = LineWords()

    @property
    def status(self) -> ExitStatus:
        """How the process ended."""
        return self.scene.exit_status or ExitStatus(None)

    def last(self, kind: type[E]) -> E | None:
        """Return the newest event of a kind."""
        found = (event for event in reversed(self.events) if isinstance(event, kind))
        return next(found, None)

    @property
    def duty(self) -> str:
        """What it should have done, for "cannot …"."""
        return "serve" if self.errand is None else self.errand.verb

    @property
    def last_words(self) -> str:
        """The last line that may say why: of stderr, else of stdout before hello."""
        for lines in (self.stderr_lines, self.noise):
            for line in reversed(lines):
                if line.strip() and not line.startswith("kernel: "):
                    return self.line.retold(line.strip()[:300])
        return ""


def why_ended(ending: Ending) -> StageFailure:
    """Return the failure that explains the end of a process; the surest evidence first."""
    failed = ending.last(ModelLoadFailed)
    if failed is not None:
        return _load_failed(ending, failed)
    if ending.transport == "ssh" and ending.status.code == SSH_FAILED:
        found = ssh_cause(ending.stderr_lines, ending.said_hello, ending.ssh)
        return HostUnreachable(ending.scene, found.text, may_pass=found.may_pass)
    if ending.transport == "ssh" and ending.status.code is None:
        # The remote shell reports a signal of the worker as a code; this one hit the client here.
        return HostUnreachable(
            ending.scene, f"lost its SSH connection: the ssh client here got {ending.status.signal}"
        )
    # A worker that runs under srun is ended by Slurm for reasons that only Slurm knows.
    slurm = slurm_cause(ending.stderr_lines) if ending.transport == "command" else None
    if slurm is not None:
        kind = Crashed if ending.said_hello else SpawnFailed
        return kind(ending.scene, slurm.text, may_pass=slurm.may_pass)
    if not ending.said_hello:
        return _never_spoke(ending)
    crash = ending.last(UncaughtException)
    if crash is not None:
        return Crashed(
            ending.scene,
            f"crashed while {ending.scene.phase}: {crash.error_type}: {crash.error}; the "
            "traceback is in the bundle",
        )
    if ending.status.signal is not None:
        return _killed(ending)
    return _exited(ending)


def _load_failed(ending: Ending, failed: ModelLoadFailed) -> StageFailure:
    code = _load_code(ending)
    cause = f"cannot {ending.duty}: {ending.line.retold(failed.error)}"
    if failed.error_type == "ModuleNotFoundError":
        # Setup leaves a line alone that names its own Python.
        first, where = "run", ""
        if ending.python is not None:
            first, where = "leave python= out of its line and run", f" for {ending.python}"
        cause += (
            f"; {first} 'orchestrator setup' for that host, install it there{where}, or give "
            "python= of an environment that has it"
        )
    return NotReady(ending.scene, cause, code)


def _load_code(ending: Ending) -> ExitCode:
    exiting = ending.last(Exiting)
    code = exiting.code if exiting is not None else ending.status.code
    known = (ExitCode.USAGE, ExitCode.LOAD_FAILED, ExitCode.OUT_OF_MEMORY)
    return ExitCode(code) if code in known else ExitCode.LOAD_FAILED


def is_dropped_login(ending: Ending) -> bool:
    """Tell whether the server let a login drop that may go well when it is tried again."""
    is_login = ending.transport == "ssh" and not ending.said_hello
    return is_login and ending.status.code == SSH_FAILED and is_dropped(ending.stderr_lines)


def _never_spoke(ending: Ending) -> StageFailure:
    return why_silent(
        Silent(
            ending.scene,
            ending.transport,
            ending.stderr_lines,
            ending.noise,
            ending.last_words,
            ending.ssh,
            ending.python,
        )
    )


def _killed(ending: Ending) -> StageFailure:
    name = ending.status.signal
    if ending.last(SignalReceived) is not None and name == "SIGKILL":
        meaning = "after another signal had asked it to end"
    elif name == "SIGKILL":
        evidence = memory_evidence(ending)
        meaning = (
            f"likely out of memory: {evidence}; use fewer layers there, a quantization, or a "
            "smaller --max-context"
            if evidence
            else "by someone or something on that host; nothing here points to memory"
        )
    else:
        meaning = _SIGNAL_MEANINGS.get(name or "", "see its stderr in the bundle")
    return Crashed(ending.scene, f"was killed by {name} while {ending.scene.phase}: {meaning}")


def kills_before(events: Sequence[Event]) -> int | None:
    """Return how many kills for memory its host had counted when the worker was last heard of."""
    told = (event for event in reversed(events) if isinstance(event, (Starting, Heartbeat)))
    return next((event.oom_kills for event in told if event.oom_kills is not None), None)


def memory_evidence(ending: Ending) -> str | None:
    """Return what points to memory as the reason of a SIGKILL, or None."""
    hello = ending.last(Starting)
    kills = kills_before(ending.events)
    by_kernel = oom_evidence(ending.stderr_lines, hello.pid if hello else None, kills)
    if by_kernel is not None:
        return by_kernel[1]
    for line in reversed(ending.stderr_lines):
        # A shell's own "Killed" says no more than the signal does, and the kernel's log of another
        # process nothing.
        if any(word in line.lower() for word in _MEMORY_WORDS) and "illed process" not in line:
            return f"its stderr says '{line.strip()[:200]}'"
    check = ending.last(MemoryCheck)
    if check is None or check.free_bytes == 0:
        return None
    seen = [
        event.rss_mb
        for event in (ending.last(Heartbeat), ending.last(ModelLoaded))
        if event is not None
    ]
    used_bytes = max(seen, default=0.0) * 1e6
    if used_bytes >= _MEMORY_EVIDENCE * check.free_bytes:
        return f"it held {used_bytes / 1e9:.1f} GB of {check.free_bytes / 1e9:.1f} GB"
    if not seen and check.need_bytes >= _MEMORY_EVIDENCE * check.free_bytes:
        return f"it was to take {check.need_bytes / 1e9:.1f} GB of {check.free_bytes / 1e9:.1f} GB"
    return None


def _exited(ending: Ending) -> StageFailure:
    scene, status = ending.scene, ending.status
    exiting = ending.last(Exiting)
    reason = f" ({exiting.reason})" if exiting is not None else ""
    if status.code == 0 and ending.errand is not None:
        return Crashed(scene, f"ended before it was done{reason}; look at its stderr")
    no_stdin = lost_stdin(ending.transport, exiting.reason if exiting is not None else "")
    if status.code in (0, ExitCode.PEER_GONE) and no_stdin is not None:
        return Crashed(scene, no_stdin, may_pass=scene.phase != "loading")
    if status.code == 0:
        return Crashed(
            scene, f"ended by itself while {scene.phase}{reason}, though nobody had asked it to"
        )
    if status.code in (ExitCode.LOAD_FAILED, ExitCode.OUT_OF_MEMORY, ExitCode.USAGE):
        return NotReady(
            scene,
            f"cannot {ending.duty}{reason}: {ending.last_words or status}",
            ExitCode(status.code),
        )
    words = f": {ending.last_words}" if ending.last_words else ""
    return Crashed(scene, f"ended with {status} while {scene.phase}{reason}{words}")
