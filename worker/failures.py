"""Why a worker gives up before it serves."""

from __future__ import annotations

from worker.protocol.exits import ExitCode


class LoadFailed(Exception):
    """The stage cannot be opened.

    Attributes:
        text: one sentence with the value seen, the value needed and the next step.
        code: how the process ends.
    """

    def __init__(self, text: str, code: ExitCode = ExitCode.LOAD_FAILED) -> None:
        super().__init__(text)
        self.text = text
        self.code = code


class UsageError(Exception):
    """The command line or the environment asks for something that cannot be; one sentence."""
