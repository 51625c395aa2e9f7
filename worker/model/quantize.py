"""Choose what is quantized, and have the library's loader quantize it while it streams in."""

from __future__ import annotations

import importlib
import logging
from importlib.util import find_spec
from typing import Any

import torch
from torch import nn

from worker.model.errors import UnsupportedModel
from worker.model.experts import expert_parameters
from worker.model.heap import trim_heap
from worker.model.lane_text import GROUP
from worker.model.load_options import LoadOptions
from worker.model.packing import NF4_BLOCK
from worker.model.plan import StagePlan
from worker.model.quantization_choice import WEIGHT_ONLY, QuantizationChoice

_NF4_CPU_ROWS = 32
# the allocator keeps up to 32 MiB of each freed temporary of repacking; trimmed this often, the
# peak of a 6-layer stage of a 1B model fell from 314 to some 130 MiB above its weights
_TRIM_ELEMENTS = 1 << 23


def choose(plan: StagePlan, quantization: str, device: str) -> QuantizationChoice:
    """Choose what to quantize in a planned stage; no weight is read.

    Every linear layer but the head, tied ones and those a kernel cannot take, and every fused
    expert tensor that the model reads one expert at a time. Nothing for bfloat16.

    Raises:
        UnsupportedModel: bitsandbytes is needed and cannot be imported, or llvmlite is needed and
            not there, or the device is no CPU and a CPU is needed.
    """
    from worker.model.weight_watch import direct_weight_uses, is_linear

    if quantization == "bfloat16":
        return QuantizationChoice(quantization, (), (), ())
    if quantization in WEIGHT_ONLY:
        _require_cpu(quantization, device)
        _require_llvmlite(quantization)
    else:
        require_bitsandbytes(quantization)
    model = plan.model
    skipped = _never_quantized(plan)
    direct = direct_weight_uses(plan)
    linears: list[str] = []
    left: list[tuple[str, str]] = []
    for name, module in model.named_modules():
        if name in skipped or _is_kept_float32(model, name):
            continue
        if not is_linear(module):
            if isinstance(module, nn.Linear):
                left.append((name, f"{type(module).__name__} is not a plain linear layer"))
            continue
        reason = _shape_reason(module, quantization, device)
        if name in direct:
            reason = "the model uses their weight outside of the linear operation"
        if reason is None:
            linears.append(name)
        else:
            left.append((name, reason))
    experts, odd = expert_parameters(model, quantization)
    return QuantizationChoice(quantization, tuple(linears), experts, (*left, *odd))


def quantization_for(options: LoadOptions, plan: StagePlan) -> tuple[Any, dict[str, Any]]:
    """Return the quantization config for `from_pretrained`, and further arguments for it.

    Raises:
        UnsupportedModel: bitsandbytes cannot be imported.
    """
    choice = choose(plan, options.quantization, options.device)
    kwargs: dict[str, Any] = {"device_map": {"": options.device}}
    if choice.experts:
        # the only implementation that reads one expert at a time
        kwargs["experts_implementation"] = "eager"
    if choice.quantization in WEIGHT_ONLY:
        from worker.model.weight_only_quantizer import weight_only_config

        return weight_only_config(choice), kwargs
    from worker.model.quantizer import quantizer_config

    return quantizer_config(plan.model, choice), kwargs


def _require_cpu(quantization: str, device: str) -> None:
    """Refuse what there are kernels for on CPUs alone."""
    if device != "cpu":
        raise UnsupportedModel(
            f"--quantization {quantization} works on CPUs alone, and the device here is {device}; "
            "use int8 or nf4, or --device cpu"
        )


def _require_llvmlite(quantization: str) -> None:
    """Refuse where there is nothing to compile with; it is not imported yet."""
    if find_spec("llvmlite") is None:
        raise UnsupportedModel(
            f"--quantization {quantization} needs the package llvmlite, which is not installed "
            "here; run `pip install 'llvmlite~=0.50.0'` or use --quantization bfloat16"
        )


def require_bitsandbytes(quantization: str) -> None:
    """Import bitsandbytes, silencing what it logs about kernels that are not there.

    Raises:
        UnsupportedModel: it is not installed, or does not work on this machine.
    """
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)
    try:
        importlib.import_module("bitsandbytes")
    except Exception as error:  # a broken native library raises more than ImportError
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise UnsupportedModel(
            f"--quantization {quantization} needs the package bitsandbytes, which cannot be "
            f"imported ({reason}); run `pip install bitsandbytes` or use --quantization bfloat16"
        ) from error


@torch.inference_mode()
def finish(model: Any) -> QuantizationChoice:
    """Make a freshly loaded model ready, and say what was quantized.

    On CPUs with AVX-512 bfloat16, bitsandbytes repacks each nf4 weight at its first forward,
    with int32 temporaries; here it happens one module after the other, before the memory that
    it frees is given back, so that nothing of it is left for the first op.
    """
    choice: QuantizationChoice = model.config.quantization_config.choice
    trim_heap()
    if choice.quantization in WEIGHT_ONLY:
        return choice
    from bitsandbytes.nn.modules import Linear4bit

    untrimmed_elements = 0
    for module in model.modules():
        if isinstance(module, Linear4bit) and module.weight.device.type == "cpu":
            module(torch.zeros(1, module.in_features, dtype=torch.bfloat16))
            untrimmed_elements += module.in_features * module.out_features
            if untrimmed_elements >= _TRIM_ELEMENTS:
                trim_heap()
                untrimmed_elements = 0
    return choice


def repacks_nf4() -> bool:
    """Say whether bitsandbytes repacks nf4 weights on this machine's CPU."""
    from bitsandbytes.functional import has_avx512bf16

    return bool(has_avx512bf16())


def scale_bytes(model: nn.Module) -> int:
    """Return the bytes of scales that are neither parameters nor buffers."""
    total = 0
    for module in model.modules():
        state = getattr(getattr(module, "weight", None), "quant_state", None)
        scales = [getattr(state, "absmax", None)]
        scales += [getattr(getattr(module, "state", None), "SCB", None)]
        scales += [getattr(getattr(module, "weight", None), "SCB", None)]
        total += sum(t.numel() * t.element_size() for t in scales if torch.is_tensor(t))
    return total


def _never_quantized(plan: StagePlan) -> frozenset[str]:
    """Modules that transformers leaves alone too: the head, and whatever is tied."""
    tied = (*plan.sliced.tied.keys(), *plan.sliced.tied.values())
    names = (plan.sliced.parts.head, plan.sliced.parts.embeddings, *tied)
    return frozenset(name.removesuffix(".weight") for name in names)


def _is_kept_float32(model: Any, name: str) -> bool:
    from transformers.quantizers.quantizers_utils import should_convert_module

    return not should_convert_module(name, list(model._keep_in_fp32_modules or ()))


def _shape_reason(module: nn.Module, quantization: str, device: str) -> str | None:
    rows, columns = linear_shape(module)
    if quantization == "int8":
        return None
    if quantization in WEIGHT_ONLY:
        if columns % GROUP:
            return f"{quantization} needs input widths that are multiples of {GROUP}"
        return None
    if columns % NF4_BLOCK:
        return f"nf4 needs input widths that are multiples of {NF4_BLOCK}"
    if device == "cpu" and rows % _NF4_CPU_ROWS:
        return f"the CPU kernel for nf4 needs output widths that are multiples of {_NF4_CPU_ROWS}"
    return None


def linear_shape(module: Any) -> tuple[int, int]:
    """Return (outputs, inputs) of a linear module; Conv1D keeps its weight transposed."""
    rows, columns = module.weight.shape
    return (rows, columns) if type(module) is nn.Linear else (columns, rows)
