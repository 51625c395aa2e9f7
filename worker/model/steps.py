"""Work on many positions as forwards of one position each would, bit for bit, and faster."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from worker.model import internals
from worker.model.interfaces import Interfaces
from worker.model.kv import StageCache
from worker.model.loaded import LoadedStage
from worker.model.row_kernels import RowKernels
from worker.model.row_ops import NotPackable
from worker.model.row_pack import RowPack
from worker.model.run import StageRunner

# More rows are hardly faster, and the kernels of more than 32 differ from those of one.
PACK_SIZES = (16, 8, 4)
# Tables that do not depend on how long the sequence is.
_STEADY_ROTARY = frozenset(("default", "linear", "llama3", "yarn", "proportional"))


class StepRunner:
    """Runs positions in packs, in sizes whose kernels give each row what it gets alone.

    That is found out once for each size, when it is first of use: the rows are then worked on
    both ways, and every bit of what comes out and of what was cached is compared.
    """

    def __init__(self, runner: StageRunner) -> None:
        self._runner = runner
        self._interfaces = Interfaces.of(runner.loaded.model)
        self._kernels = RowKernels()
        sizes = PACK_SIZES if _may_pack(runner.loaded, self._interfaces) else ()
        self._exact: dict[int, bool | None] = dict.fromkeys(sizes)

    @property
    def exact(self) -> dict[int, bool | None]:
        """Which pack sizes were found to be exact; None: not known yet."""
        return dict(self._exact)

    @torch.inference_mode()
    def forward(
        self, x: torch.Tensor, cache: StageCache, *, tokens: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Append the positions of `x` to `cache`, each as one `StageRunner.forward` would.

        `x` and `tokens` are as there, with a batch of one. Returns the hidden states after the
        last own layer, `[1, seq, width]` in the wire dtype.

        Raises:
            Exception: as `StageRunner.forward`; the cache may hold some of the positions then.
        """
        outputs = []
        done, total = 0, x.shape[1]
        while done < total:
            size = self._size(cache, total - done)
            rows = slice(done, done + size)
            ids = None if tokens is None else tokens[:, rows]
            outputs.append(self._rows(x[:, rows], cache, ids))
            done += size
        return torch.cat(outputs, 1)

    def _size(self, cache: StageCache, left: int) -> int:
        # models treat an empty cache in ways of their own
        sizes = self._exact if cache.seen else ()
        return next((n for n in sizes if n <= left and self._exact[n] is not False), 1)

    def _rows(
        self, x: torch.Tensor, cache: StageCache, tokens: torch.Tensor | None
    ) -> torch.Tensor:
        size = x.shape[1]
        if size == 1:
            return self._runner.forward(x, cache, tokens=tokens)
        if self._exact[size] is None:
            return self._compared(x, cache, tokens)
        try:
            return self._packed(x, cache, tokens)
        except NotPackable:
            self._exact[size] = False
            return self._one_by_one(x, cache, tokens)

    def _packed(
        self, x: torch.Tensor, cache: StageCache, tokens: torch.Tensor | None
    ) -> torch.Tensor:
        """Run one pack, or leave the cache as it was."""
        pack = RowPack(self._interfaces, self._kernels, cache, x.shape[1])
        before = cache.snapshot(cache.seen)
        try:
            with pack.running():
                return self._runner.forward(x, cache, tokens=tokens)
        except BaseException:
            cache.restore(before)
            raise

    def _one_by_one(
        self, x: torch.Tensor, cache: StageCache, tokens: torch.Tensor | None
    ) -> torch.Tensor:
        outputs = []
        for i in range(x.shape[1]):
            ids = None if tokens is None else tokens[:, i : i + 1]
            outputs.append(self._runner.forward(x[:, i : i + 1], cache, tokens=ids))
        return torch.cat(outputs, 1)

    def _compared(
        self, x: torch.Tensor, cache: StageCache, tokens: torch.Tensor | None
    ) -> torch.Tensor:
        """Work both ways, remember whether they agree, and give what is right in any case."""
        size, start = x.shape[1], cache.seen
        before = cache.snapshot(start)
        outputs = self._one_by_one(x, cache, tokens)
        after = cache.snapshot(start)
        written = [rows.clone() for rows in _newest(cache, size)]
        cache.restore(before)
        try:
            packed = self._packed(x, cache, tokens)
            self._exact[size] = _same([outputs, *written], [packed, *_newest(cache, size)])
        except Exception:  # noqa: BLE001 - whatever a model does in a pack, it can do without
            self._exact[size] = False
        cache.restore(after)
        return outputs


def _may_pack(loaded: LoadedStage, interfaces: Interfaces) -> bool:
    """Leave out what one comparison could not judge.

    int8 kernels look for outliers in all rows at once, and some rotary tables grow with the
    longest position: rows then depend on each other, but only with some data or far on.
    """
    quantized = internals.declared_quantization(loaded.architecture.config)
    return (
        interfaces.attention in ("sdpa", "eager")
        and loaded.options.quantization != "int8"
        and quantized is None
        and _STEADY_ROTARY.issuperset(_rotary_types(loaded.model))
    )


def _rotary_types(model: nn.Module) -> Iterator[str]:
    for module in model.modules():
        named: Any = getattr(module, "rope_type", "default")
        yield from map(str, named.values() if isinstance(named, dict) else (named,))


def _newest(cache: StageCache, count: int) -> list[torch.Tensor]:
    """Return the keys and values of the last `count` positions, of layers that have such."""
    layers: list[Any] = [cache.layers[i] for i in cache.own_layers]
    states = [getattr(layer, name, None) for layer in layers for name in ("keys", "values")]
    return [state[..., -count:, :] for state in states if state is not None]


def _same(left: list[torch.Tensor], right: list[torch.Tensor]) -> bool:
    """Compare bit by bit, also what is not a number."""
    return len(left) == len(right) and all(
        a.shape == b.shape and a.dtype == b.dtype and torch.equal(_bits(a), _bits(b))
        for a, b in zip(left, right, strict=True)
    )


def _bits(values: torch.Tensor) -> torch.Tensor:
    return values.contiguous().view(torch.uint8)
