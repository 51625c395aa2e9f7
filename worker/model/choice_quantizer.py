"""What our quantizers have in common: they quantize just what was chosen, as it streams in."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from transformers.core_model_loading import ConversionOps
from transformers.quantizers.quantizers_utils import get_module_from_name

from worker.model.experts import QuantizedExperts
from worker.model.quantization_choice import QuantizationChoice


class ChoiceQuantizer:
    """Mixed in before a quantizer of the library, whose config carries our choice."""

    quantization_config: Any

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.quantized_experts: dict[str, QuantizedExperts] = {}

    def param_needs_quantization(self, model: nn.Module, param_name: str, **_kwargs: Any) -> bool:
        """Say whether a parameter is in our choice."""
        choice: QuantizationChoice = self.quantization_config.choice
        module_name, _, leaf = param_name.rpartition(".")
        return param_name in choice.experts or (leaf == "weight" and module_name in choice.linears)

    def quantized_weight(self, value: torch.Tensor, module: Any) -> nn.Parameter:
        """Quantize the stored weight of a chosen linear, whose place `module` has taken."""
        raise NotImplementedError

    def get_quantize_ops(self) -> ConversionOps:
        """Return the loader's last step."""
        return _Quantize(self)

    def _process_model_after_weight_loading(self, model: nn.Module, **kwargs: Any) -> Any:
        for name, experts in self.quantized_experts.items():
            module, leaf = get_module_from_name(model, name)
            delattr(module, leaf)
            setattr(module, leaf, experts)
        self.quantized_experts.clear()
        return super()._process_model_after_weight_loading(model, **kwargs)  # type: ignore[misc]


class _Quantize(ConversionOps):
    """The loader's last step for one parameter: from bfloat16 to what the module holds."""

    def __init__(self, quantizer: ChoiceQuantizer) -> None:
        self._quantizer = quantizer

    def convert(
        self,
        input_dict: dict[str, Any],
        source_patterns: list[str],
        target_patterns: list[str],
        **kwargs: Any,
    ) -> dict[str, Any]:
        """Quantize those of the named tensors that are in our choice."""
        quantizer = self._quantizer
        choice: QuantizationChoice = quantizer.quantization_config.choice
        model = kwargs["model"]
        result: dict[str, Any] = {}
        for name in list(input_dict):
            value = input_dict.pop(name)
            value = value[0] if isinstance(value, list) else value
            if name in choice.experts:
                experts = QuantizedExperts.of(value, choice.quantization)
                quantizer.quantized_experts[name] = experts
                # the module takes the parameter's place when all is loaded
                result[name] = torch.empty(0, dtype=experts.dtype, device=experts.packed.device)
            elif quantizer.param_needs_quantization(model, name):
                module, _ = get_module_from_name(model, name)
                result[name] = quantizer.quantized_weight(value, module)
            else:
                result[name] = value
        return result

    @property
    def reverse_op(self) -> ConversionOps:
        """Not there: a stage is never saved."""
        raise NotImplementedError("a quantized stage cannot be saved")
