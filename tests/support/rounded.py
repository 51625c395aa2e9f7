"""Linear layers with rounded weights by the rule of docs/quantization.md, in plain torch."""

from __future__ import annotations

import torch
from torch import nn

# Of more rows, as of a prompt, the products are others.
MOST_STEP_ROWS = 16


class Rounded(nn.Module):
    """A linear layer with rounded weights, by the rule of docs/quantization.md in plain torch.

    `levels` are `[outputs, groups, 32]`. Whole numbers are exact as float64, and so is what is
    rounded to float32 after each product and sum; rounded twice, it would differ once in 2**29.
    """

    def __init__(self, levels: torch.Tensor, bias: torch.Tensor | None) -> None:
        super().__init__()
        self.levels, self.bias = levels.double(), bias

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        assert x[..., 0].numel() <= MOST_STEP_ROWS
        groups = x.reshape(-1, x.shape[-1] // 32, 32)
        largest = groups.abs().float().amax(-1, keepdim=True).clamp(min=2.0**-113)
        power = torch.ldexp(torch.ones_like(largest), largest.frexp().exponent - 14)
        whole = (groups / power).round().double()
        products = torch.einsum("rgi,ogi->gro", whole, self.levels).float()
        out = self.summed(products, power.transpose(0, 1), whole.sum(-1).T[..., None].float())
        out = out.bfloat16() if self.bias is None else out.bfloat16() + self.bias
        return out.reshape(*x.shape[:-1], -1)

    def summed(
        self, products: torch.Tensor, powers: torch.Tensor, sums: torch.Tensor
    ) -> torch.Tensor:
        raise NotImplementedError


class Int8(Rounded):
    """8 bits, with one scale for each output."""

    def __init__(self, linear: nn.Linear) -> None:
        weight = linear.weight.detach().float()
        self_scales = (weight.abs().amax(1) / 127).bfloat16().float()
        levels = torch.round(weight / self_scales[:, None]).clamp(-127, 127)
        super().__init__(levels.view(len(weight), -1, 32), linear.bias)
        self.scales, self.weights = self_scales, levels * self_scales[:, None]

    def summed(
        self, products: torch.Tensor, powers: torch.Tensor, sums: torch.Tensor
    ) -> torch.Tensor:
        out = torch.zeros_like(products[0])
        for product, power in zip(products, powers, strict=True):
            out = out + product * power
        return out * self.scales


class Int4(Rounded):
    """4 bits in groups of 32 that reach from the least to the greatest weight."""

    def __init__(self, linear: nn.Linear) -> None:
        weight = linear.weight.detach().float().view(len(linear.weight), -1, 32)
        least, most = weight.min(-1, True).values, weight.max(-1, True).values
        scale = ((most - least) / 15).clamp(min=torch.finfo(torch.bfloat16).tiny).bfloat16()
        middle = (least + 8 * scale.float()).bfloat16()
        levels = torch.round((weight - middle.float()) / scale.float() + 8).clamp(0, 15) - 8
        super().__init__(levels, linear.bias)
        self.scales, self.middles = scale.squeeze(-1).T.double(), middle.squeeze(-1).T.double()
        self.weights = (levels * scale.float() + middle.float()).view(linear.weight.shape)

    def summed(
        self, products: torch.Tensor, powers: torch.Tensor, sums: torch.Tensor
    ) -> torch.Tensor:
        out = torch.zeros_like(products[0])
        scaled = (products * powers).double()
        totals = (sums * powers).double()
        for i in range(len(products)):
            out = (self.middles[i] * totals[i] + out.double()).float()
            out = (self.scales[i] * scaled[i] + out.double()).float()
        return out
