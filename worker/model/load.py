"""Load the layers of one stage, and nothing else, into memory."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from worker.model import internals
from worker.model.architecture import Architecture, check_quantization
from worker.model.copies import DTYPES
from worker.model.errors import LoadError
from worker.model.heap import lean_heap
from worker.model.lazy import OpenFiles, StackedTensor, lazy_tensors
from worker.model.load_options import LoadOptions
from worker.model.loaded import LoadedStage, StageRequest
from worker.model.plan import WEIGHT_DTYPE, StagePlan, plan_stage
from worker.model.side_by_side import places
from worker.model.slicing import stage_class, stage_parts
from worker.model.support import Support
from worker.model.verdict import support_for
from worker.protocol.stage import StageSlice
from worker.weights.early import EarlyWeights
from worker.weights.header import CheckpointError
from worker.weights.index import CheckpointIndex


def prepare_stage(
    folder: Path,
    stage: StageSlice,
    options: LoadOptions,
    *,
    index: CheckpointIndex | None = None,
) -> StageRequest:
    """Check and plan a stage without reading any weight.

    `folder` has the config; the weights are those of `index`, by default of that folder too.

    Raises:
        UnsupportedModel: the model, the slice or the quantization cannot be served.
        CheckpointError: there are no usable weights in `folder`.
    """
    architecture = Architecture.read(folder, trust_remote_code=options.trust_remote_code)
    check_quantization(architecture.config, options.quantization)
    index = index or CheckpointIndex.read(folder)
    if options.mode is None:
        support = support_for(architecture)
        support.check()
    else:
        support = Support(str(architecture.config.model_type), options.mode, source="option")
    plan = plan_stage(architecture, index.names, stage, needs_tokens=support.mode.needs_tokens)
    return StageRequest(folder, options, support, index, plan)


def load_stage(
    folder: Path,
    stage: StageSlice,
    options: LoadOptions,
    *,
    progress: Callable[[int, int], None] | None = None,
) -> LoadedStage:
    """Load `stage` of the model in `folder`; `progress(bytes_done, bytes_total)` as it goes.

    Raises:
        UnsupportedModel, CheckpointError: see `prepare_stage`.
        LoadError: the weights read do not make a complete stage.
    """
    return load_prepared(prepare_stage(folder, stage, options), progress=progress)


def whole_tensors(request: StageRequest) -> set[str]:
    """Return the checkpoint's names of the tensors that loading keeps one by one, as they are.

    Others are put together, rounded, moved to a device or left mapped.
    """
    options, plan = request.options, request.plan
    if not _multiplies_here(options) or options.quantization != "bfloat16":
        return set()
    if internals.declared_quantization(plan.architecture.config) is not None:
        return set()
    sources = Counter(plan.tensors.parameters.values())
    return {name for name, target in plan.tensors.parameters.items() if sources[target] == 1}


def load_prepared(
    request: StageRequest,
    *,
    progress: Callable[[int, int], None] | None = None,
    early: EarlyWeights | None = None,
) -> LoadedStage:
    """Read the weights of a prepared stage; those that `early` holds are taken from there.

    Raises:
        CheckpointError, LoadError: see `load_stage`.
    """
    plan, options = request.plan, request.options
    names = {name: name for name in plan.tensors.parameters} | plan.tensors.aliases
    mmap = _may_map(options)
    early = early or EarlyWeights()
    shared = Counter(plan.tensors.parameters.values())
    merged = [name for name, target in plan.tensors.parameters.items() if shared[target] > 1]
    notes: tuple[str, ...] = ()
    numerics: dict[str, str] = {}
    scale_bytes = 0
    with lean_heap():
        with OpenFiles(
            request.index.place, mmap=mmap, threads=torch.get_num_threads(), early=early
        ) as files:
            tensors: dict[str, Any] = dict(
                lazy_tensors(
                    request.index,
                    names,
                    files,
                    progress,
                    copied=merged,
                    places=_places(request, early),
                )
            )
            if internals.declared_quantization(plan.architecture.config) is None:
                _stack_experts(plan, tensors)
            read_bytes = plan.tensors.total_bytes(request.index)
            model = _from_pretrained(plan, options, tensors)
        model.eval()
        if options.quantization != "bfloat16":
            from worker.model import quantize

            choice = quantize.finish(model)
            notes, numerics = choice.notes, choice.numerics
            scale_bytes = quantize.scale_bytes(model)
    return LoadedStage(
        model=model,
        architecture=plan.architecture,
        sliced=stage_parts(model),
        layout=plan.layout,
        support=request.support,
        options=options,
        read_bytes=read_bytes,
        weight_bytes=_weight_bytes(model) + scale_bytes,
        is_mapped=mmap,
        notes=notes,
        numerics=numerics,
    )


def _places(request: StageRequest, early: EarlyWeights) -> dict[str, torch.Tensor]:
    """Lay out the small weights where decode steps are to read them as they lie."""
    if not whole_tensors(request):
        return {}
    plan, index = request.plan, request.index
    entries = {name: index.entry(name) for name in plan.tensors.parameters}
    return places(plan, entries, early)


def _multiplies_here(options: LoadOptions) -> bool:
    return options.engine == "fast" and options.device == "cpu"


def _may_map(options: LoadOptions) -> bool:
    """Say whether weights may stay parts of mapped files.

    The fast engine multiplies by weights as they lie in memory: on huge pages, which a mapping has
    not, a decode step of a 1.1B model took 79 ms in place of 98. What is quantized is copied
    anyway, and mapped pages would count as resident beside it.
    """
    return options.mmap and options.quantization == "bfloat16" and not _multiplies_here(options)


def _stack_experts(plan: StagePlan, tensors: dict[str, Any]) -> None:
    """Put one tensor that reads all experts in the place of one tensor for each."""
    stacked = internals.stacked_sources(plan.model, plan.tensors.parameters)
    for target, blocks in stacked.items():
        # kinds that are mixed, or not of torch, the loader joins by its own rules
        kinds = {tensors[name].get_dtype() for block in blocks for name in block}
        if len(kinds) == 1 and kinds <= DTYPES.keys():
            tensors[target] = StackedTensor([[tensors.pop(name) for name in b] for b in blocks])


def _from_pretrained(
    plan: StagePlan, options: LoadOptions, tensors: dict[str, Any]
) -> PreTrainedModel:
    """Run the library's own loader over the sliced class."""
    kwargs: dict[str, Any] = {}
    if options.quantization != "bfloat16":
        from worker.model import quantize
        from worker.model.experts import ExpertStream

        config, more = quantize.quantization_for(options, plan)
        kwargs |= more | {"quantization_config": config}
        for name in config.choice.experts:
            if isinstance(tensors.get(name), StackedTensor):
                tensors[name] = ExpertStream(tensors[name])
    if options.attention is not None:
        kwargs["attn_implementation"] = options.attention
    if options.device != "cpu" and "device_map" not in kwargs:
        kwargs["device_map"] = {"": options.device}
    sliced_class = stage_class(
        plan.architecture.model_class,
        plan.sliced.stage,
        needs_tokens=plan.sliced.needs_tokens,
    )
    build: Any = sliced_class
    model: PreTrainedModel
    report: dict[str, Any]
    try:
        with internals.one_tensor_at_a_time():
            model, report = build.from_pretrained(
                None,
                config=copy.deepcopy(plan.architecture.config),
                state_dict=tensors,
                dtype=WEIGHT_DTYPE,
                output_loading_info=True,
                # only so that the report below names them, in place of a sentence that does not
                ignore_mismatched_sizes=True,
                **kwargs,
            )
    except (CheckpointError, MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:  # the loader raises whatever its conversions raise
        raise LoadError(
            f"loading layers {plan.sliced.stage} failed ({_first_line(error)}); "
            "fetch the model again, or report it with the traceback from stderr"
        ) from error
    _check_report(report, plan.sliced.stage)
    return model


def _check_report(report: dict[str, Any], stage: StageSlice) -> None:
    """Every load ends here: nothing may be missing, unexpected or of another shape."""
    for kind in ("missing_keys", "unexpected_keys", "mismatched_keys", "error_msgs"):
        found = sorted(map(_described, report.get(kind) or ()))
        if found:
            more = f" and {len(found) - 1} more" if found[1:] else ""
            raise LoadError(
                f"loading layers {stage} ended with {kind.replace('_', ' ')}: {found[0]}{more}; "
                "config.json and weights do not belong together, fetch the model again"
            )


def _described(key: Any) -> str:
    """Name what a report lists: a key, or a key with its stored and its expected shape."""
    if not isinstance(key, tuple):
        return str(key)
    name, stored, expected = key
    return f"{name} (stored {list(stored)}, config.json needs {list(expected)})"


def _weight_bytes(model: PreTrainedModel) -> int:
    """Bytes of all parameters and buffers, those at one place counted once."""
    found = {
        tensor.data_ptr(): tensor.numel() * tensor.element_size()
        for tensor in (*model.parameters(), *model.buffers())
    }
    return sum(found.values())


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
