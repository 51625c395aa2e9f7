"""Bring the tensors that a stage needs here, telling how far it is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

from worker.config import WorkerConfig
from worker.failures import LoadFailed
from worker.model.loaded import StageRequest
from worker.protocol.events import DownloadFailed, Event
from worker.weights.checkpoint import Checkpoint, open_checkpoint
from worker.weights.location import cache_root
from worker.weights.progress import DownloadMeter
from worker.weights.repo import ModelFolder
from worker.weights.retry import FetchLimits


def checkpoint_of(
    model: ModelFolder, config: WorkerConfig, emit: Callable[[Event], None]
) -> Checkpoint:
    """Return the checkpoint of a found model, to be fetched as the config says."""
    return open_checkpoint(
        model,
        cache_root(config.cache_dir),
        FetchLimits(connections=config.fetch_connections),
        emit,
        whole_files=partial(meter_of, config, emit) if config.whole_files else None,
    )


def meter_of(
    config: WorkerConfig, emit: Callable[[Event], None], total_bytes: int
) -> DownloadMeter:
    """Return the meter of a download of so many bytes."""
    return DownloadMeter(
        total_bytes, emit, interval_s=config.download_progress_s, stage=config.stage
    )


@contextmanager
def download_failures(emit: Callable[[Event], None]) -> Iterator[None]:
    """Tell as an event that the hub or the disk did not give what the block needs."""
    try:
        yield
    except LoadFailed as error:
        emit(DownloadFailed(reason=error.text))
        raise


def fetch_weights(
    checkpoint: Checkpoint,
    request: StageRequest,
    config: WorkerConfig,
    emit: Callable[[Event], None],
) -> bool:
    """Bring the tensors of a prepared stage here; tell whether any weight was fetched.

    Raises:
        LoadFailed: the hub refuses, or the disk is full; one sentence with advice.
    """
    missing = checkpoint.missing(request.plan.tensors.entries(request.index))
    if not missing:
        return checkpoint.took_whole_files
    meter = meter_of(config, emit, sum(entry.size_bytes for entry in missing))
    with download_failures(emit):
        checkpoint.fetch(missing, meter)
    return True
