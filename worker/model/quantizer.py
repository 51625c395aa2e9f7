"""The library's bitsandbytes quantizers, extended: pieces, fused experts, our choice of layers."""

from __future__ import annotations

import re
from typing import Any

import torch
from bitsandbytes.functional import QuantState, get_4bit_type
from bitsandbytes.nn.modules import Int8Params, Linear8bitLt, Params4bit
from torch import nn
from transformers import BitsAndBytesConfig, PreTrainedModel
from transformers.pytorch_utils import Conv1D
from transformers.quantizers.auto import register_quantizer
from transformers.quantizers.quantizer_bnb_4bit import Bnb4BitHfQuantizer
from transformers.quantizers.quantizer_bnb_8bit import Bnb8BitHfQuantizer

from worker.model.choice_quantizer import ChoiceQuantizer
from worker.model.packing import NF4_BLOCK, pack_int8, pack_nf4
from worker.model.quantization_choice import QuantizationChoice
from worker.model.weight_watch import is_linear


class _ChoiceConfig(BitsAndBytesConfig):
    """A bitsandbytes config that carries our choice, under a method name of its own."""

    quant_method: Any
    choice: QuantizationChoice


def quantizer_config(model: PreTrainedModel, choice: QuantizationChoice) -> BitsAndBytesConfig:
    """Return what makes `from_pretrained` quantize the parts in `choice` while it loads.

    The numbers are those of the library's own `BitsAndBytesConfig`: nf4 with bfloat16
    arithmetic and plain scales; int8 with its outlier columns. Those are chosen over all rows of
    an op, so rows of different requests must not share one; without them small models answer
    nonsense.
    """
    chosen = set(choice.linears)
    linears = [name for name, module in model.named_modules() if is_linear(module)]
    skipped = [re.escape(name) for name in linears if name not in chosen]
    if choice.quantization == "nf4":
        config = _ChoiceConfig(  # type: ignore[no-untyped-call]
            load_in_4bit=True,
            bnb_4bit_quant_type="nf4",
            bnb_4bit_compute_dtype=torch.bfloat16,
            bnb_4bit_use_double_quant=False,
            llm_int8_skip_modules=skipped,
        )
    else:
        config = _ChoiceConfig(  # type: ignore[no-untyped-call]
            load_in_8bit=True, llm_int8_skip_modules=skipped
        )
    config.quant_method = f"stageline_{choice.quantization}"
    config.choice = choice
    return config


@register_quantizer("stageline_nf4")
class Nf4Quantizer(ChoiceQuantizer, Bnb4BitHfQuantizer):
    """Quantizes to nf4."""

    def quantized_weight(self, value: torch.Tensor, module: Any) -> nn.Parameter:
        """Return the parameter that `Linear4bit` keeps."""
        matrix = _matrix(value, module)
        packed, scales = pack_nf4(matrix)
        state = QuantState(
            absmax=scales,
            shape=matrix.shape,
            code=get_4bit_type("nf4", device=matrix.device),
            blocksize=NF4_BLOCK,
            quant_type="nf4",
            dtype=matrix.dtype,
        )
        module.quant_state = state
        module._is_hf_initialized = True
        return Params4bit(
            packed,
            requires_grad=False,
            quant_state=state,
            blocksize=NF4_BLOCK,
            compress_statistics=False,
            quant_type="nf4",
            module=module,
            bnb_quantized=True,
        )


@register_quantizer("stageline_int8")
class Int8Quantizer(ChoiceQuantizer, Bnb8BitHfQuantizer):
    """Quantizes to int8."""

    def quantized_weight(self, value: torch.Tensor, module: Any) -> nn.Parameter:
        """Return the parameter that `Linear8bitLt` keeps."""
        packed, scales = pack_int8(_matrix(value, module))
        return Int8Params(packed, requires_grad=False, CB=packed, SCB=scales)

    def _process_model_before_weight_loading(self, model: Any, *args: Any, **kwargs: Any) -> None:
        super()._process_model_before_weight_loading(model, *args, **kwargs)
        for module in model.modules():
            if type(module) is Linear8bitLt:
                module.__class__ = AnyRankLinear8bitLt


class AnyRankLinear8bitLt(Linear8bitLt):
    """An int8 linear that takes inputs of any rank; the kernels fail on four dimensions."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Apply the linear map to the last dimension of `x`."""
        flat: torch.Tensor = super().forward(x if x.dim() <= 3 else x.reshape(-1, x.shape[-1]))
        return flat.reshape(*x.shape[:-1], flat.shape[-1])


def _matrix(value: torch.Tensor, module: Any) -> torch.Tensor:
    """Conv1D keeps its weight transposed, the modules of bitsandbytes do not."""
    return value.T if issubclass(module.source_cls, Conv1D) else value
