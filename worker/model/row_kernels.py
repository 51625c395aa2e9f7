"""Find out whether a matrix product gives each row what it gives that row alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import torch

# of `x`, a weight, and a bias where there is one
Product = Callable[..., torch.Tensor]
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
        self,
        name: str,
        product: Product,
        x: torch.Tensor,
        weight: torch.Tensor,
        row_dim: int,
        bias: torch.Tensor | None = None,
    ) -> bool:
        """Say whether `product(x, weight)` may take all rows of dimension `row_dim` at once.

        `x` is `[..., width]`; `weight` is `[columns, width]` for "linear", else `[width, columns]`;
        `bias`, `[columns]`, is a third argument of `product`.
        """
        plus = None if bias is None else (bias.shape, bias.dtype)
        layout = (x.shape, x.stride(), weight.shape, weight.stride(), plus)
        key = (name, row_dim, layout, x.dtype, x.device)
        if key not in self._verdicts:
            self._verdicts[key] = _is_exact(name, product, x, weight, row_dim, bias)
        return self._verdicts[key]


def by_row(
    product: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor, row_dim: int
) -> torch.Tensor:
    """Apply `product` to each row of dimension `row_dim` alone."""
    return torch.cat([product(row) for row in x.split(1, row_dim)], row_dim)


def _is_exact(
    name: str,
    product: Product,
    x: torch.Tensor,
    weight: torch.Tensor,
    row_dim: int,
    bias: torch.Tensor | None,
) -> bool:
    if x.dtype != weight.dtype or weight.nbytes > _MOST_WEIGHT_BYTES or weight.dim() != 2:
        return False
    columns_first = weight if name == "linear" else weight.t()
    if bias is not None and (bias.dtype, bias.shape) != (x.dtype, columns_first.shape[:1]):
        return False
    for made, like_weight, like_bias in trials(x, columns_first, bias is not None):
        rows = _laid_out_like(x, made)
        by = like_weight if name == "linear" else like_weight.t()
        if rows is None or by.stride() != weight.stride():
            return False
        plus = () if like_bias is None else (like_bias,)
        together = product(rows, by, *plus)
        alone = [product(row, by, *plus) for row in rows.split(1, row_dim)]
        if not torch.equal(together, torch.cat(alone, row_dim)):
            return False
    return True


def _laid_out_like(x: torch.Tensor, made: torch.Tensor) -> torch.Tensor | None:
    """Return `made` in the strides of `x`, on which it depends which ops are run."""
    if x.is_contiguous():
        return made
    rows = torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=x.device)
    if any(stride == 0 and size > 1 for size, stride in zip(x.shape, x.stride(), strict=True)):
        return None
    rows.copy_(made)
    return rows if torch.equal(rows, made) else None


def trials(
    x: torch.Tensor, weight: torch.Tensor, has_bias: bool
) -> Iterator[tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]]:
    """Give numbers in the place of `x`, `weight` and a bias that show how a product is rounded.

    `weight` is `[columns, width]`. First come those of `cancelling`, which show the order of the
    sums; of biases, zeros hide nothing of it. A bias of the size of the products shows when it is
    added. One that takes away a sum that does not cancel shows whether that sum was rounded before.
    """
    rows, like_weight = cancelling(x, weight)
    if not has_bias:
        yield rows, like_weight, None
        return
    columns = len(weight)
    yield rows, like_weight, like_weight.new_zeros(columns)
    yield rows, like_weight, like_weight[:, 0].contiguous()
    rows = rows.roll(1, -1)
    distinct = like_weight[:_DISTINCT_COLUMNS].float()
    sums = (distinct @ rows.reshape(-1, rows.shape[-1])[0].float()).to(weight.dtype)
    yield rows, like_weight, -sums.repeat(-(-columns // len(distinct)))[:columns]


def cancelling(x: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
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
