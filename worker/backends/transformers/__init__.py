"""Serve a stage with PyTorch and the model's own forward from transformers.

This file imports neither: the events around the slow imports must be out before them.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import perf_counter
from typing import Any

from worker.backends.base import StageBackend
from worker.config import WorkerConfig
from worker.protocol.events import Event, Imported, Importing
from worker.protocol.roles import StageIdentity
from worker.weights.repo import find_local


def open_stage(
    config: WorkerConfig, emit: Callable[[Event], None]
) -> tuple[StageIdentity, StageBackend[Any]]:
    """Find, check, fetch and load the stage that `config` names, and warm it up.

    Raises:
        LoadFailed: it cannot be opened; one sentence and the exit code.
    """
    module = _heavy("worker.backends.transformers.opening", config, emit)
    opened: tuple[StageIdentity, StageBackend[Any]] = module.open_backend(config, emit)
    return opened


def fetch_stage(config: WorkerConfig, emit: Callable[[Event], None]) -> None:
    """Bring the weights of the stage that `config` names here, and load nothing.

    Raises:
        LoadFailed: they cannot be had; one sentence and the exit code.
    """
    _heavy("worker.backends.transformers.preparing", config, emit).fetch_only(config, emit)


def survey(config: WorkerConfig, emit: Callable[[Event], None]) -> None:
    """Tell what this host has to offer and, where `config` names a model, what that costs.

    Raises:
        LoadFailed: the model cannot be had or split; one sentence and the exit code.
    """
    _heavy("worker.backends.transformers.survey", config, emit).survey(config, emit)


def _heavy(module: str, config: WorkerConfig, emit: Callable[[Event], None]) -> Any:
    if config.model_id:
        find_local(config.model_id, config.revision)  # A wrong path is told at once.
    with _imported("torch", emit):
        importlib.import_module("torch")
    with _imported("transformers", emit):
        # transformers imports its parts when they are first used: by the modules of this package
        return importlib.import_module(module)


@contextmanager
def _imported(library: str, emit: Callable[[Event], None]) -> Iterator[None]:
    emit(Importing(library=library))
    began_s = perf_counter()
    yield
    emit(Imported(library=library, elapsed_ms=round((perf_counter() - began_s) * 1e3, 1)))
