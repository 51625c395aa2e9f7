"""The body of POST /v1/completions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from orchestrator.serve.errors import refusal
from orchestrator.serve.limits import CHOICES_FLAG, Limits
from orchestrator.serve.openai.asked import MAX_TOP_LOGPROBS, Asked, read_asked, read_max_tokens
from orchestrator.serve.openai.fields import Fields, lacking

# What OpenAI's documentation says where nothing is asked for.
DEFAULT_NEW_TOKENS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionRequest:
    """What a plain completion asks for.

    Attributes:
        prompts: each one text or token ids; never empty.
        max_new_tokens: most tokens of an answer; 0 only looks at the prompt.
        echo: whether the text begins with the prompt.
        logprobs: whether the probability of each token is told.
    """

    model: str
    asked: Asked
    prompts: tuple[str | tuple[int, ...], ...]
    max_new_tokens: int
    echo: bool
    logprobs: bool


def read_completion_request(body: Mapping[str, Any], limits: Limits) -> CompletionRequest:
    """Read the body.

    Raises:
        ApiError: a field is not what it must be, not served, or unknown; it is named.
    """
    fields = Fields(body)
    fields.belongs("messages", "/v1/chat/completions")
    model, prompts = fields.needed_text("model"), _prompts(fields)
    logprobs = fields.has("logprobs")
    top_logprobs = fields.integer("logprobs", 0, 0, MAX_TOP_LOGPROBS)
    default = min(DEFAULT_NEW_TOKENS, limits.max_new_tokens or DEFAULT_NEW_TOKENS)
    max_new_tokens = read_max_tokens(fields, "max_tokens", limits, 0)
    request = CompletionRequest(
        model=model,
        asked=read_asked(fields, limits, top_logprobs if logprobs else None),
        prompts=prompts,
        max_new_tokens=default if max_new_tokens is None else max_new_tokens,
        echo=fields.flag("echo"),
        logprobs=logprobs,
    )
    choices = len(prompts) * request.asked.n
    if choices > limits.max_choices:
        raise refusal(
            "prompt",
            f"{len(prompts)} prompts with n = {request.asked.n} ask for {choices} answers, at most "
            f"{limits.max_choices} are given to one request ({CHOICES_FLAG} of the server); send "
            "several requests",
        )
    fields.text("user")
    fields.only("suffix", [], "no text is put in between two others; leave it away")
    fields.only("best_of", [1, request.asked.n], "every answer is sent back; use 'n'")
    fields.end()
    return request


def _prompts(fields: Fields) -> tuple[str | tuple[int, ...], ...]:
    value = fields.take("prompt")
    if value is None or value == []:
        raise refusal("prompt", f"'prompt' is {lacking(value)}; give a string or token ids")
    if isinstance(value, str):
        return (value,)
    if isinstance(value, list):
        if _are_ids(value):
            return (tuple(value),)
        if all(isinstance(one, str) for one in value):
            return tuple(value)
        if all(isinstance(one, list) and _are_ids(one) for one in value):
            if [] in value:
                raise refusal(
                    "prompt",
                    f"'prompt' has an empty list of token ids at {value.index([])}; give at least "
                    "one id",
                )
            return tuple(tuple(one) for one in value)
    raise fields.refused(
        "prompt", value, "a string, a list of strings, a list of token ids or a list of such lists"
    )


def _are_ids(values: list[Any]) -> bool:
    return all(type(one) is int and 0 <= one < 2**31 for one in values)
