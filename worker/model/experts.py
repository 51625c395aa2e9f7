"""Quantize fused mixture-of-experts weights, which the libraries leave alone."""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

import torch
from torch import nn

from worker.model.int4_groups import pack_nibbles, unpack_nibbles
from worker.model.lane_text import GROUP
from worker.model.packing import NF4_BLOCK, pack_int8, pack_nf4, unpack_int8, unpack_nf4
from worker.model.weight_only import pack_int8_rows, unpack_int8_rows

_NAMES = ("gate_up_proj", "up_proj", "down_proj")
_PACKING: Mapping[str, tuple[Any, Any]] = {
    "nf4": (pack_nf4, unpack_nf4),
    "int8": (pack_int8, unpack_int8),
    "int4-weight": (pack_nibbles, unpack_nibbles),
    "int8-weight": (pack_int8_rows, unpack_int8_rows),
}
# how many inputs share a scale, where not all of them do
_GROUPS: Mapping[str, int] = {"nf4": NF4_BLOCK, "int4-weight": GROUP}
# smaller ones are not worth a note
_WORTH_ELEMENTS = 1 << 20


class Experts(Protocol):
    """Weights `[rows, columns]`, one for each expert: a tensor of them, or a stream."""

    def __len__(self) -> int:
        """How many experts there are."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        """Give them in order."""


class ExpertStream:
    """Passes through the library's loader unread, to be quantized expert by expert.

    The loader indexes what it loads with `[...]`, converts it with `.to`, and hands it to the
    quantizer, which alone looks into it.
    """

    def __init__(self, experts: Experts) -> None:
        self._experts = experts
        self._to: dict[str, Any] = {}

    def __getitem__(self, _index: Any) -> ExpertStream:
        return self

    def to(self, **kwargs: Any) -> ExpertStream:
        """Remember device and dtype for when the experts are read."""
        self._to |= {name: value for name, value in kwargs.items() if value is not None}
        return self

    def __len__(self) -> int:
        return len(self._experts)

    def __iter__(self) -> Iterator[torch.Tensor]:
        for expert in self._experts:
            yield expert.to(**self._to)


class QuantizedExperts(nn.Module):
    """Stands where a parameter `[experts, rows, columns]` stood; `[i]` dequantizes expert i.

    The eager form of the library's experts reads its weights in no other way. One expert is
    in `dtype` at a time, the rest stays quantized.
    """

    def __init__(
        self,
        quantization: str,
        packed: torch.Tensor,
        scales: torch.Tensor,
        shape: tuple[int, ...],
        dtype: torch.dtype,
    ) -> None:
        super().__init__()
        self.register_buffer("packed", packed, persistent=False)
        self.register_buffer("scales", scales, persistent=False)
        self.packed: torch.Tensor
        self.scales: torch.Tensor
        self.shape = torch.Size(shape)
        self.dtype = dtype
        _, self._unpack = _PACKING[quantization]

    @staticmethod
    def of(experts: Experts, quantization: str) -> QuantizedExperts:
        """Quantize experts `[rows, columns]` one after the other, as they come."""
        pack, _ = _PACKING[quantization]
        for i, expert in enumerate(experts):
            pieces = pack(expert)
            if i == 0:
                shape, dtype = (len(experts), *expert.shape), expert.dtype
                packed, scales = (piece.new_empty((len(experts), *piece.shape)) for piece in pieces)
            packed[i], scales[i] = pieces
        return QuantizedExperts(quantization, packed, scales, shape, dtype)

    def __getitem__(self, expert: Any) -> torch.Tensor:
        i = int(expert)
        found: torch.Tensor = self._unpack(
            self.packed[i], self.scales[i], self.shape[1:], self.dtype
        )
        return found


def expert_parameters(
    model: nn.Module, quantization: str
) -> tuple[tuple[str, ...], tuple[tuple[str, str], ...]]:
    """Find the fused expert weights of `model`: those to quantize, those left with the reason."""
    chosen: list[str] = []
    left: list[tuple[str, str]] = []
    for path, module in model.named_modules():
        for leaf, weight in module.named_parameters(recurse=False):
            if weight.dim() != 3 or type(module).__module__.startswith("torch."):
                continue
            name = f"{path}.{leaf}"
            if leaf not in _NAMES or not _reads_one_at_a_time(type(module)):
                reason = "the model does not read them one expert at a time"
            elif weight.shape[-1] % _GROUPS.get(quantization, 1):
                reason = (
                    f"{quantization} needs input widths that are multiples of "
                    f"{_GROUPS[quantization]}"
                )
            else:
                chosen.append(name)
                continue
            if math.prod(weight.shape) >= _WORTH_ELEMENTS or leaf in _NAMES:
                left.append((name, reason))
    return tuple(chosen), tuple(left)


def _reads_one_at_a_time(kind: type[nn.Module]) -> bool:
    """Say whether the eager forward of an experts class only ever indexes its weights.

    The library's decorator, which leaves the original forward in `__wrapped__`, makes such a
    class choose among implementations; `eager` is the original.
    """
    eager = getattr(kind.forward, "__wrapped__", None)
    if eager is None or not hasattr(kind, "_apply_gate"):
        return False
    source = inspect.getsource(eager)
    return not re.search(rf"self\.({'|'.join(_NAMES)})\b(?!\[)", source)
