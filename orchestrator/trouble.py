"""What a run's error means to the user: one sentence, an exit code, the stage it was on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from orchestrator.bundle.mask import Masker
from orchestrator.bundle.output import OutputError
from orchestrator.config import NotForwarded
from orchestrator.failures import OpRejected, PipelineMismatch, StageFailure
from orchestrator.hosts import HostsError
from orchestrator.interruption import Interrupted
from orchestrator.layer_count import ModelUnreadable
from orchestrator.layer_plan import PlanError
from orchestrator.placement import DoesNotFit
from orchestrator.prompt import PromptError
from orchestrator.request import RequestRefused
from orchestrator.serve.keys import KeysError
from orchestrator.serve.listener import CannotListen
from orchestrator.slurm.allocation import SlurmError
from orchestrator.speculation.draft_model import DraftRefused
from orchestrator.text_output import OutputClosed, OutputFailed
from worker.protocol.exits import ExitCode
from worker.protocol.schema import ErrorCode

_USAGE = (
    HostsError,
    NotForwarded,
    PlanError,
    PromptError,
    RequestRefused,
    PipelineMismatch,
    DraftRefused,
    KeysError,
    CannotListen,
)
_REJECTED = {
    ErrorCode.BAD_FIELD: ExitCode.USAGE,
    ErrorCode.MISSING_FIELD: ExitCode.USAGE,
    ErrorCode.CONTEXT_FULL: ExitCode.USAGE,
    ErrorCode.OUT_OF_MEMORY: ExitCode.OUT_OF_MEMORY,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble:
    """Why a run did not end well.

    Attributes:
        kind: short name for programs: "usage", "interrupted", "op_rejected", a failure's kind, …
        sentence: for the user; "" where nothing need be said.
        expected: whether the error is one that the program foresees; others show a traceback.
        details: more of it for programs, as decoded JSON.
    """

    kind: str
    sentence: str
    exit_code: int
    stage: int | None = None
    host: str | None = None
    expected: bool = True
    details: Mapping[str, Any] = field(default_factory=dict)

    def masked(self, masker: Masker) -> Trouble:
        """Return it without the secrets that a worker or a library may have quoted."""
        return replace(
            self, sentence=masker.text(self.sentence), details=masker.value(self.details)
        )

    def fields(self) -> dict[str, object]:
        """Return it as the `error` object of --json."""
        place = {} if self.stage is None else {"stage": self.stage, "host": self.host}
        return {
            "kind": self.kind,
            "message": self.sentence,
            "exit_code": int(self.exit_code),
            **place,
            **self.details,
        }


def trouble_of(error: Exception) -> Trouble:
    """Return what an error means."""
    sentence = str(error)
    if isinstance(error, StageFailure):
        return Trouble(
            kind=error.kind,
            sentence=sentence,
            exit_code=error.exit_code,
            stage=error.scene.stage,
            host=error.scene.host,
        )
    if isinstance(error, OpRejected):
        known = {str(code): exit_code for code, exit_code in _REJECTED.items()}
        return Trouble(
            kind="op_rejected",
            sentence=sentence,
            exit_code=known.get(error.code, ExitCode.UNCAUGHT),
            stage=error.stage,
            host=error.host,
        )
    if isinstance(error, ModelUnreadable):
        return Trouble(kind="model_unreadable", sentence=sentence, exit_code=ExitCode.LOAD_FAILED)
    if isinstance(error, DoesNotFit):
        return Trouble(
            kind="does_not_fit",
            sentence=sentence,
            exit_code=error.exit_code,
            details={"hosts": error.to_json()["hosts"], "remedies": list(error.remedies)},
        )
    if isinstance(error, _USAGE):
        return Trouble(kind="usage", sentence=sentence, exit_code=ExitCode.USAGE)
    if isinstance(error, SlurmError):
        return Trouble(kind="slurm", sentence=sentence, exit_code=error.exit_code)
    if isinstance(error, Interrupted):
        return Trouble(kind="interrupted", sentence=sentence, exit_code=error.exit_code)
    if isinstance(error, OutputClosed):
        # Whoever reads has seen enough, as with `| head`: that is no fault.
        return Trouble(kind="output_closed", sentence="", exit_code=ExitCode.OK)
    if isinstance(error, OutputFailed | OutputError):
        return Trouble(kind="output_failed", sentence=sentence, exit_code=ExitCode.UNCAUGHT)
    return Trouble(
        kind="uncaught",
        sentence=f"unexpected {type(error).__name__}: {sentence}",
        exit_code=ExitCode.UNCAUGHT,
        expected=False,
    )
