"""What the stages of a pipeline together are, and whether they are one model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from orchestrator.failures import PipelineMismatch
from orchestrator.specs import StageSpec
from worker.protocol.ready import Ready


@dataclass(frozen=True, slots=True)
class PipelineFacts:
    """What the stages together are.

    Attributes:
        eos_token_ids: union over the stages.
        max_context: smallest of the stages' limits; None where none has one.
        capabilities: of stage 0, which tokenizes.
        shared_capabilities: what every stage can.
        needs_tokens: whether later stages want the token ids too.
        max_rows: most rows that one pass over the weights serves on every stage.
    """

    num_layers: int
    hidden_dim: int
    vocab_size: int
    eos_token_ids: frozenset[int]
    max_context: int | None
    capabilities: frozenset[str]
    shared_capabilities: frozenset[str]
    needs_tokens: bool
    max_rows: int
    model_type: str | None
    ready: tuple[Ready, ...]


_SHARED = ("total_blocks", "hidden_dim", "hidden_dtype", "vocab_size", "model_type", "commit")


def facts_of(specs: Sequence[StageSpec], ready: Sequence[Ready]) -> PipelineFacts:
    """Return what the stages together are.

    Raises:
        PipelineMismatch: their layers do not cover the model once, in order, or they are not of
            one model.
    """
    named = [f"stage {spec.stage} on {spec.host}" for spec in specs]
    first, end = ready[0], 0
    for name, stage in zip(named, ready, strict=True):
        start, next_end = stage.layer_range
        if start != end:
            raise PipelineMismatch(
                f"{name} holds layers {start}:{next_end}, but layer {end} is the next one due; "
                "give layers that follow each other in the order of the stages"
            )
        end = next_end
        for what in _SHARED:
            here, there = getattr(stage, what), getattr(first, what)
            # A worker in another language may leave out what it does not know.
            if here != there and None not in (here, there):
                raise PipelineMismatch(
                    f"{name} has {what} {here}, {named[0]} has {there}; give every stage the "
                    "same model and revision"
                )
    if end != first.total_blocks:
        raise PipelineMismatch(
            f"the stages hold layers 0:{end} of {first.total_blocks}; layers "
            f"{end}:{first.total_blocks} are on no stage"
        )
    limits = [stage.max_context for stage in ready if stage.max_context is not None]
    return PipelineFacts(
        num_layers=first.total_blocks,
        hidden_dim=first.hidden_dim,
        vocab_size=first.vocab_size,
        eos_token_ids=frozenset[int]().union(*(stage.eos_token_ids for stage in ready)),
        max_context=min(limits, default=None),
        capabilities=frozenset(first.capabilities),
        shared_capabilities=frozenset(first.capabilities).intersection(
            *(stage.capabilities for stage in ready)
        ),
        needs_tokens=any(stage.needs_tokens for stage in ready),
        max_rows=min(stage.max_rows for stage in ready),
        model_type=first.model_type,
        ready=tuple(ready),
    )
