"""Have the library's loader quantize weights alone."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from transformers.pytorch_utils import Conv1D
from transformers.quantizers.auto import register_quantizer
from transformers.quantizers.base import HfQuantizer
from transformers.utils.quantization_config import QuantizationConfigMixin

from worker.model.choice_quantizer import ChoiceQuantizer
from worker.model.quantization_choice import QuantizationChoice
from worker.model.quantize import linear_shape
from worker.model.weight_only import Int4Linear, Int8Linear, WeightOnlyLinear


class _ChoiceConfig(QuantizationConfigMixin):
    """Carries our choice, under a method name of its own."""

    def __init__(self, choice: QuantizationChoice) -> None:
        super().__init__(quant_method=_METHOD)
        self.choice = choice


_METHOD: Any = "stageline_weight_only"


def weight_only_config(choice: QuantizationChoice) -> QuantizationConfigMixin:
    """Return what makes `from_pretrained` quantize the parts in `choice` while it loads."""
    return _ChoiceConfig(choice)


@register_quantizer("stageline_weight_only")
class WeightOnlyQuantizer(ChoiceQuantizer, HfQuantizer):
    """Puts layers of packed weights in the place of the chosen linear layers."""

    requires_calibration = False

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._scales: dict[WeightOnlyLinear, torch.Tensor] = {}
        self._transposed: set[WeightOnlyLinear] = set()

    def _process_model_before_weight_loading(self, model: Any, **_kwargs: Any) -> None:
        choice: QuantizationChoice = self.quantization_config.choice
        kind = Int8Linear if choice.quantization == "int8-weight" else Int4Linear
        for name in choice.linears:
            linear: Any = model.get_submodule(name)
            rows, columns = linear_shape(linear)
            made = kind(rows, columns, linear.bias)
            if isinstance(linear, Conv1D):
                self._transposed.add(made)
            model.set_submodule(name, made)

    def quantized_weight(self, value: torch.Tensor, module: WeightOnlyLinear) -> nn.Parameter:
        """Pack it; the scales wait until the loader no longer touches buffers."""
        matrix = value.T if module in self._transposed else value
        packed, self._scales[module] = module.quantize(matrix)
        return nn.Parameter(packed, requires_grad=False)

    def _process_model_after_weight_loading(self, model: nn.Module, **kwargs: Any) -> Any:
        for module, scales in self._scales.items():
            module.hold(module.weight, scales)
        self._scales.clear()
        return super()._process_model_after_weight_loading(model, **kwargs)

    def is_serializable(self, *_args: Any, **_kwargs: Any) -> bool:
        """Say that a stage is never saved."""
        return False

    @property
    def is_trainable(self) -> bool:
        """Say that a stage is never trained."""
        return False
