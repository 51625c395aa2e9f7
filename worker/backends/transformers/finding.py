"""Find a model and look at its config, before any layer is chosen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from worker.backends.transformers.fetching import checkpoint_of
from worker.config import WorkerConfig
from worker.model.architecture import Architecture
from worker.model.context import context_limit
from worker.protocol.events import Event, FetchingModel
from worker.weights.checkpoint import Checkpoint
from worker.weights.remote_code import take_code
from worker.weights.repo import find_model


@dataclass(frozen=True)
class FoundModel:
    """A model that can be split: its config, its checkpoint, and the context to serve."""

    folder: Path
    architecture: Architecture
    checkpoint: Checkpoint
    max_context: int


def find(config: WorkerConfig, emit: Callable[[Event], None]) -> FoundModel:
    """Find the model that `config` names; its config comes here, but no weight or header.

    Raises:
        LoadFailed: there is no such model, or the hub refuses.
        UnsupportedModel: it cannot be split.
    """
    emit(FetchingModel(model_id=config.model_id or ""))
    model = find_model(config.model_id or "", config.revision)
    if config.trust_remote_code:
        take_code(model)
    architecture = Architecture.read(model.folder, trust_remote_code=config.trust_remote_code)
    return FoundModel(
        model.folder,
        architecture,
        checkpoint_of(model, config, emit),
        context_limit(architecture, config.max_context),
    )
