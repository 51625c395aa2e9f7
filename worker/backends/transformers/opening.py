"""Find, check, fetch and load one stage, telling each step as an event."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from time import perf_counter

import torch

from worker.backends.base import OutOfDeviceMemory
from worker.backends.transformers.backend import TransformersBackend
from worker.backends.transformers.device import check_engine, choose_device, describe_device
from worker.backends.transformers.facts import model_facts
from worker.backends.transformers.memory_check import StageMemory, check_stage_memory
from worker.backends.transformers.memory_failures import memory_failures
from worker.backends.transformers.preparing import (
    PlannedStage,
    load_failures,
    ms_since,
    plan_stage,
)
from worker.backends.transformers.residency import peak_resident_mb
from worker.config import WorkerConfig
from worker.failures import LoadFailed
from worker.model.circumstances import here
from worker.model.engine import engaged
from worker.model.limits import FreeMemory, free_memory
from worker.model.load import load_prepared, whole_tensors
from worker.model.loaded import StageRequest
from worker.model.text import TextCodec
from worker.model.wide_program import wide_program
from worker.owner import resident_mb
from worker.protocol.events import (
    Event,
    LoadingModel,
    ModelLoadBreakdown,
    ModelLoaded,
)
from worker.protocol.exits import ExitCode
from worker.protocol.roles import StageIdentity
from worker.remembered import NOTHING, Remembered
from worker.weights.early import EarlyWeights

Emit = Callable[[Event], None]


def open_backend(
    config: WorkerConfig,
    emit: Emit,
    remembered: Remembered = NOTHING,
    early: EarlyWeights | None = None,
) -> tuple[StageIdentity, TransformersBackend]:
    """Do everything from the model's name to a warm backend.

    What was found out on this host before is taken from `remembered`, and added to it; weights that
    are in memory already from `early`.

    Raises:
        LoadFailed: one sentence and the exit code.
    """
    if config.threads is not None:
        torch.set_num_threads(config.threads)
    with load_failures():
        device = choose_device(config.device)
        check_engine(config.engine, device)
        emit(describe_device(device))
        try:
            with memory_failures():
                return Opening(config, device, emit, here(remembered), early).run()
        except OutOfDeviceMemory as error:
            raise LoadFailed(
                f"no memory was left on {device} while loading ({error}); give this stage fewer "
                "layers, --quantization nf4, or a smaller --max-context",
                ExitCode.OUT_OF_MEMORY,
            ) from error


class Opening:
    """The steps from a model's name to a warm backend, in order, with their times."""

    def __init__(
        self,
        config: WorkerConfig,
        device: str,
        emit: Emit,
        remembered: Remembered,
        early: EarlyWeights | None,
    ) -> None:
        self._config = config
        self._device = device
        self._emit = emit
        self._remembered = remembered
        self._early = early or EarlyWeights()
        self._took_ms: dict[str, float] = {}

    def run(self) -> tuple[StageIdentity, TransformersBackend]:
        """Take every step; what is not supported or does not fit is refused before fetching."""
        config, emit = self._config, self._emit
        planned = plan_stage(config, self._device, emit)
        self._took_ms["plan"] = planned.plan_ms
        self._early.keep(whole_tensors(planned.request))
        memory = check_stage_memory(
            planned.request,
            config,
            planned.max_context,
            emit,
            self._remembered,
            self._free,
        )
        planned.fetch(config, emit)
        # Most of reading a tokenizer is one call that lets go of Python's lock. What it and loading
        # have in common is imported by now, so neither waits for the other's imports.
        with ThreadPoolExecutor(2, thread_name_prefix="beside") as beside:
            reading = beside.submit(self._text, planned)
            if (self._device, config.engine, config.quantization) == ("cpu", "fast", "bfloat16"):
                # else the first prompt would wait for it; it is counted in the check above
                beside.submit(wide_program, torch.get_num_threads())
            return planned.identity, self._load(planned, memory, reading)

    def _free(self) -> FreeMemory:
        """Return what is free for this stage; what is read early is a part of it, not beside it."""
        with self._early.held() as held_bytes:
            return free_memory(self._device, self._config.memory_limit_bytes, held_bytes=held_bytes)

    def _load(
        self, planned: PlannedStage, memory: StageMemory, reading: Future[TextCodec]
    ) -> TransformersBackend:
        config, began_s = self._config, perf_counter()
        identity, request = planned.identity, planned.request
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
            loaded = load_prepared(request, early=self._early)
            self._early.close()
        text = reading.result()
        with self._timed("warmup"):
            runner = engaged(loaded, self._remembered)
            facts = model_facts(
                request.folder,
                runner.loaded,
                runner,
                text,
                commit=planned.checkpoint.commit,
                max_context=memory.need.max_context,
                kv_budget_bytes=memory.kv_budget_bytes,
            )
            # Learning the facts ran two positions through every layer, as a request does; one
            # more would read all weights once more and warm nothing.
            backend = TransformersBackend(runner, text, facts, self._remembered)
        self._emit(
            ModelLoadBreakdown(
                **{f"{step}_ms": ms for step, ms in self._took_ms.items()},
                num_tensors=len(request.plan.tensors.names),
            )
        )
        self._emit(
            ModelLoaded(
                elapsed_ms=ms_since(began_s),
                weights_bytes=loaded.weight_bytes,
                rss_mb=resident_mb(),
                peak_rss_mb=peak_resident_mb(),
                notes=(
                    *_notes(request, identity, text),
                    *dict.fromkeys((*memory.need.notes, *runner.loaded.notes)),
                ),
            )
        )
        return backend

    def _text(self, planned: PlannedStage) -> TextCodec:
        """Read the tokenizer on the stages that serve text; in a thread of its own."""
        with self._timed("tokenizer"):
            if not _serves_text(planned.identity):
                return TextCodec(None, lacking="a middle stage serves no text")
            architecture = planned.request.plan.architecture
            first_token = getattr(architecture.text_config, "bos_token_id", None)
            return TextCodec.load(
                planned.request.folder,
                trust_remote_code=self._config.trust_remote_code,
                bos_token_id=first_token if isinstance(first_token, int) else None,
            )

    @contextmanager
    def _timed(self, step: str) -> Iterator[None]:
        began_s = perf_counter()
        yield
        self._took_ms[step] = ms_since(began_s)


def _serves_text(identity: StageIdentity) -> bool:
    return identity.slice.is_first or identity.slice.is_last


def _notes(request: StageRequest, identity: StageIdentity, text: TextCodec) -> tuple[str, ...]:
    """What a user should know of this stage, one sentence each."""
    notes: list[str] = []
    if request.support.source == "probe":
        notes.append(
            f"Model type {request.support.model_type!r} is not in the table of tried models; a "
            f"shrunken copy was split and compared here, and needs mode {request.support.mode}."
        )
    if text.lacking and _serves_text(identity):
        notes.append(f"No text on this stage: {text.lacking}.")
    return tuple(notes)
