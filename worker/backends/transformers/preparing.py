"""Plan a stage of a found model and bring its tensors here: all that comes before loading."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter
from typing import cast

from transformers.utils.logging import disable_progress_bar

from worker.backends.transformers.fetching import download_failures, fetch_weights
from worker.backends.transformers.finding import find
from worker.config import WorkerConfig
from worker.failures import LoadFailed
from worker.model.errors import LoadError, UnsupportedModel
from worker.model.load import prepare_stage
from worker.model.load_options import Engine, LoadOptions, Quantization
from worker.model.loaded import StageRequest
from worker.model.verdict import support_for
from worker.protocol.events import CacheHit, Event, ModelFetched
from worker.protocol.roles import StageIdentity
from worker.weights.checkpoint import Checkpoint
from worker.weights.header import CheckpointError

Emit = Callable[[Event], None]


@dataclass(frozen=True)
class PlannedStage:
    """A stage whose model is found and planned, and of which nothing is loaded.

    Attributes:
        began_s: when the model began to be looked for, on the clock of `perf_counter`.
        plan_ms: what planning took.
    """

    identity: StageIdentity
    checkpoint: Checkpoint
    request: StageRequest
    max_context: int
    began_s: float
    plan_ms: float

    def fetch(self, config: WorkerConfig, emit: Emit) -> None:
        """Bring every tensor of the stage here, and tell of it.

        Raises:
            LoadFailed: the hub refuses, or the disk is full; one sentence with advice.
        """
        fetched = fetch_weights(self.checkpoint, self.request, config, emit)
        total_bytes = self.request.plan.tensors.total_bytes(self.request.index)
        if not fetched:
            emit(CacheHit(bytes_total=total_bytes))
        emit(ModelFetched(bytes_total=total_bytes, elapsed_ms=ms_since(self.began_s)))


def plan_stage(config: WorkerConfig, device: str, emit: Emit) -> PlannedStage:
    """Find the model and plan the stage, from config and headers alone.

    Raises:
        LoadFailed, UnsupportedModel, CheckpointError: one sentence.
    """
    began_s = perf_counter()
    found = find(config, emit)
    identity = config.identity(found.architecture.num_layers)
    support_for(found.architecture).check()
    options = LoadOptions(
        quantization=cast(Quantization, config.quantization),
        device=device,
        mmap=config.mmap,
        trust_remote_code=config.trust_remote_code,
        engine=cast(Engine, config.engine),
    )
    planning_s = perf_counter()
    with download_failures(emit):
        index = found.checkpoint.index
        request = prepare_stage(found.folder, identity.slice, options, index=index)
        found.checkpoint.read_headers(request.plan.tensors.names)
    return PlannedStage(
        identity, found.checkpoint, request, found.max_context, began_s, ms_since(planning_s)
    )


@contextmanager
def load_failures() -> Iterator[None]:
    """Turn what a model or a checkpoint is refused for into `LoadFailed`."""
    # a bar per load on stderr says nothing that the events do not
    disable_progress_bar()
    try:
        yield
    except (UnsupportedModel, CheckpointError, LoadError) as error:
        raise LoadFailed(str(error)) from error


def fetch_only(config: WorkerConfig, emit: Emit) -> None:
    """Bring the tensors of a stage here and load nothing.

    Raises:
        LoadFailed: one sentence and the exit code.
    """
    with load_failures():
        plan_stage(config, "cpu", emit).fetch(config, emit)


def ms_since(began_s: float) -> float:
    """Return the milliseconds since a time of `perf_counter`."""
    return round((perf_counter() - began_s) * 1e3, 1)
