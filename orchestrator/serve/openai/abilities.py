"""What a request needs of the stages beyond the usual, which older workers ignore silently."""

from __future__ import annotations

from collections.abc import Iterable

from orchestrator.pipeline import Pipeline
from orchestrator.request import GenerationRequest
from orchestrator.serve.errors import refusal
from worker.protocol.capabilities import Capability


def check_abilities(pipeline: Pipeline, request: GenerationRequest) -> None:
    """Refuse a request that the stages cannot serve as it is.

    Raises:
        ApiError: a stage lacks a capability.
    """
    last = pipeline.facts.ready[-1].capabilities
    if request.is_steered and Capability.BIAS not in last:
        _refuse(
            "'logit_bias', 'presence_penalty', 'frequency_penalty', 'response_format' and a "
            "'tool_choice' that asks for a call need",
            Capability.BIAS,
            pipeline.hosts[-1],
        )
    check_tokens(pipeline, "logit_bias", request.logit_bias)


def check_tokens(pipeline: Pipeline, param: str, tokens: Iterable[int]) -> None:
    """Refuse token ids that the model does not have; `param` is the field that names them.

    Raises:
        ApiError: it has one.
    """
    size = pipeline.facts.vocab_size
    past = next((token_id for token_id in tokens if token_id >= size), None)
    if past is not None:
        raise refusal(param, f"'{param}' names token {past}, but the model's ids are below {size}")


def check_chat(pipeline: Pipeline, *, with_tools: bool) -> None:
    """Refuse a chat that the model's template has no way to put.

    Raises:
        ApiError: there is no template, or it has no place for tools.
    """
    if not pipeline.has_chat_template:
        raise refusal(
            "messages",
            "the model has no chat template, so it cannot chat: use /v1/completions with a prompt",
        )
    if with_tools and Capability.TOOLS not in pipeline.facts.capabilities:
        raise refusal(
            "tools",
            "the model's chat template has no place for tools: leave 'tools' away, or serve a "
            "model that was made for them",
        )


def check_logprobs(pipeline: Pipeline, *, of_prompt: bool) -> None:
    """Refuse to tell log probabilities where the stages cannot name or score tokens.

    Raises:
        ApiError: a stage lacks a capability.
    """
    if Capability.VOCABULARY not in pipeline.facts.capabilities:
        _refuse("'logprobs' needs", Capability.VOCABULARY, pipeline.hosts[0])
    if of_prompt and Capability.SCORE_TOKENS not in pipeline.facts.ready[-1].capabilities:
        _refuse("'echo' with 'logprobs' needs", Capability.SCORE_TOKENS, pipeline.hosts[-1])


def _refuse(what: str, capability: Capability, host: str) -> None:
    raise refusal(
        None,
        f"{what} a worker with the capability '{capability}', which the stage on {host} does not "
        "have: leave the field away, or update that worker",
    )
