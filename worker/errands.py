"""What a worker can be started for besides serving: one function for each `--only`."""

from __future__ import annotations

from collections.abc import Callable

from worker.config import WorkerConfig, wait_passively
from worker.protocol.events import Event

Emit = Callable[[Event], None]
Errand = Callable[[WorkerConfig, Emit], None]


def errand_of(config: WorkerConfig) -> Errand:
    """Return what to do for `config.only`; each raises LoadFailed where it cannot be done."""
    assert config.only is not None
    return _ERRANDS[config.only]


def _survey(config: WorkerConfig, emit: Emit) -> None:
    from worker.backends.transformers import survey

    wait_passively()
    survey(config, emit)


def _fetch(config: WorkerConfig, emit: Emit) -> None:
    from worker.backends.transformers import fetch_stage

    wait_passively()
    fetch_stage(config, emit)


def _list_cache(config: WorkerConfig, emit: Emit) -> None:
    from worker.weights.inventory import list_models
    from worker.weights.location import cache_root

    list_models(cache_root(config.cache_dir), emit, model_id=config.model_id)


def _verify_cache(config: WorkerConfig, emit: Emit) -> None:
    from worker.weights.inventory import verify_models
    from worker.weights.location import cache_root

    verify_models(
        cache_root(config.cache_dir),
        emit,
        model_id=config.model_id,
        commit=config.revision,
        repair=config.repair,
    )


def _remove_cache(config: WorkerConfig, emit: Emit) -> None:
    from worker.weights.inventory import remove_models
    from worker.weights.location import cache_root

    remove_models(
        cache_root(config.cache_dir), emit, model_id=config.model_id, commit=config.revision
    )


_ERRANDS: dict[str, Errand] = {
    "survey": _survey,
    "survey-host": _survey,
    "fetch": _fetch,
    "list-cache": _list_cache,
    "verify-cache": _verify_cache,
    "remove-cache": _remove_cache,
}
