"""Run the layers of one stage through the model's own forward."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import nn

from worker.model.chunk_attention import ChunkAttention
from worker.model.ghost import Ghost, Relay
from worker.model.kv import StageCache
from worker.model.loaded import LoadedStage
from worker.model.pack_cache import PackCache

if TYPE_CHECKING:
    from worker.model.short_step import ShortStep

_TOO_FEW = re.compile(r"not enough values to unpack \(expected (\d+), got")


class _StageDone(Exception):
    """Leaves the model's forward with the output of the last own layer."""

    def __init__(self, output: Any) -> None:
        self.output = output


class StageRunner:
    """Runs one loaded stage, one op at a time.

    The model's own forward runs from end to end: foreign layers are ghosts, the hidden state
    that came in replaces the input of the first own layer, and the output of the last own
    layer is taken out by leaving the forward there. Masks, positions, rotary tables and all
    else around the layers are thus the model's own.
    """

    def __init__(self, loaded: LoadedStage) -> None:
        self.loaded = loaded
        self.stage = loaded.stage
        self.layout = loaded.layout
        self.wire_dtype = loaded.support.mode.wire_dtype
        self.max_context = loaded.architecture.max_context
        self.needs_tokens = loaded.sliced.needs_tokens
        self._model = loaded.model
        self._device = next(loaded.model.parameters()).device
        self._layers = loaded.model.get_submodule(loaded.sliced.parts.layers)
        self._accepts = accepted_names(loaded.model)
        # how to do a decode step without the model's Python, where that is known
        self.decode_step: ShortStep | None = None
        # how to attend in chunks without the library's copies; None with stock kernels
        self.chunks = ChunkAttention() if loaded.options.engine == "fast" else None
        self._inject: torch.Tensor | None = None
        self._capture = False
        self._form: int | None = None
        self._form_known = False
        own = list(self._layers.children())[self.stage.shard_start : self.stage.shard_end]
        own[0].register_forward_pre_hook(self._replace_input, with_kwargs=True)
        own[-1].register_forward_hook(self._take_output)

    @property
    def width(self) -> int:
        """Elements for each position of a hidden state on the wire."""
        return self.layout.width

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self._device

    @property
    def takes_mask(self) -> bool:
        """Whether the model can tell padding from text."""
        return self._takes("attention_mask")

    @property
    def takes_positions(self) -> bool:
        """Whether the model can be told where its inputs stand."""
        return self._takes("position_ids")

    def new_cache(self, *, max_length: int | None = None) -> StageCache:
        """Make an empty cache for one request."""
        return StageCache(
            self._model.config,
            self.loaded.sliced.cache_layers,
            max_length=max_length or self.max_context,
        )

    @torch.inference_mode()
    def forward(
        self,
        x: torch.Tensor,
        cache: StageCache | PackCache | None,
        *,
        tokens: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        want: Literal["hidden", "logits", "row_logits"] = "hidden",
    ) -> torch.Tensor:
        """Run the own layers over new positions and append them to `cache`.

        `x` is token ids `[batch, seq]` (int64) on the first stage, else a hidden state
        `[batch, seq, width]` in the wire dtype. `tokens` are the ids of the same positions,
        where `needs_tokens`. `attention_mask` is `[batch, cached + seq]`, `position_ids`
        `[batch, seq]`. Returns the hidden state after the last own layer, or on the last stage
        with `want="logits"` the logits of the last position, `[batch, vocab]`, with
        `want="row_logits"` those of every position of one sequence, `[seq, vocab]`.

        Raises:
            ValueError: an input lacks, or the model cannot use it. On any exception the cache
                is as it was.
        """
        if want != "hidden" and not self.stage.is_last:
            raise ValueError(f"layers {self.stage} have no head: only the last stage gives logits")
        x = x.to(self._device)
        step = self.decode_step
        is_plain = attention_mask is None and position_ids is None
        if step is not None and is_plain and step.fits(x, cache, want):
            assert isinstance(cache, StageCache)
            return step.run(x, cache, tokens)
        kwargs = self._inputs(x, tokens, attention_mask, position_ids)
        if cache is not None:
            kwargs["cache"] = cache
        kwargs["use_cache"] = cache is not None
        self._inject = None if self.stage.is_first else self.layout.from_wire(x)
        self._capture = want == "hidden"
        appending = nullcontext() if cache is None else cache.appending(x.shape[1])
        try:
            with appending, self._attending(x, cache):
                return self._finish(self._call(kwargs, want), want)
        finally:
            self._inject = None
            self._capture = False

    @torch.inference_mode()
    def head(
        self, hidden: torch.Tensor, *, want: Literal["logits", "row_logits"] = "logits"
    ) -> torch.Tensor:
        """Apply what follows the last layer: `[batch, seq, width]` to logits `[batch, vocab]`.

        With `want="row_logits"`, `[1, seq, width]` to `[seq, vocab]`.

        For a worker that holds the whole model and is sent the hidden state of its own last
        layer: its layers are bypassed, and the last one answers with `hidden`.

        Raises:
            ValueError: the stage is not last.
        """
        if not self.stage.is_last:
            raise ValueError(f"layers {self.stage} have no head: only the last stage gives logits")
        hidden = hidden.to(self._device)
        if not self._form_known:
            self._learn_form()
        shape = hidden.shape[:2]
        embeds = self._blank_embeddings(shape)
        kwargs: dict[str, Any] = {"inputs_embeds": embeds, "use_cache": False}
        if self.needs_tokens:
            ids = torch.zeros(shape, dtype=torch.long, device=self._device)
            kwargs = {"input_ids": ids, "use_cache": False}
        with self._bypassed(self.layout.from_wire(hidden)):
            return self._finish(self._call(kwargs, want), want)

    def warm_up(self) -> None:
        """Run one position without a cache, so that nothing is prepared at the first op."""
        ids = torch.zeros(1, 1, dtype=torch.long)
        x = ids if self.stage.is_first else torch.zeros(1, 1, self.width, dtype=self.wire_dtype)
        tokens = ids if self.needs_tokens else None
        self.forward(x, None, tokens=tokens, want="logits" if self.stage.is_last else "hidden")
        if self.stage.is_whole and not self._form_known:
            self._learn_form()

    def _attending(
        self, x: torch.Tensor, cache: StageCache | PackCache | None
    ) -> AbstractContextManager[None]:
        if self.chunks is None or x.shape[1] == 1 or not isinstance(cache, StageCache):
            return nullcontext()
        return self.chunks.used()

    def _inputs(
        self,
        x: torch.Tensor,
        tokens: torch.Tensor | None,
        attention_mask: torch.Tensor | None,
        position_ids: torch.Tensor | None,
    ) -> dict[str, Any]:
        kwargs: dict[str, Any] = {}
        if self.stage.is_first:
            kwargs["input_ids"] = x
        elif self.needs_tokens:
            if tokens is None:
                raise ValueError("this model needs the token ids on every stage, send them along")
            kwargs["input_ids"] = tokens.to(self._device)
        else:
            kwargs["inputs_embeds"] = self._blank_embeddings(x.shape[:2])
        if attention_mask is not None:
            if not self._takes("attention_mask"):
                raise ValueError("this model takes no attention mask: send requests one by one")
            kwargs["attention_mask"] = attention_mask.to(self._device, torch.long)
        if position_ids is not None and self._takes("position_ids"):
            kwargs["position_ids"] = position_ids.to(self._device)
        return kwargs

    def _blank_embeddings(self, shape: torch.Size) -> torch.Tensor:
        """Embeddings nobody uses: they carry batch, length, dtype and device."""
        width = self.loaded.sliced.embedding_width
        return torch.zeros(*shape, width, dtype=self._model.dtype, device=self._device)

    def _call(self, kwargs: dict[str, Any], want: str) -> Any:
        if self.stage.is_last and self._takes("logits_to_keep"):
            kwargs["logits_to_keep"] = 0 if want == "row_logits" else 1
        for _ in range(2):
            try:
                return self._model(**kwargs)
            except _StageDone as done:
                return done
            except ValueError as error:
                # a loop that unpacks its layers' results; foreign layers come first, so
                # nothing has been written yet when the first ghost answers too little
                expected = _TOO_FEW.search(str(error))
                if expected is None or not self._widen_ghosts(int(expected[1])):
                    raise
        raise AssertionError("unreachable: ghosts are widened at most once")

    def _widen_ghosts(self, arity: int) -> bool:
        ghosts = [layer for layer in self._layers.children() if isinstance(layer, Ghost)]
        changed = any(ghost.arity != arity for ghost in ghosts)
        for ghost in ghosts:
            ghost.arity = arity
        return changed

    def _finish(self, result: Any, want: str) -> torch.Tensor:
        if not isinstance(result, _StageDone):
            logits: torch.Tensor = result.logits
            return logits[0] if want == "row_logits" else logits[:, -1]
        hidden = result.output
        if isinstance(hidden, (tuple, list)):
            hidden = hidden[0]
        if hidden.dtype != self.wire_dtype and self.wire_dtype != torch.float32:
            raise RuntimeError(
                f"layer {self.stage.shard_end - 1} gives {hidden.dtype}, which would lose bits as "
                f"{self.wire_dtype} on the wire; check the model with tools/check_arch"
            )
        return self.layout.to_wire(hidden.to(self.wire_dtype))

    def _replace_input(
        self, _module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        if self._inject is None:
            return None
        if args:
            return (self._inject, *args[1:]), kwargs
        return args, {**kwargs, "hidden_states": self._inject}

    def _take_output(self, _module: nn.Module, _args: Any, output: Any) -> None:
        self._form = len(output) if isinstance(output, (tuple, list)) else None
        self._form_known = True
        if self._capture:
            raise _StageDone(output)

    def _learn_form(self) -> None:
        """See what the last layer returns, a tensor or a tuple, by running one position."""
        ids = torch.zeros(1, 1, dtype=torch.long)
        x = ids if self.stage.is_first else torch.zeros(1, 1, self.width, dtype=self.wire_dtype)
        self.forward(x, None, tokens=ids if self.needs_tokens else None)

    @contextmanager
    def _bypassed(self, hidden: torch.Tensor) -> Iterator[None]:
        """Put ghosts in place of own layers, a relay of `hidden` in place of the last."""
        own = list(self._layers.named_children())[self.stage.shard_start :]
        arity = self._form or 1
        try:
            for name, layer in own[:-1]:
                ghost = Ghost(layer)
                ghost.arity = arity
                self._layers.set_submodule(name, ghost)
            name, last = own[-1]
            self._layers.set_submodule(name, Relay(last, hidden, self._form))
            yield
        finally:
            for name, layer in own:
                self._layers.set_submodule(name, layer)

    def _takes(self, name: str) -> bool:
        return self._accepts is None or name in self._accepts


def accepted_names(model: nn.Module) -> frozenset[str] | None:
    """Names that the model's forward takes; None when it takes any."""
    parameters = inspect.signature(model.forward).parameters
    if any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values()):
        return None
    return frozenset(parameters)
