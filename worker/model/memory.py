"""Predict the memory of a planned stage before anything is read."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from worker.model import internals
from worker.model.amx_products import has_tiles
from worker.model.attention import is_known
from worker.model.dry_run import DryRun
from worker.model.graph_memory import graph_bytes
from worker.model.kept_runs import remembered_dry_run
from worker.model.lane_text import BLOCK
from worker.model.loaded import StageRequest
from worker.model.plan import WEIGHT_DTYPE, StagePlan
from worker.model.quantization_choice import WEIGHT_ONLY, QuantizationChoice
from worker.model.quantize import choose, linear_shape
from worker.model.weight_size import WeightSize, weight_size
from worker.protocol.stage import StageSlice
from worker.remembered import NOTHING, Remembered
from worker.weights.header import CheckpointError
from worker.weights.index import CheckpointIndex

_MIB = 1 << 20
# Measured with tools/load_memory.py: what becomes resident between this check and the first
# tokens besides weights, cache and activations (lazy imports, code pages, thread arenas).
_PROCESS_BYTES = {
    "bfloat16": 24 * _MIB,
    "int8": 44 * _MIB,
    "nf4": 32 * _MIB,
    "int8-weight": 102 * _MIB,
    "int4-weight": 102 * _MIB,
}
# llvmlite and what it makes; part of the figures of the two kinds above that always need it
_COMPILER_BYTES = 78 * _MIB
# what a worker has resident at that check beside what a survey has: the planned model and its code
_PLANNED_BYTES = {
    "bfloat16": 15 * _MIB,
    "int8": 132 * _MIB,
    "nf4": 92 * _MIB,
    "int8-weight": 15 * _MIB,
    "int4-weight": 15 * _MIB,
}
# allocators round up and keep a little of what is freed
_ACTIVATION_FACTOR = 1.6
_SLACK_BYTES = 16 * _MIB
# int8 arithmetic for each output element: an int32 product and its float32 scalings
_INT8_OUTPUT_BYTES = 18
_INT8_INPUT_BYTES = 4
# and the weights of outlier columns as float32 and float16, where most columns have outliers
_INT8_OUTLIER_BYTES = 5
# measured: a tokenizer.json of 3.4 MiB becomes 46 MiB, the tokenizer's own library included
_TOKENIZER_FACTOR = 13
_PACKING_BYTES = 8 * _MIB
# float32 copies of a piece, its differences and its levels
_ROUNDING_BYTES_PER_ELEMENT = 20
# while an expert is dequantized for torch's kernels: its levels as bytes and as numbers, the result
_EXPERT_COPIES = 3
# bitsandbytes' repacking of nf4 weights for AVX-512 makes int32 and uint8 temporaries
_REPACK_BYTES_PER_ELEMENT = 8


@dataclass(frozen=True, slots=True)
class MemoryEstimate:
    """What a stage needs beyond what its process holds already.

    Attributes:
        weights_bytes: parameters and buffers at the chosen quantization.
        kv_bytes: the cache of one request at the maximum context.
        scratch_bytes: activations of a prefill chunk and recorded graphs, or temporaries of loading
            if those are more.
        process_bytes: libraries, tokenizer and allocator, as far as not yet resident.
        max_context: the context the cache was counted for.
        notes: what a user should know about the prediction or the quantization.
    """

    weights_bytes: int
    kv_bytes: int
    scratch_bytes: int
    process_bytes: int
    max_context: int
    notes: tuple[str, ...] = ()

    @property
    def need_bytes(self) -> int:
        """The sum."""
        return self.weights_bytes + self.kv_bytes + self.scratch_bytes + self.process_bytes


def estimate_memory(
    request: StageRequest,
    *,
    max_context: int,
    prefill_chunk: int,
    remembered: Remembered = NOTHING,
) -> MemoryEstimate:
    """Predict what a prepared stage will need; some tenths of a second at any size.

    Weights come from the shapes and dtypes of the sliced model and the choice of the quantizer,
    the cache and the activations from a dry run on the meta device, which may be `remembered`.

    Raises:
        UnsupportedModel: bitsandbytes is needed and cannot be imported.
    """
    options, plan = request.options, request.plan
    choice = choose(plan, options.quantization, options.device)
    weights = weight_size(plan, choice, options.device)
    notes = choice.notes
    run = remembered_dry_run(
        plan, max_context=max_context, prefill_chunk=prefill_chunk, remembered=remembered
    )
    if run is None:
        run = run_by_formula(plan, max_context, prefill_chunk)
        notes += ("the model cannot be run without weights, so its cache is counted by formula.",)
    stacked = internals.stacked_sources(plan.model, plan.tensors.parameters)
    loading = loading_bytes(plan, request.index, choice, weights, stacked)
    running = running_bytes(run, choice, weights, prefill_chunk)
    if options.engine == "graphs":
        running += graph_bytes(plan)
    return MemoryEstimate(
        weights_bytes=weights.total_bytes,
        kv_bytes=run.kv_bytes,
        # the cache is not there yet while the weights are read
        scratch_bytes=max(running, loading - run.kv_bytes),
        process_bytes=process_bytes(
            plan.sliced.stage,
            options.quantization,
            request.folder,
            compiles=options.engine == "fast" and options.device == "cpu",
        ),
        max_context=max_context,
        notes=notes,
    )


def running_bytes(
    run: DryRun, choice: QuantizationChoice, weights: WeightSize, prefill_chunk: int
) -> int:
    """Return the most that one forward of `prefill_chunk` rows takes beside weights and cache."""
    plain = int(run.activation_bytes * _ACTIVATION_FACTOR) + _SLACK_BYTES
    return plain + _quantized_activation_bytes(weights, choice.quantization, prefill_chunk)


def loading_bytes(
    plan: StagePlan,
    index: CheckpointIndex,
    choice: QuantizationChoice,
    weights: WeightSize,
    stacked: Collection[str],
) -> int:
    """Return the temporaries while weights stream in: sources of what is converted, one at a time.

    `stacked` names the parameters of the model that are put together expert by expert.
    """
    shapes = plan.model.state_dict()
    by_target: dict[str, list[str]] = defaultdict(list)
    for name, target in plan.tensors.parameters.items():
        by_target[target].append(name)
    quantized = {f"{name}.weight" for name in choice.linears} | set(choice.experts)
    worst = 0
    for target, names in by_target.items():
        bfloat16_bytes = shapes[target].numel() * WEIGHT_DTYPE.itemsize
        if target in stacked:
            # one expert at a time: its parts and the whole of it
            worst = max(worst, 2 * bfloat16_bytes // shapes[target].shape[0])
        elif len(names) > 1:
            # the sources, what they are stacked into, and the result
            worst = max(worst, 2 * bfloat16_bytes)
        elif target in quantized or not _is_stored_bfloat16(index, names[0]):
            worst = max(worst, 2 * bfloat16_bytes)
    if quantized:
        worst += _packing_bytes(plan, choice)
    if weights.repacks:
        worst = max(worst, weights.largest_linear * _REPACK_BYTES_PER_ELEMENT)
    return worst


def _packing_bytes(plan: StagePlan, choice: QuantizationChoice) -> int:
    """Temporaries of quantizing one piece; those of 4 bits hold a whole block of outputs."""
    if choice.quantization != "int4-weight":
        return _PACKING_BYTES
    shapes = [linear_shape(plan.model.get_submodule(name)) for name in choice.linears]
    widest = max((columns for _, columns in shapes), default=0)
    return max(_PACKING_BYTES, BLOCK * widest * _ROUNDING_BYTES_PER_ELEMENT)


def _is_stored_bfloat16(index: CheckpointIndex, name: str) -> bool:
    try:
        return index.entry(name).dtype == "BF16"
    except CheckpointError:
        # its file is not there yet; nearly all checkpoints are stored so
        return True


def _quantized_activation_bytes(weights: WeightSize, quantization: str, chunk: int) -> int:
    """Temporaries of quantized arithmetic that a dry run of the plain model does not show."""
    expert_bytes = weights.largest_expert * WEIGHT_DTYPE.itemsize
    if quantization == "int8" and weights.widest:
        rows, columns = weights.widest
        outlier_bytes = weights.largest_linear * _INT8_OUTLIER_BYTES
        element_bytes = rows * _INT8_OUTPUT_BYTES + columns * _INT8_INPUT_BYTES
        return expert_bytes + outlier_bytes + chunk * element_bytes
    if quantization in WEIGHT_ONLY:
        return _EXPERT_COPIES * expert_bytes
    if quantization == "nf4" and not weights.repacks:
        return max(expert_bytes, weights.largest_linear * WEIGHT_DTYPE.itemsize)
    return expert_bytes


def process_bytes(stage: StageSlice, quantization: str, folder: Path, *, compiles: bool) -> int:
    """Return what becomes resident of libraries and tokenizer; `folder` may have the latter.

    The stages that serve text hold the tokenizer, which is loaded after the weights. `compiles`
    says whether products of bfloat16 weights, and attention, are compiled where the processor is
    one of those that they are written for.
    """
    own_bytes, path = _PROCESS_BYTES[quantization], folder / "tokenizer.json"
    if quantization == "bfloat16" and compiles and (has_tiles() or is_known()):
        own_bytes += _COMPILER_BYTES
    if not (stage.is_first or stage.is_last) or not path.is_file():
        return own_bytes
    return own_bytes + path.stat().st_size * _TOKENIZER_FACTOR


def planned_bytes(quantization: str) -> int:
    """Return what planning makes resident before a stage is checked, on top of a survey."""
    return _PLANNED_BYTES[quantization]


def run_by_formula(plan: StagePlan, max_context: int, prefill_chunk: int) -> DryRun:
    """Count a plain attention cache, and the scores of one layer in float32."""
    config = plan.architecture.text_config
    heads = int(getattr(config, "num_attention_heads", 1))
    kv_heads = int(getattr(config, "num_key_value_heads", None) or heads)
    width = int(config.hidden_size)
    head_dim = int(getattr(config, "head_dim", None) or width // heads)
    layer_bytes = 2 * max_context * kv_heads * head_dim * WEIGHT_DTYPE.itemsize
    scores_bytes = heads * prefill_chunk * max_context * 4
    return DryRun(
        layer_bytes * plan.sliced.stage.num_own_layers,
        scores_bytes + 16 * prefill_chunk * width * WEIGHT_DTYPE.itemsize,
        dict.fromkeys(plan.sliced.cache_layers, layer_bytes),
    )
