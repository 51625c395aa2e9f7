"""Find out whether the kernels of few rows give each row what it gets alone."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from worker.model.int4_groups import BLOCK_ROWS
from worker.model.weight_only import MOST_STEP_ROWS, WeightOnlyLinear

# of a weight's outputs; those are independent, but for how the kernel's blocks end
_TRIED_OUTPUTS = 512


def allow_rows(model: nn.Module) -> int:
    """Let the weight-only layers of `model` take as many rows at a time as is exact.

    Returns how many layers have to take them one by one.
    """
    verdicts: dict[Any, bool] = {}
    one_by_one = 0
    for module in model.modules():
        if isinstance(module, WeightOnlyLinear):
            shape = (type(module), module.out_features, module.in_features)
            if shape not in verdicts:
                verdicts[shape] = _is_exact(module)
            module.exact_rows = MOST_STEP_ROWS if verdicts[shape] else 1
            one_by_one += not verdicts[shape]
    return one_by_one


def _is_exact(module: WeightOnlyLinear) -> bool:
    """Compare with numbers that cancel each other, so that only the rounding is left.

    See `RowKernels`: each product comes twice, in another order and with the other sign.
    """
    generator = torch.Generator().manual_seed(0)
    half = module.in_features // 2
    outputs = min(module.out_features, _TRIED_OUTPUTS + module.out_features % BLOCK_ROWS)
    order = torch.randperm(half, generator=generator)
    most = module.most_level
    levels = torch.randint(-most, most + 1, (outputs, half), generator=generator)
    spread = torch.randint(-6, 7, (MOST_STEP_ROWS, half), generator=generator)
    values = torch.randn(MOST_STEP_ROWS, half, generator=generator) * torch.exp2(spread)
    x = torch.cat([values, values[:, order]], 1).to(torch.bfloat16)
    tried = module.of_levels(torch.cat([levels, -levels[:, order]], 1))
    tried.exact_rows = MOST_STEP_ROWS
    alone = torch.cat([tried(row) for row in x.split(1)])
    return all(torch.equal(tried(x[:n]), alone[:n]) for n in range(2, MOST_STEP_ROWS + 1))
