"""Stand in for a module that another stage holds."""

from __future__ import annotations

from typing import Any

from torch import nn


class Ghost(nn.Module):
    """Stand where another stage's module stood: no parameters, a result nobody uses.

    The model's own forward loop runs over all layers; on a stage, foreign layers are ghosts.
    The result `(x,)` suits both `h = layer(h)` and `h = layer(h)[0]`; `arity` widens it for
    loops that unpack more. Attributes that loops read off their layers (`attention_type`,
    `block_type`, ...) are answered by the original module on the meta device, which is kept
    outside `_modules`, so that state_dict, quantizers and initialisation do not see it.
    """

    arity: int

    def __init__(self, original: nn.Module | None = None) -> None:
        super().__init__()
        object.__setattr__(self, "_original", (original,))
        self.arity = 1
        # transformers initialises every module without this mark
        self._is_hf_initialized = True

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            original = self.__dict__.get("_original", (None,))[0]
            if original is None or name.startswith("__"):
                raise
            return getattr(original, name)

    def forward(self, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Return the input `arity` times."""
        value = args[0] if args else kwargs.get("hidden_states")
        while isinstance(value, tuple):
            value = value[0]
        return (value,) * self.arity


class Relay(nn.Module):
    """Answer as the last layer would have answered, with a hidden state computed before.

    `form` is None where layers return a bare tensor, else the length of the tuple they return.
    """

    def __init__(self, original: nn.Module, hidden: Any, form: int | None) -> None:
        super().__init__()
        object.__setattr__(self, "_original", (original,))
        self.hidden = hidden
        self.form = form

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name.startswith("__"):
                raise
            return getattr(self.__dict__["_original"][0], name)

    def forward(self, *_args: Any, **_kwargs: Any) -> Any:
        """Return the kept hidden state in the layer's own form."""
        return self.hidden if self.form is None else (self.hidden,) * self.form
