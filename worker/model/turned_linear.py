"""Multiply a few rows by a bfloat16 weight on a CPU as fast as memory gives the weight.

`rows @ weight.T` has oneDNN bring the weight into an order of its own at every call, which at one
row takes longer than the product. Turned round, `weight @ rows.T`, the weight is taken as it lies
in memory, a mapped file included, and only the rows are brought into another order. Nothing is
packed or copied at load, and the bits are those of the kernels that stock torch has for 2 to 32
rows: in the 23 shapes tried on avx512_bf16 and AMX, 1 and 2 threads. Those kernels give one row
the same bits too, while stock torch takes another one for a single row of more than some 4096
numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeGuard, cast

import torch
from torch import nn
from torch.nn import functional

from worker.model.row_kernels import trials
from worker.model.wide_products import WideProducts
from worker.remembered import NOTHING, Remembered

# The kernels of more rows than this add up in another order.
MOST_ROWS = 32
# So many rows are taken at once, the last ones zeros where there are fewer: oneDNN makes code for
# each number of rows, which takes milliseconds and some 0.7 MB that stay.
_SIZES = (2, 4, 8, 16, MOST_ROWS)
# Which rows are tried alone by stock torch, and how many together: code for all 32 numbers of rows
# would stay with each shape.
_TRIED_ROWS = (0, 1, 15, 31)
_STOCK_COUNTS = (2, 15, MOST_ROWS)
# The weight of a trial is cut to so many outputs: the order of a sum depends on the inputs.
_MOST_TRIED_BYTES = 16 << 20
_OUTPUT_BLOCK = 64


class TurnedLinear(nn.Linear):
    """An `nn.Linear` whose up to 32 rows get what one row gets alone, bit for bit.

    Made by giving an `nn.Linear` this class: parameters, ties and names stay. More rows, and rows
    turned round in memory, take the way of `nn.Linear`.

    Attributes:
        exact_rows: how many rows get what each gets alone; `RowModules` asks for it.
        wide: products of more rows, where there are such.
    """

    exact_rows = MOST_ROWS
    wide: WideProducts | None = None

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Return `[..., out_features]` for `[..., in_features]`."""
        return turned_linear(input, self.weight, self.bias, self.wide)


def turned_linear(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    wide: WideProducts | None = None,
) -> torch.Tensor:
    """Return what `functional.linear` does, with the kernels of `TurnedLinear`."""
    width = x.shape[-1]
    rows = x.numel() // width
    if wide is not None and rows > MOST_ROWS and bias is None and x.is_contiguous():
        many = wide.multiply(x.view(rows, width), weight)
        if many is not None:
            return many.view(*x.shape[:-1], -1)
    # rows whose numbers lie apart are added up in another order by stock torch
    if not 1 <= rows <= MOST_ROWS or (rows > 1 and x.stride(-1) != 1):
        return functional.linear(x, weight, bias)
    within = bias if _adds_bias_within(x, rows) else None
    flat = x.reshape(rows, width).contiguous()
    out = _one(flat[0], weight, within) if rows == 1 else _several(flat, weight, within)
    if bias is not None and within is None:
        out = out.add_(bias)
    return out.view(*x.shape[:-1], -1)


def _adds_bias_within(x: torch.Tensor, rows: int) -> bool:
    """Say whether stock torch adds a bias before a sum is rounded, and not to what was rounded.

    It does where it need not copy `x` to see it as a matrix (`at::linear`).
    """
    return rows == 1 or x.dim() <= 2 or x.is_contiguous()


def _one(row: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    return torch.mv(weight, row) if bias is None else torch.addmv(bias, weight, row)


def _several(rows: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    count = len(rows)
    size = next(size for size in _SIZES if size >= count)
    filled = functional.pad(rows, (0, 0, 0, size - count)) if size > count else rows
    columns = filled.t()
    if bias is None:
        many = torch.mm(weight, columns)
    else:
        many = torch.addmm(bias[:, None], weight, columns)
    return many.t()[:count].contiguous()


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a trial showed of one shape.

    Attributes:
        is_exact: whether each of up to 32 rows gets the bits it gets alone, and for 2 to 32 rows
            those of stock torch.
        is_stock: whether one row gets those of stock torch too.
    """

    is_exact: bool
    is_stock: bool = False


@dataclass(frozen=True, slots=True)
class Turned:
    """What `turn_linears` did.

    Attributes:
        count: linears that were turned.
        apart: those of them whose single row gets the bits of one of several.
        left: linears of the right kind that were not turned.
    """

    count: int
    apart: int
    left: int

    @property
    def notes(self) -> tuple[str, ...]:
        """What a user should know, one sentence each."""
        note = (
            f"{self.left} of {self.count + self.left} linears keep torch's own kernels: here the "
            "faster ones would give a row other bits alone than among others."
        )
        return (note,) if self.left else ()

    @property
    def numerics(self) -> dict[str, str]:
        """What decides the bits, for the ready line."""
        if not self.apart:
            return {}
        return {"one_row": f"in {self.apart} linears as one of several"}


@torch.inference_mode()
def turn_linears(
    model: nn.Module, remembered: Remembered = NOTHING, wide: WideProducts | None = None
) -> Turned:
    """Turn every plain bfloat16 linear of `model` on a CPU whose shape passes a trial.

    A trial takes some ten milliseconds, once for each shape that is not remembered. Products of
    more rows are left to `wide`.
    """
    verdicts: dict[tuple[object, ...], Verdict] = {}
    found: list[Verdict] = []
    for module in model.modules():
        if not _may_turn(module):
            continue
        weight, bias = module.weight, module.bias
        shape = (weight.shape, bias is None)
        if shape not in verdicts:
            verdicts[shape] = _known_verdict(weight, bias is not None, remembered)
        found.append(verdicts[shape])
        if found[-1].is_exact:
            module.__class__ = TurnedLinear
            cast(TurnedLinear, module).wide = wide
    turned = [verdict for verdict in found if verdict.is_exact]
    apart = sum(not verdict.is_stock for verdict in turned)
    return Turned(len(turned), apart, len(found) - len(turned))


def _may_turn(module: nn.Module) -> TypeGuard[nn.Linear]:
    if type(module) is not nn.Linear:
        return False
    weight = module.weight
    return (
        weight.device.type == "cpu"
        and weight.dtype is torch.bfloat16
        and weight.is_contiguous()
        and (module.bias is None or module.bias.dtype is torch.bfloat16)
        and torch.backends.mkldnn.is_available()
        and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    )


def _known_verdict(weight: torch.Tensor, has_bias: bool, remembered: Remembered) -> Verdict:
    tried = [*weight.shape, has_bias]
    kept = remembered.get("turned-linear", tried)
    if isinstance(kept, list) and list(map(type, kept)) == [bool, bool]:
        return Verdict(*kept)
    found = verdict_on(weight, has_bias=has_bias)
    remembered.put("turned-linear", tried, [found.is_exact, found.is_stock])
    return found


def verdict_on(weight: torch.Tensor, *, has_bias: bool) -> Verdict:
    """Try linears of the shape of `weight`, on numbers that show how sums are rounded."""
    outputs, width = weight.shape
    fitting = max(_MOST_TRIED_BYTES // (width * 2) // _OUTPUT_BLOCK, 1) * _OUTPUT_BLOCK
    tried = weight.new_empty(min(outputs, fitting + outputs % _OUTPUT_BLOCK), width)
    is_stock = True
    for rows, like_weight, bias in trials(weight.new_empty(MOST_ROWS, width), tried, has_bias):
        alone = [turned_linear(row, like_weight, bias) for row in rows.split(1)]
        wanted = torch.cat(alone)
        for count in _SIZES:
            if not torch.equal(turned_linear(rows[:count], like_weight, bias), wanted[:count]):
                return Verdict(False)
        for count in _STOCK_COUNTS:
            stock = functional.linear(rows[:count], like_weight, bias)
            if not torch.equal(stock, turned_linear(rows[:count], like_weight, bias)):
                return Verdict(False)
        if not _is_stock_on_slices(rows, like_weight, bias):
            return Verdict(False)
        is_stock &= all(
            torch.equal(alone[row], functional.linear(rows[row : row + 1], like_weight, bias))
            for row in _TRIED_ROWS
        )
    return Verdict(True, is_stock)


def _is_stock_on_slices(
    rows: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
) -> bool:
    """Compare rows that are a slice of a larger tensor, for which stock torch has other ops.

    Those take some 15 ns for each number of the weight and each row: so a few outputs alone.
    """
    count = _STOCK_COUNTS[0]
    larger = rows.new_zeros(count, 2, rows.shape[1])
    larger[:, 1] = rows[:count]
    x = larger[:, 1:]
    few = slice(_OUTPUT_BLOCK)
    stock = functional.linear(x, weight[few], None if bias is None else bias[few])
    return torch.equal(stock, turned_linear(x, weight, bias)[..., few])
