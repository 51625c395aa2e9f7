"""The library's bitsandbytes quantizers, extended: pieces, fused experts, our choice of layers."""

from __future__ import annotations

import re
from typing import Any

import torch
from bitsandbytes.functional import QuantState, get_4bit_type
from bitsandbytes.nn.modules import Int8Params, Linear8bitLt, Params4bit
from torch import nn
from transformers import BitsAndBytesConfig, PreTrainedModel
from transformers.core_model_loading import ConversionOps
from transformers.pytorch_utils import Conv1D
from transformers.quantizers.auto import register_quantizer
from transformers.quantizers.quantizer_bnb_4bit import Bnb4BitHfQuantizer
from transformers.quantizers.quantizer_bnb_8bit import Bnb8BitHfQuantizer
from transformers.quantizers.quantizers_utils import get_module_from_name

from worker.model.experts import QuantizedExperts
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


class _ExpertsToo:
    """What both quantizers add to the library's; mixed in before them."""

    quantization_config: Any

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.quantized_experts: dict[str, QuantizedExperts] = {}

    def param_needs_quantization(self, model: nn.Module, param_name: str, **_kwargs: Any) -> bool:
        choice: QuantizationChoice = self.quantization_config.choice
        module_name, _, leaf = param_name.rpartition(".")
        return param_name in choice.experts or (leaf == "weight" and module_name in choice.linears)

    def get_quantize_ops(self) -> ConversionOps:
        return _Quantize(self)

    def _process_model_after_weight_loading(self, model: nn.Module, **kwargs: Any) -> Any:
        for name, experts in self.quantized_experts.items():
            module, leaf = get_module_from_name(model, name)
            delattr(module, leaf)
            setattr(module, leaf, experts)
        self.quantized_experts.clear()
        return super()._process_model_after_weight_loading(model, **kwargs)  # type: ignore[misc]


@register_quantizer("stageline_nf4")
class Nf4Quantizer(_ExpertsToo, Bnb4BitHfQuantizer):
    """Quantizes to nf4."""


@register_quantizer("stageline_int8")
class Int8Quantizer(_ExpertsToo, Bnb8BitHfQuantizer):
    """Quantizes to int8."""

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


class _Quantize(ConversionOps):
    """The loader's last step for one parameter: from bfloat16 to what the module holds."""

    def __init__(self, quantizer: Any) -> None:
        self._quantizer = quantizer

    def convert(
        self,
        input_dict: dict[str, Any],
        source_patterns: list[str],
        target_patterns: list[str],
        **kwargs: Any,
    ) -> dict[str, Any]:
        """Quantize those of the named tensors that are in our choice."""
        choice: QuantizationChoice = self._quantizer.quantization_config.choice
        model = kwargs["model"]
        result: dict[str, Any] = {}
        for name in list(input_dict):
            value = input_dict.pop(name)
            value = value[0] if isinstance(value, list) else value
            if name in choice.experts:
                experts = QuantizedExperts.of(value, choice.quantization)
                self._quantizer.quantized_experts[name] = experts
                # the module takes the parameter's place when all is loaded
                result[name] = torch.empty(0, dtype=experts.dtype, device=experts.packed.device)
            elif self._quantizer.param_needs_quantization(model, name):
                module, _ = get_module_from_name(model, name)
                result[name] = _quantized_weight(value, module, choice.quantization)
            else:
                result[name] = value
        return result

    @property
    def reverse_op(self) -> ConversionOps:
        """Not there: a stage is never saved."""
        raise NotImplementedError("a quantized stage cannot be saved")


def _quantized_weight(value: torch.Tensor, module: Any, quantization: str) -> nn.Parameter:
    # Conv1D keeps its weight transposed, the modules of bitsandbytes do not
    matrix = value.T if issubclass(module.source_cls, Conv1D) else value
    if quantization == "int8":
        packed, scales = pack_int8(matrix)
        return Int8Params(packed, requires_grad=False, CB=packed, SCB=scales)
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
