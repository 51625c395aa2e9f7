"""What a program asks for by keywords -> a request."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Annotated, Any, TypedDict

from orchestrator.grammar.grammar import Grammar
from orchestrator.keywords import check, check_all, fits, kinds_of, shown
from orchestrator.request import DEFAULT_PREFILL_CHUNK, GenerationRequest, RequestRefused
from worker.protocol.ops import Sampling
from worker.protocol.schema import rules_of

_SAMPLING = frozenset(field.name for field in fields(Sampling))
_TOOLS = Sequence[Mapping[str, Any]] | None
_TEMPLATE_OPTIONS = Mapping[str, Any] | None
_MESSAGE = "{'role': 'user', 'content': 'Hello'}"
# What `generate` and `score` start from.
Prompt = Annotated[str | Sequence[int], "a text or a sequence of token ids"]


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
    options: AnswerOptions,
    *,
    prompt: str | None = None,
    messages: Sequence[Mapping[str, Any]] | None = None,
    tokens: Sequence[int] | None = None,
    tools: Sequence[Mapping[str, Any]] | None = None,
    template_options: Mapping[str, Any] | None = None,
    prefill_chunk: int = DEFAULT_PREFILL_CHUNK,
) -> GenerationRequest:
    """Return the request; what it starts from is one of `prompt`, `messages` and `tokens`.

    Args:
        request_id: unique among the live requests.
        options: how to generate.
        prompt: plain text.
        messages: `{"role": …, "content": …}` objects for the chat template.
        tokens: ids of the prompt.
        tools: for the chat template, as OpenAI's interface has them.
        template_options: more variables for the chat template.
        prefill_chunk: tokens of the prompt per step.

    Raises:
        TypeError: there is no option of that name, or a value is of another type.
        ValueError: a number is not finite.
        RequestRefused: a value cannot be, or messages are none; one sentence.
    """
    given: dict[str, Any] = dict(options)
    check_all(given, kinds_of(AnswerOptions), _elsewhere)
    check("tools", tools, _TOOLS)
    check("template_options", template_options, _TEMPLATE_OPTIONS)
    if messages is not None:
        _check_messages(messages)
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


def _elsewhere() -> dict[str, str]:
    """Return where a keyword belongs that says what is opened."""
    # Imported here, for it needs this file, and a mistake alone needs it.
    from orchestrator.open_options import OpenOptions

    return dict.fromkeys(kinds_of(OpenOptions), "says what is opened: give it to Pipeline.open")


def _check_messages(messages: object) -> None:
    """See that messages are what a chat template can be given.

    Raises:
        RequestRefused: they are not.
    """
    if not fits(messages, Sequence[Any]) or not messages:
        raise RequestRefused(
            f"messages={shown(messages)} must be a sequence of one message or more, as [{_MESSAGE}]"
        )
    assert isinstance(messages, Sequence)
    for index, message in enumerate(messages):
        is_message = (
            fits(message, Mapping[str, Any])
            and fits(message.get("role"), str)
            and fits(message.get("content"), str | _TOOLS)
            and ("content" in message or "tool_calls" in message)
        )
        if not is_message:
            raise RequestRefused(
                f"messages[{index}]={shown(message)} must be a mapping with a role and a content, "
                f"as {_MESSAGE}"
            )


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
