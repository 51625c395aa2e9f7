"""Modules that take rows in their own way do so in a pack, and as ever after it."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from worker.model.row_kernels import RowKernels
from worker.model.row_modules import RowModules
from worker.model.row_ops import NotPackable, RowOps

ROWS = 4
torch.set_num_threads(1)


class Sorting(nn.Module):
    """A part whose op no pack lets through; it counts the rows of each call."""

    def __init__(self, exact_rows: int | None) -> None:
        super().__init__()
        self.exact_rows = exact_rows
        self.seen: list[int] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Sort each row."""
        self.seen.append(x.shape[1])
        return x.sort(-1)[0]


def run(module: nn.Module, uneven: list[nn.Module]) -> torch.Tensor:
    ops = RowOps(ROWS, RowKernels())
    x = torch.randn(1, ROWS, 8, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode(), RowModules(module).minded(ROWS, uneven, ops), ops:
        output: torch.Tensor = module(x)
    assert torch.equal(output, x.sort(-1)[0])
    assert "forward" not in vars(module)
    return output


@pytest.mark.parametrize(("exact_rows", "seen"), [(8, [4]), (4, [4]), (3, [1] * 4), (1, [1] * 4)])
def test_a_module_with_a_law_of_its_own_is_trusted_as_far_as_it_goes(
    exact_rows: int, seen: list[int]
) -> None:
    module = Sorting(exact_rows)
    run(module, [])
    assert module.seen == seen


def test_a_module_without_one_is_watched() -> None:
    with pytest.raises(NotPackable):
        run(Sorting(None), [])


def test_uneven_modules_go_row_by_row() -> None:
    linear = nn.Linear(8, 8)
    modules = RowModules(linear)
    assert modules.of([linear.weight.data_ptr()]) == [linear]
    assert modules.of([0]) is None
    seen = []
    linear.register_forward_pre_hook(lambda _module, args: seen.append(args[0].shape))
    x = torch.randn(1, ROWS, 8)
    with torch.inference_mode(), modules.minded(ROWS, [linear], None):
        output = linear(x)
    assert output.shape == (1, ROWS, 8)
    assert "forward" not in vars(linear)


def test_rows_that_lie_apart_go_row_by_row_then_and_later() -> None:
    class Lawful(nn.Linear):
        exact_rows = ROWS
        seen: tuple[int, ...] = ()

        def forward(self, input: torch.Tensor) -> torch.Tensor:
            self.seen += (input.shape[1],)
            return super().forward(input)

    module, ops = Lawful(8, 8), RowOps(ROWS, RowKernels())
    modules = RowModules(module)
    x = torch.randn(1, ROWS, 16)[..., :8]
    with torch.inference_mode(), modules.minded(ROWS, [], ops), ops:
        module(x)
    with torch.inference_mode(), modules.minded(ROWS, modules.of(ops.uneven) or [], None):
        module(x)
    assert module.seen == (1,) * ROWS * 2
