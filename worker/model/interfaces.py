"""Put functions of our own in the place of a model's attention, masks and experts, for a while.

Like `internals`, this leans on what transformers does not promise to keep.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from transformers import PretrainedConfig
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS
from transformers.integrations.sdpa_attention import use_gqa_in_sdpa
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

_NAME = "stageline_rows"
_CHOSEN = ("_attn_implementation_internal", "_experts_implementation_internal")
_REGISTRIES = (ALL_ATTENTION_FUNCTIONS, ALL_MASK_ATTENTION_FUNCTIONS, ALL_EXPERTS_FUNCTIONS)


def shares_heads(keys: torch.Tensor, values: torch.Tensor) -> bool:
    """Say whether `sdpa` attention without a mask has several query heads read one key head."""
    return bool(use_gqa_in_sdpa(None, keys, values))


@contextmanager
def sdpa_replaced(attend: Callable[..., Any]) -> Iterator[None]:
    """Have models that use `sdpa` attention call `attend` in the block; masks are as ever."""
    ALL_ATTENTION_FUNCTIONS["sdpa"] = attend  # over the library's table, which stays as it is
    try:
        yield
    finally:
        del ALL_ATTENTION_FUNCTIONS["sdpa"]


@dataclass(frozen=True)
class Interfaces:
    """What a model calls through the library's interfaces.

    Attributes:
        attention: name of its attention implementation.
        experts: name of its experts implementation; None where it has none.
        configs: every config that one of its modules asks for these names.
    """

    attention: str
    experts: str | None
    configs: tuple[PretrainedConfig, ...]

    @staticmethod
    def of(model: nn.Module) -> Interfaces:
        """Collect them from the model's modules."""
        found = [getattr(module, "config", None) for module in model.modules()]
        by_id = {id(config): config for config in found if isinstance(config, PretrainedConfig)}
        config: Any = model.config
        return Interfaces(
            str(config._attn_implementation),
            config._experts_implementation,
            tuple(by_id.values()),
        )

    def mask_function(self) -> Callable[..., Any]:
        """Return what makes the model's attention masks."""
        made: Callable[..., Any] = ALL_MASK_ATTENTION_FUNCTIONS[self.attention]
        return made

    def attention_function(self, module: nn.Module) -> Callable[..., Any]:
        """Return what an attention module calls; eager attention is of the model's own file."""
        if self.attention == "eager":
            file = sys.modules[type(module).__module__]
            own: Callable[..., Any] = vars(file)["eager_attention_forward"]
            return own
        shared: Callable[..., Any] = ALL_ATTENTION_FUNCTIONS[self.attention]
        return shared

    def experts_function(self, module: nn.Module) -> Callable[..., Any]:
        """Return what an experts module calls; the eager way is the forward of its own class."""
        # the library's decorator keeps that forward under this name
        own: Callable[..., Any] = vars(type(module).forward)["__wrapped__"]
        found: Callable[..., Any] = ALL_EXPERTS_FUNCTIONS.get(self.experts, own)
        return found

    @contextmanager
    def replaced(
        self,
        attention: Callable[..., Any],
        mask: Callable[..., Any],
        experts: Callable[..., Any],
    ) -> Iterator[None]:
        """Have the model call these in the block; the library's tables are left as they were."""
        for registry, function in zip(_REGISTRIES, (attention, mask, experts), strict=True):
            type(registry).register(_NAME, function)
        # past the setters, which check the names and write into other configs too
        before = [{name: vars(config).get(name) for name in _CHOSEN} for config in self.configs]
        try:
            for config in self.configs:
                vars(config).update(dict.fromkeys(_CHOSEN, _NAME))
            yield
        finally:
            for config, names in zip(self.configs, before, strict=True):
                vars(config).update(names)
            for registry in _REGISTRIES:
                del type(registry)._global_mapping[_NAME]
