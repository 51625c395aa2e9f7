"""Exit codes of both programs; a process ended by signal n reports 128 + n."""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """Why a process ended. 255 is never used: ssh reports its own failures with it."""

    OK = 0
    UNCAUGHT = 1
    USAGE = 2
    LOAD_FAILED = 3
    OUT_OF_MEMORY = 4
    PEER_GONE = 5
    INTERRUPTED = 130

    @property
    def meaning(self) -> str:
        """One line for help texts and the protocol document."""
        return _MEANINGS[self]


_MEANINGS = {
    ExitCode.OK: "finished; for a worker: stdin reached its end or `shutdown` was asked",
    ExitCode.UNCAUGHT: "an unexpected error; the traceback is on stderr and in the bundle",
    ExitCode.USAGE: "wrong usage or configuration; nothing was loaded",
    ExitCode.LOAD_FAILED: "the model could not be found, read or supported",
    ExitCode.OUT_OF_MEMORY: "not enough memory; the parts, the sum and what is free were printed",
    ExitCode.PEER_GONE: "the other side is gone: a stage died, hung or broke the protocol, "
    "or (worker) the orchestrator closed the pipe or its lease ran out",
    ExitCode.INTERRUPTED: "ended by Ctrl-C (128 + SIGINT)",
}
