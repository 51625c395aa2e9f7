"""The primitives of `StageBackend`, on tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from worker.backends.base import (
    Draw,
    KVCache,
    ModelFacts,
    Part,
    Placement,
    Sampled,
    Scored,
    TokenBytes,
)
from worker.backends.steps import each_alone, one_by_one
from worker.backends.transformers import wire
from worker.backends.transformers.cache import RequestCache
from worker.backends.transformers.finite import require_finite
from worker.backends.transformers.memory_failures import memory_failures
from worker.backends.transformers.rows import Rows
from worker.model import sampling, scoring
from worker.model.run import StageRunner
from worker.model.steps import StepOutputs, StepRunner, Steps
from worker.model.text import TextCodec
from worker.protocol.capabilities import Capability
from worker.protocol.ops import Sampling
from worker.protocol.payload import Hidden
from worker.protocol.schema import ErrorCode, ProtocolError
from worker.remembered import NOTHING, Remembered


class TransformersBackend:
    """One loaded stage. See `StageBackend` for what the methods promise."""

    keeps_caches = True

    def __init__(
        self,
        runner: StageRunner,
        text: TextCodec,
        facts: ModelFacts,
        remembered: Remembered = NOTHING,
    ) -> None:
        self._runner = runner
        self._steps = StepRunner(runner, remembered)
        self._text = text
        self._facts = replace(facts, max_rows=self._steps.max_rows)

    @property
    def facts(self) -> ModelFacts:
        """What the stage is."""
        return self._facts

    def tokenize(
        self,
        prompt: str | None,
        messages: Sequence[dict[str, Any]] | None,
        tools: Sequence[dict[str, Any]] | None = None,
        template_options: Mapping[str, Any] | None = None,
    ) -> list[int]:
        """Return the ids of a plain prompt, or of messages through the chat template."""
        if messages is not None:
            return self._text.encode_messages(messages, tools, template_options)
        return self._text.encode_prompt(prompt or "")

    def detokenize(self, tokens: Sequence[int], *, show_special: bool = False) -> str:
        """Return the text of the ids, without special tokens unless they are asked for."""
        return self._text.decode(tokens, show_special=show_special)

    def vocabulary(self) -> TokenBytes:
        """Return what each token id stands for."""
        return self._text.token_bytes(self._facts.vocab_size)

    def check_tokens(self, tokens: Sequence[int]) -> None:
        """Refuse ids outside the vocabulary."""
        limit = self._facts.vocab_size
        for index, token in enumerate(tokens):
            if not 0 <= token < limit:
                raise ProtocolError(
                    ErrorCode.BAD_FIELD,
                    f"token id {token} at index {index} is outside the vocabulary; ids must be "
                    f"from 0 to {limit - 1}",
                )

    def new_cache(self, batch: int) -> RequestCache:
        """Return an empty cache; it takes the batch from its first op."""
        return RequestCache(self._runner.new_cache(max_length=self._facts.max_context))

    def embed(self, tokens: Sequence[int], placement: Placement) -> Rows:
        """Take ids in; the embeddings are looked up in `forward`."""
        return Rows(_ids(tokens, placement.batch), "ids")

    def load(self, hidden: Hidden, tokens: Sequence[int] | None) -> Rows:
        """Take hidden states in from the wire, with their ids where the model needs them."""
        values = wire.to_tensor(hidden, self._runner.width)
        if not self._runner.needs_tokens:
            return Rows(values, "hidden")
        rows = hidden.batch * hidden.seq_len
        if tokens is None or len(tokens) != rows:
            seen = "none" if tokens is None else str(len(tokens))
            raise ProtocolError(
                ErrorCode.BAD_FIELD,
                f"'tokens' holds {seen} of the {rows} token ids of these rows; this model needs "
                "them on every stage, send them along",
            )
        self.check_tokens(tokens)
        return Rows(values, "hidden", _ids(tokens, hidden.batch))

    def forward(
        self,
        inputs: Rows,
        cache: KVCache | None,
        placement: Placement,
        *,
        every_row: bool = False,
    ) -> Rows:
        """Run this stage's layers; a failure leaves the cache as it was."""
        runner = self._runner
        if runner.stage.is_whole and inputs.kind == "hidden":
            return inputs
        # The head is run on the rows later, a few at a time, where every one is to be scored.
        wants_logits = runner.stage.is_last and not runner.stage.is_whole and not every_row
        mask = self._mask(placement)
        positions = None if mask is None else wire.to_position_ids(mask, placement.seq_len)
        kept = cache.cache if isinstance(cache, RequestCache) else None
        with memory_failures():
            values = runner.forward(
                inputs.values,
                kept,
                tokens=inputs.tokens,
                attention_mask=mask,
                position_ids=positions,
                want="logits" if wants_logits else "hidden",
            )
        # In logits -inf alone is a token that the model itself rules out; `amax` hands nan on.
        # Of a chunk that asks for no token every row is looked at: its keys and values stay.
        checked = values.amax(-1)[:, None] if wants_logits else values
        try:
            require_finite(checked, mask, placement, self._runner.stage)
        except ProtocolError:
            if cache is not None:
                cache.crop(placement.position)
            raise
        return Rows(values, "logits" if wants_logits else "hidden")

    def forward_together(self, parts: Sequence[Part[Rows]]) -> list[Rows | Exception]:
        """Run the columns as `forward` would one after the other, in packs where that is exact."""
        found: dict[int, Rows | Exception] = {}
        packed: dict[int, Part[Rows]] = {}
        for i, part in enumerate(parts):
            inputs, total = part.inputs, part.placement.seq_len
            if self._runner.stage.is_whole and inputs.kind == "hidden":
                found[i] = inputs.columns(total - part.choices, total)
            elif isinstance(part.cache, RequestCache) and part.placement.attention_mask is None:
                packed[i] = part
            else:
                (found[i],) = each_alone(self._one_by_one, [part])
        found.update(zip(packed, self._packed(list(packed.values())), strict=True))
        return [found[i] for i in range(len(parts))]

    def _one_by_one(self, part: Part[Rows]) -> Rows:
        columns = [part.inputs.columns(i, i + 1) for i in range(part.placement.seq_len)]
        outputs = one_by_one(self.forward, columns, part.cache, part.placement)
        if outputs[-1].kind == "hidden":
            return Rows.joined(outputs)
        return Rows(torch.cat([output.values for output in outputs[-part.choices :]]), "logits")

    def _packed(self, parts: Sequence[Part[Rows]]) -> list[Rows | Exception]:
        # one column that breaks is taken back by its cache: nothing need be kept for it
        before = [
            part.cache.snapshot(part.placement.position)
            if part.cache is not None and part.placement.seq_len > 1
            else None
            for part in parts
        ]
        outputs = self._steps.together(
            [
                Steps(part.inputs.values, part.cache.cache, part.inputs.tokens, part.choices)
                for part in parts
                if isinstance(part.cache, RequestCache)
            ]
        )
        results = iter(outputs)
        found = each_alone(lambda part: self._checked(part, next(results)), parts)
        for part, kept, result in zip(parts, before, found, strict=True):
            if isinstance(result, Exception) and part.cache is not None:
                if kept is not None:
                    part.cache.restore(kept)
                elif part.cache.length > part.placement.position:
                    part.cache.crop(part.placement.position)
        return found

    def _checked(self, part: Part[Rows], outputs: StepOutputs | Exception) -> Rows:
        """Return what a part gave, unless it failed or some of it is no number."""
        if isinstance(outputs, Exception):
            with memory_failures():
                raise outputs
        for values in outputs.hidden:
            require_finite(values, None, part.placement, self._runner.stage)
        for values in outputs.logits:
            highest = values.amax(-1)[:, None]
            require_finite(highest, None, part.placement, self._runner.stage)
        if part.choices:
            return Rows(_joined(outputs.logits, 0)[-part.choices :], "logits")
        return Rows(_joined(outputs.hidden or outputs.logits, 1), "hidden")

    def dump(self, hidden: Rows, placement: Placement) -> Hidden:
        """Give hidden states out to the wire."""
        return wire.to_hidden(hidden.values)

    def sample(self, outputs: Rows, options: Sampling, placement: Placement) -> Sampled:
        """Choose the token after the last row."""
        with memory_failures():
            logits = outputs.values
            if outputs.kind != "logits":
                logits = self._runner.head(logits)
            return sampling.choose(logits, options, placement.position + placement.seq_len)

    def score(
        self, outputs: Rows, tokens: Sequence[int], top_logprobs: int, placement: Placement
    ) -> list[Scored]:
        """Score the tokens after the first rows."""
        assert outputs.kind == "hidden", "the rows were run to be scored"
        found: list[Scored] = []
        for start in range(0, len(tokens), scoring.MOST_ROWS):
            after = tokens[start : start + scoring.MOST_ROWS]
            rows = outputs.values[:, start : start + len(after)]
            with memory_failures():
                logits = self._runner.head(rows, want="row_logits")
                where = Placement(placement.position + start, 1, len(after))
                require_finite(logits.amax(-1)[None, :, None], None, where, self._runner.stage)
                found += scoring.score_rows(logits, after, top_logprobs)
        return found

    def choose(self, draws: Sequence[Draw[Rows]]) -> list[list[Sampled] | Exception]:
        """Choose the tokens after the last rows of each, with one pass of the head at most."""
        with memory_failures():
            rows = [draw.outputs.values for draw in draws]
            if draws[0].outputs.kind == "logits":
                logits = _joined(rows, 0)
            else:
                logits = self._steps.head(_joined(rows, 1))
            found = iter(
                sampling.choose_rows(
                    logits,
                    [options for draw in draws for options in draw.options],
                    [draw.position + 1 + i for draw in draws for i in range(len(draw.options))],
                )
            )
        return [_whole([next(found) for _ in draw.options]) for draw in draws]

    def generate(
        self, prompt: str, max_tokens: int, prefill_chunk: int, ignore_eos: bool
    ) -> list[int]:
        """Generate greedily with the whole model; an end token that stops it is included."""
        tokens = self._text.encode_prompt(prompt)
        limit = self._facts.max_context
        if limit is not None and len(tokens) + max_tokens > limit:
            raise ProtocolError(
                ErrorCode.CONTEXT_FULL,
                f"{len(tokens)} prompt tokens and {max_tokens} new ones pass this worker's limit "
                f"of {limit}; shorten the prompt or ask for fewer",
            )
        ends = frozenset() if ignore_eos else frozenset(self._facts.eos_token_ids)
        cache = self._runner.new_cache(max_length=limit)
        new: list[int] = []
        chunks = [tokens[i : i + prefill_chunk] for i in range(0, len(tokens), prefill_chunk)]
        while chunks:
            with memory_failures():
                logits = self._runner.forward(_ids(chunks.pop(0), 1), cache, want="logits")
                if chunks:
                    continue
                new.extend(sampling.choose(logits, Sampling(), len(tokens) + len(new)).token_ids)
            if len(new) < max_tokens and new[-1] not in ends:
                chunks.append(new[-1:])
        return new

    def warm_up(self) -> None:
        """Run one forward, so that no request pays for one-time work."""
        with memory_failures():
            self._runner.warm_up()

    def _mask(self, placement: Placement) -> torch.Tensor | None:
        if placement.attention_mask is None:
            return None
        mask = wire.to_mask(placement.attention_mask, placement.batch)
        if mask is not None and Capability.PADDING not in self._facts.capabilities:
            raise ProtocolError(
                ErrorCode.BAD_FIELD,
                "this model takes no attention mask, so it cannot tell padding from text; send "
                "its sequences as requests of their own",
            )
        return mask


def _joined(pieces: Sequence[torch.Tensor], dim: int) -> torch.Tensor:
    return pieces[0] if len(pieces) == 1 else torch.cat(list(pieces), dim)


def _whole(chosen: Sequence[Sampled | ProtocolError]) -> list[Sampled] | Exception:
    """Return the choices of one request; none, where one of them cannot be made."""
    made: list[Sampled] = []
    for choice in chosen:
        if isinstance(choice, ProtocolError):
            return choice
        made.append(choice)
    return made


def _ids(tokens: Sequence[int], batch: int) -> torch.Tensor:
    return torch.tensor(tokens, dtype=torch.long).reshape(batch, -1)
