"""Tell what this host has to offer, and what a model costs, before anything is fetched."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter

import torch

from worker.backends.transformers.device import choose_device
from worker.backends.transformers.fetching import download_failures
from worker.backends.transformers.finding import find
from worker.backends.transformers.host import survey_host
from worker.backends.transformers.preparing import load_failures, ms_since
from worker.config import WorkerConfig
from worker.model.circumstances import here
from worker.model.costs import model_costs
from worker.model.quantized_cost import CostQuestion
from worker.model.verdict import support_for
from worker.protocol.events import Event, ModelSurveyed
from worker.remembered import NOTHING, Remembered


def survey(
    config: WorkerConfig, emit: Callable[[Event], None], remembered: Remembered = NOTHING
) -> None:
    """Survey the host, and unless `config` asks for the host alone the model; each is one event.

    The host comes first: it is told of even where the model cannot be had, and the figures of
    its memory are without what counting the model takes.

    Raises:
        LoadFailed: one sentence and the exit code.
    """
    if config.threads is not None:
        torch.set_num_threads(config.threads)
    with load_failures():
        emit(survey_host(config))
        if config.only != "survey-host" and config.model_id is not None:
            emit(survey_model(config, emit, here(remembered)))


def survey_model(
    config: WorkerConfig, emit: Callable[[Event], None], remembered: Remembered
) -> ModelSurveyed:
    """Return what the model of `config` costs, from its config and weight headers alone.

    Raises:
        LoadFailed: there is no such model, or the hub refuses.
        UnsupportedModel: it cannot be split.
        CheckpointError: its index or a header is broken.
    """
    began_s = perf_counter()
    found = find(config, emit)
    support_for(found.architecture).check()
    checkpoint = found.checkpoint
    with download_failures(emit):
        checkpoint.read_headers(checkpoint.index.names)
    costs = model_costs(
        CostQuestion(
            architecture=found.architecture,
            folder=found.folder,
            index=checkpoint.index,
            device=choose_device(config.device),
            max_context=found.max_context,
            prefill_chunk=config.prefill_chunk,
            remembered=remembered,
        )
    )
    return ModelSurveyed(
        model_id=config.model_id or "",
        commit=checkpoint.commit,
        model_type=str(found.architecture.config.model_type),
        max_context=found.max_context,
        prefill_chunk=config.prefill_chunk,
        fetched_bytes=checkpoint.header_bytes,
        elapsed_ms=ms_since(began_s),
        costs=costs.to_fields(),
    )
