"""What a program asks for by keywords -> a request."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any, TypedDict, Unpack

from orchestrator.grammar.grammar import Grammar
from orchestrator.request import DEFAULT_PREFILL_CHUNK, GenerationRequest, RequestRefused
from worker.protocol.ops import Sampling
from worker.protocol.schema import rules_of

_SAMPLING = frozenset(field.name for field in fields(Sampling))


class AnswerOptions(TypedDict, total=False):
    """How to generate; greedy where nothing is said.

    Attributes:
        max_new_tokens: most tokens to generate; 256, or what the context leaves, where it is None.
        temperature: 0 is greedy.
        top_k: keep the k likeliest tokens; 0 keeps all.
        top_p: keep the smallest set of tokens with this probability, 0 to 1.
        min_p: drop tokens below this fraction of the likeliest one's probability, 0 to 1.
        repetition_penalty: divide the logits of tokens that prompt or answer has; 1 does nothing.
        presence_penalty: taken from the logit of each token that the answer has.
        frequency_penalty: taken from it for each time that the answer has it.
        logit_bias: added to the logits of tokens, by id.
        seed: the same seed gives the same text; None draws one.
        stop: strings that end the text before them; one of them may be a plain string.
        ignore_eos: go on past end-of-text tokens.
        logprobs: tell the natural log of each token's probability.
        top_logprobs: tell the likeliest tokens at each place, this many.
        grammar: what the answer must be.
    """

    max_new_tokens: int | None
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    logit_bias: Mapping[int, float]
    seed: int | None
    stop: str | Sequence[str]
    ignore_eos: bool
    logprobs: bool
    top_logprobs: int
    grammar: Grammar | None


def request_of(
    request_id: str,
    *,
    prompt: str | None = None,
    messages: Sequence[Mapping[str, Any]] | None = None,
    tokens: Sequence[int] | None = None,
    tools: Sequence[Mapping[str, Any]] | None = None,
    template_options: Mapping[str, Any] | None = None,
    prefill_chunk: int = DEFAULT_PREFILL_CHUNK,
    **options: Unpack[AnswerOptions],
) -> GenerationRequest:
    """Return the request; what it starts from is one of `prompt`, `messages` and `tokens`.

    Args:
        request_id: unique among the live requests.
        prompt: plain text.
        messages: `{"role": …, "content": …}` objects for the chat template.
        tokens: ids of the prompt.
        tools: for the chat template, as OpenAI's interface has them.
        template_options: more variables for the chat template.
        prefill_chunk: tokens of the prompt per step.
        **options: see `AnswerOptions`.

    Raises:
        TypeError: there is no option of that name.
        RequestRefused: a value cannot be; one sentence.
    """
    given: dict[str, Any] = dict(options)
    sampling = _sampling({name: given.pop(name) for name in given.keys() & _SAMPLING})
    stop = given.pop("stop", ())
    try:
        return GenerationRequest(
            request_id=request_id,
            prompt=prompt,
            messages=None if messages is None else tuple(map(dict, messages)),
            tokens=None if tokens is None else tuple(tokens),
            tools=None if tools is None else tuple(map(dict, tools)),
            template_options=None if template_options is None else dict(template_options),
            prefill_chunk=prefill_chunk,
            sampling=sampling,
            stop=(stop,) if isinstance(stop, str) else tuple(stop),
            **given,
        )
    except ValueError as error:
        raise RequestRefused(str(error)) from None


def _sampling(given: dict[str, Any]) -> Sampling:
    """Return how tokens are chosen, with a seed where one is needed.

    Raises:
        RequestRefused: a value cannot be.
    """
    if given.get("seed") is None:
        given["seed"] = secrets.randbelow(2**31) if given.get("temperature") else 0
    sampling = Sampling(**given)
    for field, rule in rules_of(Sampling):
        value = getattr(sampling, field.name)
        if field.name in given and not rule.accepts(value):
            raise RequestRefused(f"{field.name} is {value!r} and must be {rule.expects}")
    return sampling
