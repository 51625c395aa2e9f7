"""Serve a stage with PyTorch and the model's own forward from transformers.

This file imports neither: the events around the slow imports must be out before them.
"""

from __future__ import annotations

import gc
import importlib
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, nullcontext, suppress
from functools import partial
from time import perf_counter
from typing import Any

from worker.backends.base import StageBackend
from worker.backends.transformers.lean_imports import lean_imports
from worker.backends.transformers.model_scan import remembered_scan
from worker.config import WorkerConfig
from worker.failures import LoadFailed
from worker.protocol.events import Event, Imported, Importing
from worker.protocol.roles import StageIdentity
from worker.remembered import NOTHING, Remembered
from worker.weights.early import EarlyWeights
from worker.weights.location import cache_root
from worker.weights.read_ahead import read_ahead
from worker.weights.repo import find_local

_SELDOM_OBJECTS = 20_000


def open_stage(
    config: WorkerConfig, emit: Callable[[Event], None]
) -> tuple[StageIdentity, StageBackend[Any]]:
    """Find, check, fetch and load the stage that `config` names, and warm it up.

    Raises:
        LoadFailed: it cannot be opened; one sentence and the exit code.
    """
    with closing(EarlyWeights()) as early:
        _read_ahead(config, early)
        module = _heavy("worker.backends.transformers.opening", config, emit)
        with _seldom_garbage():
            opened: tuple[StageIdentity, StageBackend[Any]] = module.open_backend(
                config, emit, _remembered(config), early
            )
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
    module = _heavy("worker.backends.transformers.survey", config, emit)
    module.survey(config, emit, _remembered(config))


def _read_ahead(config: WorkerConfig, early: EarlyWeights) -> None:
    """Have the weights of a folder come from the disk while the libraries are imported."""
    found = find_local(config.model_id or "", config.revision)
    if found is not None:
        reading = partial(read_ahead, config, found.folder, early)
        threading.Thread(target=reading, name="read_ahead", daemon=True).start()


def _remembered(config: WorkerConfig) -> Remembered:
    """Return what was found out on this host before; with stock kernels nothing is taken from it.

    Without a folder for fetched weights there is none: a local model needs no such folder.
    """
    if config.engine != "stock":
        with suppress(LoadFailed):
            return Remembered(cache_root(config.cache_dir) / "remembered")
    return NOTHING


def _heavy(module: str, config: WorkerConfig, emit: Callable[[Event], None]) -> Any:
    if config.model_id:
        find_local(config.model_id, config.revision)  # A wrong path is told at once.
    with _no_garbage():
        with _imported("torch", emit):
            importlib.import_module("torch")
        with _imported("transformers", emit), remembered_scan(_remembered(config)):
            importlib.import_module("transformers")
        # transformers imports its parts when they are first used: by the modules of this package,
        # each of which needs at least those that every model's class does
        lean = nullcontext() if config.engine == "stock" else lean_imports()
        with _imported("transformers.modeling_utils", emit), lean:
            return importlib.import_module(module)


@contextmanager
def _no_garbage() -> Iterator[None]:
    """Look for no garbage while libraries are imported, and never among what they made.

    The libraries make 600,000 objects that live as long as the process. Looking through them again
    and again took 1.5 of the 7 s of CPU time that their import takes (`tools.bench.startup`), and
    would stop a decode step now and then.
    """
    if "transformers.modeling_utils" in sys.modules:  # Nothing big is made any more.
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


@contextmanager
def _seldom_garbage() -> Iterator[None]:
    """Look for garbage after so many objects that it costs nothing, yet before there is much of it.

    Python would 400 times while a model is loaded, which makes many objects that stay.
    """
    usual = gc.get_threshold()
    gc.set_threshold(_SELDOM_OBJECTS, *usual[1:])
    try:
        yield
    finally:
        gc.set_threshold(*usual)


@contextmanager
def _imported(library: str, emit: Callable[[Event], None]) -> Iterator[None]:
    emit(Importing(library=library))
    began_s = perf_counter()
    yield
    emit(Imported(library=library, elapsed_ms=round((perf_counter() - began_s) * 1e3, 1)))
