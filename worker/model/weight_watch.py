"""See which linear layers a model uses otherwise than by calling them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torch import nn
from torch.overrides import TorchFunctionMode
from transformers.pytorch_utils import Conv1D

from worker.model.dry_run import forward, meta_runner
from worker.model.plan import StagePlan
from worker.model.thinning import thinned

# attributes whose reading gives a tensor; reading the others (dtype, shape) does not use a weight
_TENSOR_ATTRIBUTES = ("T", "mT", "H", "mH", "data")
# methods that ask about a tensor: `model.dtype` asks its first parameter, whichever that is
_QUESTIONS = (
    *("is_floating_point", "is_complex", "is_contiguous", "element_size"),
    *("size", "dim", "numel", "nelement", "stride", "get_device", "__len__"),
)


def direct_weight_uses(plan: StagePlan) -> frozenset[str]:
    """Name the linear modules whose weight is used outside their own forward.

    Some recurrent layers multiply with `self.dt_proj.weight` themselves, which must then stay
    what it is. What a layer does depends on the layer alone, so every cut gives the same names.
    """
    with thinned(plan) as thin:
        found = _uses(thin.plan)
    if found is None and thin.twins:
        # a layer may read what another one wrote to the cache
        found = _uses(plan)
    # in part traced, the answer would depend on the cut
    used = set(found or ())
    prefix = f"{plan.sliced.parts.layers}."
    for i, like in thin.twins.items():
        start = f"{prefix}{like}."
        used |= {f"{prefix}{i}.{n.removeprefix(start)}" for n in used if n.startswith(start)}
    return frozenset(used)


def _uses(plan: StagePlan) -> set[str] | None:
    """None where the model cannot be run on the meta device."""
    runner = meta_runner(plan)
    linears = {name: m for name, m in plan.model.named_modules() if is_linear(m)}
    try:
        with _weight_watch(linears) as watch:
            # with a cache, as in service; without one, mask code looks into meta tensors
            forward(runner, runner.new_cache(), 3)
    except Exception:  # noqa: BLE001 - as in dry_run
        return None
    return watch.found


def is_linear(module: nn.Module) -> bool:
    """Say whether bitsandbytes can take the place of `module`."""
    return type(module) is nn.Linear or isinstance(module, Conv1D)


class _WeightWatch(TorchFunctionMode):
    """Notes which watched weights are arguments of a function outside their own module."""

    def __init__(self, owners: dict[int, str]) -> None:
        super().__init__()
        self._owners = owners
        self.running: set[str] = set()
        self.found: set[str] = set()

    def __torch_function__(
        self,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if not _only_asks(func):
            for value in (*args, *(kwargs or {}).values()):
                owner = self._owners.get(id(value))
                if owner is not None and owner not in self.running:
                    self.found.add(owner)
        return func(*args, **(kwargs or {}))


@contextmanager
def _weight_watch(linears: dict[str, nn.Module]) -> Iterator[_WeightWatch]:
    watch = _WeightWatch({id(module.weight): name for name, module in linears.items()})
    handles = []
    for name, module in linears.items():
        handles.append(module.register_forward_pre_hook(_entering(watch, name)))
        handles.append(module.register_forward_hook(_leaving(watch, name)))
    try:
        with watch:
            yield watch
    finally:
        for handle in handles:
            handle.remove()


def _entering(watch: _WeightWatch, name: str) -> Any:
    return lambda _module, _args: watch.running.add(name)


def _leaving(watch: _WeightWatch, name: str) -> Any:
    return lambda _module, _args, _output: watch.running.discard(name)


def _only_asks(func: Any) -> bool:
    name = getattr(func, "__name__", None)
    if name == "__get__":
        return getattr(getattr(func, "__self__", None), "__name__", None) not in _TENSOR_ATTRIBUTES
    return name in _QUESTIONS
