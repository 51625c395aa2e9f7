"""Watch every op of a pack: all rows at once where that is exact, row by row where it is not."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from worker.model.row_kernels import RowKernels, by_row

# Moves of numbers, integers, and what IEEE arithmetic fixes to the bit.
_EXACT = frozenset(
    """
    abs add alias all amax amin and any arange argmax broadcast_to cat ceil chunk clamp clamp_max
    clamp_min clone constant_pad_nd contiguous copy detach div dropout embedding empty empty_like eq
    equal expand expand_as flatten floor floor_divide full full_like gather ge gt index_select
    is_nonzero item le lift_fresh logical_and logical_not logical_or lt masked_fill maximum minimum
    movedim mul narrow ne neg new_empty new_full new_ones new_zeros ones ones_like or pad permute
    reciprocal relu repeat repeat_interleave reshape rsub scatter select slice split
    split_with_sizes sqrt square squeeze stack sub t to to_copy transpose tril triu type_as unbind
    unflatten unsafe_view unsqueeze view view_as zeros zeros_like
    """.split()
)
# Functions of one number: vector units and what remains at the end of a row may round apart.
_FUNCTIONS = frozenset(
    """
    celu cos elu erf exp exp2 expm1 gelu hardswish leaky_relu log log1p mish pow relu6 rsqrt sigmoid
    silu sin softplus tanh
    """.split()
)
# Functions of the last dimension.
_REDUCTIONS = frozenset(("mean", "sum", "softmax", "log_softmax", "linalg_vector_norm", "var"))
_NORMS = frozenset(("layer_norm", "native_layer_norm", "rms_norm"))
_PRODUCTS = frozenset(("linear", "mm", "addmm", "matmul", "bmm"))
# Two vectors of bfloat16, the most that torch's loops take at once, and as few numbers as
# threads share when there is but one sum to make.
_VECTOR_ELEMENTS, _SHARED_ELEMENTS = 64, 32768


class NotPackable(Exception):
    """The model does something that a pack cannot do as single positions would."""


class RowOps(TorchDispatchMode):
    """Has each op give each of `num_rows` positions what it would get alone.

    Args:
        num_rows: positions in the pack.
        kernels: which products may take all of them.

    Attributes:
        uneven: addresses of the weights whose products may not.
        rounds_apart: whether some op other than a product went row by row.

    Raises:
        NotPackable: from an op that is not known to work row by row.
    """

    def __init__(self, num_rows: int, kernels: RowKernels) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.uneven: set[int] = set()
        self.rounds_apart = False
        self._num_rows = num_rows
        self._kernels = kernels
        self._is_paused = False

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Leave the ops in the block alone: they are those of a single position."""
        before, self._is_paused = self._is_paused, True
        try:
            yield
        finally:
            self._is_paused = before

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run one op."""
        named = kwargs or {}
        if self._is_paused:
            return func(*args, **named)
        name = func.overloadpacket.__name__.strip("_")
        if func.namespace != "aten":
            raise NotPackable(f"{func}")
        if name in _PRODUCTS:
            return self._product(name, func, args, named)
        if (name in _EXACT and named.get("alpha", 1) == 1) or _is_exact(name, args):
            return func(*args, **named)
        if name in _REDUCTIONS or name in _NORMS or name in _FUNCTIONS:
            return self._rounded(name, func, args, named)
        raise NotPackable(f"op {name!r}")

    def _rows(self, values: torch.Tensor) -> int:
        """Return the dimension of the rows: of `[rows, ...]`, else the one of their number."""
        shape = values.shape
        if len(shape) > 1 and shape[0] == self._num_rows:
            return 0
        found = [i for i in (1, 2) if len(shape) > i + 1 and shape[i] == self._num_rows]
        if len(found) == 1 and shape[0] == 1:
            return found[0]
        raise NotPackable(f"{self._num_rows} rows in a tensor {list(shape)}")

    def _product(self, name: str, func: Any, args: Any, named: Any) -> torch.Tensor:
        first, second, *rest = args
        if name in ("matmul", "bmm"):
            if first.shape[-1] == 1:  # An outer product adds nothing up.
                return _tensor(func(*args, **named))
            raise NotPackable(f"op {name!r} of {list(first.shape)} and {list(second.shape)}")
        if named:
            raise NotPackable(f"op {name!r} with {sorted(named)}")
        x, weight = (second, rest[0]) if name == "addmm" else (first, second)
        bias = first if name == "addmm" else (rest or [None])[0]

        if bias is not None and bias.dim() != 1:
            raise NotPackable(f"op {name!r} that adds a tensor {list(bias.shape)}")

        def product(
            rows: torch.Tensor, by: torch.Tensor, plus: torch.Tensor | None = None
        ) -> torch.Tensor:
            if name == "addmm":
                return _tensor(func(plus, rows, by))
            return _tensor(func(rows, by) if plus is None else func(rows, by, plus))

        row_dim = self._rows(x)
        if self._kernels.are_exact(name, product, x, weight, row_dim, bias):
            return _tensor(func(*args))
        self.uneven.add(weight.data_ptr())
        return by_row(lambda row: product(row, weight, bias), x, row_dim)

    def _rounded(self, name: str, func: Any, args: Any, named: Any) -> Any:
        values, *rest = args
        width = values.shape[-1] if values.dim() else 0
        if name in _REDUCTIONS and not _is_last(name, values, rest, named):
            raise NotPackable(f"op {name!r} over another dimension than the last")
        if width % _VECTOR_ELEMENTS == 0 and width < _SHARED_ELEMENTS:
            return func(*args, **named)
        others = [extra for extra in rest if isinstance(extra, torch.Tensor) and extra.dim() > 1]
        if others or func.overloadpacket.__name__.endswith("_"):
            raise NotPackable(f"op {name!r} on rows of {width}")
        self.rounds_apart = True
        return by_row(lambda row: _tensor(func(row, *rest, **named)), values, self._rows(values))


def _is_exact(name: str, args: Any) -> bool:
    """Say whether an op is exact with just these arguments."""
    if name == "where":  # With a condition alone it finds places, more or fewer with the data.
        return len(args) == 3
    if name == "rsqrt":  # A root and a quotient; of shorter types it is rounded in other places.
        return bool(args[0].dtype is torch.float32)
    if name == "topk":
        return bool(args[0].dim() > 1)
    if name in ("cumsum", "diff"):
        return not args[0].is_floating_point()
    if name in ("index", "index_put"):
        return all(index is None or index.dtype != torch.bool for index in args[1])
    return False


def _is_last(name: str, values: torch.Tensor, rest: list[Any], named: Any) -> bool:
    place = 1 if name == "linalg_vector_norm" else 0
    dim = named.get("dim", rest[place] if len(rest) > place else None)
    (dim,) = dim if isinstance(dim, (list, tuple)) and len(dim) == 1 else (dim,)
    return dim in (-1, values.dim() - 1)


def _tensor(value: Any) -> torch.Tensor:
    if not isinstance(value, torch.Tensor):
        raise NotPackable(f"an op that gives a {type(value).__name__}")
    return value
