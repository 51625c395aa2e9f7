"""The names of the Python API, as `from orchestrator import …` gives them."""

from orchestrator.asking import AnswerOptions
from orchestrator.bundle.records import Recorder
from orchestrator.completion import Completion
from orchestrator.config import NotForwarded
from orchestrator.failures import (
    Crashed,
    HostsNotAsked,
    HostUnreachable,
    Hung,
    NotReady,
    OpRejected,
    PipelineMismatch,
    ProtocolViolation,
    SpawnFailed,
    StageFailure,
    VersionMismatch,
)
from orchestrator.generate import Finish, TokenOutput
from orchestrator.hosts import HostsError
from orchestrator.layer_plan import PlanError
from orchestrator.open_options import OpenOptions
from orchestrator.pipeline import Pipeline
from orchestrator.placement import DoesNotFit
from orchestrator.request import GenerationRequest, RequestRefused
from orchestrator.scoring import TokenScore
from orchestrator.slurm.allocation import SlurmError
from orchestrator.speculation.draft_model import DraftRefused
from orchestrator.stage import StageStatus
from orchestrator.vocabulary import Vocabulary
from worker.protocol.ops import Sampling

__all__ = [
    "AnswerOptions",
    "Completion",
    "Crashed",
    "DoesNotFit",
    "DraftRefused",
    "Finish",
    "GenerationRequest",
    "HostUnreachable",
    "HostsError",
    "HostsNotAsked",
    "Hung",
    "NotForwarded",
    "NotReady",
    "OpRejected",
    "OpenOptions",
    "Pipeline",
    "PipelineMismatch",
    "PlanError",
    "ProtocolViolation",
    "Recorder",
    "RequestRefused",
    "Sampling",
    "SlurmError",
    "SpawnFailed",
    "StageFailure",
    "StageStatus",
    "TokenOutput",
    "TokenScore",
    "VersionMismatch",
    "Vocabulary",
]
