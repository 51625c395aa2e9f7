"""Find out whether a matrix product gives each row what it gives that row alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch

Product = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
_Key = tuple[object, ...]
# The weight a product is tried with is made as large as the true one.
_MOST_WEIGHT_BYTES = 512 << 20
_DISTINCT_COLUMNS = 64


@dataclass(frozen=True)
class RowKernels:
    """Verdicts by shape, layout and type, found out at the first meeting.

    Products of real numbers would not show it: kernels that add up in another order agree in all
    but some ten thousandth of bfloat16 results. So the numbers tried cancel each other, and what
    is left is the rounding itself, which depends on the order in nearly every result. In this way
    8192 -> 2048 is found to differ from 2 rows on (avx512_bf16), and most other shapes not to.
    """

    _verdicts: dict[_Key, bool] = field(default_factory=dict)

    def are_exact(
        self, name: str, product: Product, x: torch.Tensor, weight: torch.Tensor, row_dim: int
    ) -> bool:
        """Say whether `product(x, weight)` may take all rows of dimension `row_dim` at once.

        `x` is `[..., width]`; `weight` is `[columns, width]` for "linear", else `[width, columns]`.
        """
        key = (name, row_dim, x.shape, weight.shape, weight.stride(), x.dtype, x.device)
        if key not in self._verdicts:
            self._verdicts[key] = _is_exact(name, product, x, weight, row_dim)
        return self._verdicts[key]


def by_row(
    product: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor, row_dim: int
) -> torch.Tensor:
    """Apply `product` to each row of dimension `row_dim` alone."""
    return torch.cat([product(row) for row in x.split(1, row_dim)], row_dim)


def _is_exact(
    name: str, product: Product, x: torch.Tensor, weight: torch.Tensor, row_dim: int
) -> bool:
    if x.dtype != weight.dtype or weight.nbytes > _MOST_WEIGHT_BYTES or weight.dim() != 2:
        return False
    rows, like_weight = _tried(x, weight if name == "linear" else weight.t())
    if name != "linear":
        like_weight = like_weight.t()
    if like_weight.stride() != weight.stride():
        return False
    together = product(rows, like_weight)
    alone = by_row(lambda row: product(row, like_weight), rows, row_dim)
    return torch.equal(together, alone)


def _tried(x: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return numbers in the place of `x` and `weight` whose products cancel each other.

    `weight` is `[columns, width]`, in either order in memory, and so is what is returned. Each
    product of the first half comes again in the second, in another order and with the other sign;
    wide exponents make the sums round often.
    """
    width = x.shape[-1]
    half = width // 2
    generator = torch.Generator().manual_seed(0)

    def random(rows: int) -> torch.Tensor:
        spread = torch.randint(-6, 7, (rows, half), generator=generator)
        return torch.randn(rows, half, generator=generator) * torch.exp2(spread)

    order = torch.randperm(half, generator=generator)
    columns = len(weight)
    values, weights = random(x.numel() // width), random(min(columns, _DISTINCT_COLUMNS))
    odd = width - 2 * half
    values = torch.cat([values, values[:, order], values.new_zeros(len(values), odd)], 1)
    weights = torch.cat([weights, -weights[:, order], weights.new_zeros(len(weights), odd)], 1)
    made = weights.to(weight.device, weight.dtype).repeat(-(-columns // len(weights)), 1)[:columns]
    if not weight.is_contiguous():
        made = made.t().contiguous().t()
    return values.to(x.device, x.dtype).reshape(x.shape), made
