"""Find, check, fetch and load one stage, telling each step as an event."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import perf_counter
from typing import cast

import torch
from transformers.utils.logging import disable_progress_bar

from worker.backends.base import OutOfDeviceMemory
from worker.backends.transformers.backend import TransformersBackend
from worker.backends.transformers.device import choose_device, describe_device
from worker.backends.transformers.facts import model_facts
from worker.backends.transformers.fetching import fetch_weights, single_file
from worker.backends.transformers.memory_check import StageMemory, check_stage_memory
from worker.backends.transformers.memory_failures import memory_failures
from worker.backends.transformers.residency import peak_resident_mb
from worker.config import WorkerConfig
from worker.failures import LoadFailed
from worker.model.architecture import Architecture
from worker.model.context import context_limit
from worker.model.errors import LoadError, UnsupportedModel
from worker.model.load import load_prepared, prepare_stage
from worker.model.load_options import LoadOptions, Quantization
from worker.model.loaded import StageRequest
from worker.model.run import StageRunner
from worker.model.text import TextCodec
from worker.owner import resident_mb
from worker.protocol.events import (
    CacheHit,
    Event,
    FetchingModel,
    LoadingModel,
    ModelFetched,
    ModelLoadBreakdown,
    ModelLoaded,
)
from worker.protocol.exits import ExitCode
from worker.protocol.roles import StageIdentity
from worker.weights.index import CheckpointError
from worker.weights.repo import ModelFolder, find_model

Emit = Callable[[Event], None]


def open_backend(config: WorkerConfig, emit: Emit) -> tuple[StageIdentity, TransformersBackend]:
    """Do everything from the model's name to a warm backend.

    Raises:
        LoadFailed: one sentence and the exit code.
    """
    # a bar per load on stderr says nothing that the events do not
    disable_progress_bar()
    if config.threads is not None:
        torch.set_num_threads(config.threads)
    device = choose_device(config.device)
    emit(describe_device(device))
    try:
        with memory_failures():
            return Opening(config, device, emit).run()
    except (UnsupportedModel, CheckpointError, LoadError) as error:
        raise LoadFailed(str(error)) from error
    except OutOfDeviceMemory as error:
        raise LoadFailed(
            f"no memory was left on {device} while loading ({error}); give this stage fewer "
            "layers, --quantization nf4, or a smaller --max-context",
            ExitCode.OUT_OF_MEMORY,
        ) from error


class Opening:
    """The steps from a model's name to a warm backend, in order, with their times."""

    def __init__(self, config: WorkerConfig, device: str, emit: Emit) -> None:
        self._config = config
        self._device = device
        self._emit = emit
        self._took_ms: dict[str, float] = {}

    def run(self) -> tuple[StageIdentity, TransformersBackend]:
        """Take every step; what is not supported is refused before weights are fetched."""
        config = self._config
        self._emit(FetchingModel(model_id=config.model_id or ""))
        began_s = perf_counter()
        model = find_model(config.model_id or "", config.revision)
        architecture = Architecture.read(model.folder, trust_remote_code=config.trust_remote_code)
        identity = config.identity(architecture.num_layers)
        max_context = context_limit(architecture, config.max_context)
        fetched = fetch_weights(model, single_file(model), architecture, config, self._emit)
        with self._timed("plan"):
            request = prepare_stage(model.folder, identity.slice, self._options())
        needed = request.plan.tensors.files(request.index)
        fetched |= fetch_weights(model, needed, architecture, config, self._emit)
        total_bytes = request.plan.tensors.total_bytes(request.index)
        if not fetched:
            self._emit(CacheHit(bytes_total=total_bytes))
        self._emit(ModelFetched(bytes_total=total_bytes, elapsed_ms=_ms_since(began_s)))
        memory = check_stage_memory(request, config, max_context, self._emit)
        return identity, self._load(model, identity, request, memory)

    def _load(
        self,
        model: ModelFolder,
        identity: StageIdentity,
        request: StageRequest,
        memory: StageMemory,
    ) -> TransformersBackend:
        config, began_s = self._config, perf_counter()
        architecture = request.plan.architecture
        self._emit(
            LoadingModel(
                model_id=config.model_id or "",
                model_type=str(architecture.config.model_type),
                layer_range=str(identity.slice),
                quantization=config.quantization,
            )
        )
        with self._timed("weights"):
            loaded = load_prepared(request)
        with self._timed("tokenizer"):
            text = self._text(model, identity, architecture)
        with self._timed("warmup"):
            runner = StageRunner(loaded)
            facts = model_facts(
                model.folder,
                loaded,
                runner,
                text,
                max_context=memory.need.max_context,
                kv_budget_bytes=memory.kv_budget_bytes,
            )
            backend = TransformersBackend(runner, text, facts)
            backend.warm_up()
        self._emit(
            ModelLoadBreakdown(
                **{f"{step}_ms": ms for step, ms in self._took_ms.items()},
                num_tensors=len(request.plan.tensors.names),
            )
        )
        self._emit(
            ModelLoaded(
                elapsed_ms=_ms_since(began_s),
                weights_bytes=loaded.weight_bytes,
                rss_mb=resident_mb(),
                peak_rss_mb=peak_resident_mb(),
                notes=(*_notes(request, text), *memory.need.notes),
            )
        )
        return backend

    def _text(
        self, model: ModelFolder, identity: StageIdentity, architecture: Architecture
    ) -> TextCodec:
        """Read the tokenizer on the stages that serve text."""
        if not (identity.slice.is_first or identity.slice.is_last):
            return TextCodec(None, lacking="a middle stage serves no text")
        first_token = getattr(architecture.text_config, "bos_token_id", None)
        return TextCodec.load(
            model.folder,
            trust_remote_code=self._config.trust_remote_code,
            bos_token_id=first_token if isinstance(first_token, int) else None,
        )

    def _options(self) -> LoadOptions:
        return LoadOptions(
            quantization=cast(Quantization, self._config.quantization),
            device=self._device,
            mmap=self._config.mmap,
            trust_remote_code=self._config.trust_remote_code,
        )

    @contextmanager
    def _timed(self, step: str) -> Iterator[None]:
        began_s = perf_counter()
        yield
        self._took_ms[step] = _ms_since(began_s)


def _notes(request: StageRequest, text: TextCodec) -> tuple[str, ...]:
    """What a user should know of this stage, one sentence each."""
    notes: list[str] = []
    if request.support.source == "probe":
        notes.append(
            f"Model type {request.support.model_type!r} is not in the table of tried models; a "
            f"shrunken copy was split and compared here, and needs mode {request.support.mode}."
        )
    if text.lacking:
        notes.append(f"No text on this stage: {text.lacking}.")
    return tuple(notes)


def _ms_since(began_s: float) -> float:
    return round((perf_counter() - began_s) * 1e3, 1)
