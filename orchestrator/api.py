"""The names of the Python API, as `from orchestrator import …` gives them."""

from orchestrator.completion import Completion
from orchestrator.config import NotForwarded
from orchestrator.failures import OpRejected, PipelineMismatch, StageFailure
from orchestrator.generate import Finish, TokenOutput
from orchestrator.hosts import HostsError
from orchestrator.layer_plan import PlanError
from orchestrator.pipeline import Pipeline
from orchestrator.placement import DoesNotFit
from orchestrator.request import GenerationRequest, RequestRefused
from orchestrator.scoring import TokenScore
from orchestrator.slurm.allocation import SlurmError
from orchestrator.speculation.draft_model import DraftRefused
from orchestrator.vocabulary import Vocabulary
from worker.protocol.ops import Sampling

__all__ = [
    "Completion",
    "DoesNotFit",
    "DraftRefused",
    "Finish",
    "GenerationRequest",
    "HostsError",
    "NotForwarded",
    "OpRejected",
    "Pipeline",
    "PipelineMismatch",
    "PlanError",
    "RequestRefused",
    "Sampling",
    "SlurmError",
    "StageFailure",
    "TokenOutput",
    "TokenScore",
    "Vocabulary",
]
