"""Bring the weight files that a stage needs here, telling how far it is."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from worker.config import WorkerConfig
from worker.failures import LoadFailed
from worker.model.architecture import Architecture
from worker.model.verdict import support_for
from worker.protocol.events import DownloadFailed, Event
from worker.weights.progress import DownloadMeter
from worker.weights.repo import INDEX_FILE, SINGLE_FILE, ModelFolder


def single_file(model: ModelFolder) -> list[str]:
    """Return the one weight file of a model without an index, else nothing.

    Which tensors such a model has is written in that file alone, so it comes first.
    """
    return [] if (model.folder / INDEX_FILE).is_file() else [SINGLE_FILE]


def fetch_weights(
    model: ModelFolder,
    files: Sequence[str],
    architecture: Architecture,
    config: WorkerConfig,
    emit: Callable[[Event], None],
) -> bool:
    """Bring the missing ones of `files` here; tell whether there were any.

    Raises:
        UnsupportedModel: the model cannot be split; gigabytes are not fetched for that.
        LoadFailed: the hub refuses, or the disk is full; one sentence with advice.
    """
    if model.repo_id is None or not model.missing(files):
        return False
    support_for(architecture).check()
    try:
        meter = DownloadMeter(
            model.size_bytes(files),
            emit,
            interval_s=config.download_progress_s,
            stage=config.stage,
        )
        with meter:
            model.fetch(files, meter.add)
    except LoadFailed as error:
        emit(DownloadFailed(reason=error.text))
        raise
    return True
