"""What chat and plain completions ask for alike: how many answers, how chosen, how sent."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import Any

from orchestrator.request import GenerationRequest
from orchestrator.serve.errors import refusal
from orchestrator.serve.limits import CHOICES_FLAG, NEW_TOKENS_FLAG, Limits
from orchestrator.serve.openai.fields import Fields
from worker.protocol.ops import Sampling

# Each travels to the last stage with every step of the answer.
MAX_BIASED_TOKENS = 1024

MAX_TOP_LOGPROBS = 20
_MAX_STOPS = 16
_INT64 = 2**63


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """The common part of a body.

    Attributes:
        n: answers to each prompt.
        stream: whether they are sent as they come.
        include_usage: whether a stream ends with its counts.
        sampling: of each first answer; answer i has the seed plus i.
    """

    n: int
    stream: bool
    include_usage: bool
    sampling: Sampling
    stop: tuple[str, ...]
    ignore_eos: bool
    presence_penalty: float
    frequency_penalty: float
    logit_bias: dict[int, float]

    def request(self, request_id: str, **prompt: Any) -> GenerationRequest:
        """Return what to generate after a prompt, given as `GenerationRequest` takes it."""
        return GenerationRequest(
            request_id=request_id,
            sampling=self.sampling,
            stop=self.stop,
            ignore_eos=self.ignore_eos,
            presence_penalty=self.presence_penalty,
            frequency_penalty=self.frequency_penalty,
            logit_bias=self.logit_bias,
            **prompt,
        )


def read_asked(fields: Fields, limits: Limits, top_logprobs: int | None) -> Asked:
    """Take the common fields.

    Args:
        fields: of the body.
        limits: of one request.
        top_logprobs: likeliest tokens to tell for each token; None tells no probability.

    Raises:
        ApiError: one is not what it must be.
    """
    stream = fields.flag("stream")
    # The bounds of OpenAI's documentation; top_k to ignore_eos are what other servers call them.
    return Asked(
        n=fields.integer("n", 1, 1, limits.max_choices, CHOICES_FLAG),
        stream=stream,
        include_usage=_include_usage(fields, stream=stream),
        sampling=Sampling(
            temperature=fields.number("temperature", 1.0, 0, 2),
            top_p=fields.number("top_p", 1.0, 0, 1),
            top_k=max(0, fields.integer("top_k", 0, -1)),
            min_p=fields.number("min_p", 0.0, 0, 1),
            repetition_penalty=fields.number("repetition_penalty", 1.0, 0.01, 100),
            seed=fields.integer("seed", secrets.randbelow(_INT64), -_INT64, _INT64 - 1),
            logprobs=top_logprobs is not None,
            top_logprobs=top_logprobs or 0,
        ),
        stop=_stops(fields),
        ignore_eos=fields.flag("ignore_eos"),
        presence_penalty=fields.number("presence_penalty", 0.0, -2, 2),
        frequency_penalty=fields.number("frequency_penalty", 0.0, -2, 2),
        logit_bias=_logit_bias(fields),
    )


def read_max_tokens(fields: Fields, name: str, limits: Limits, low: int) -> int | None:
    """Take the most tokens to generate; None where the field is absent.

    Raises:
        ApiError: it is below `low`, or more than the server allows.
    """
    if not fields.has(name):
        return None
    return fields.integer(name, low, low, limits.max_new_tokens, NEW_TOKENS_FLAG)


def _include_usage(fields: Fields, *, stream: bool) -> bool:
    options = fields.object("stream_options")
    if options is None:
        return False
    if not stream:
        raise refusal(
            "stream_options", "'stream_options' is only for streams: leave it away, or set 'stream'"
        )
    own = Fields(options, "stream_options")
    include_usage = own.flag("include_usage")
    own.only("include_obfuscation", [False], "nothing is added to the chunks; leave it away")
    own.end()
    return include_usage


def _stops(fields: Fields) -> tuple[str, ...]:
    value = fields.take("stop")
    stops = [value] if isinstance(value, str) else [] if value is None else value
    if (
        not isinstance(stops, list)
        or len(stops) > _MAX_STOPS
        or not all(isinstance(stop, str) and stop for stop in stops)
    ):
        expects = f"a string or at most {_MAX_STOPS} strings, none of them empty"
        raise fields.refused("stop", value, expects)
    return tuple(stops)


def _logit_bias(fields: Fields) -> dict[int, float]:
    given = fields.object("logit_bias") or {}
    if len(given) > MAX_BIASED_TOKENS:
        raise refusal(
            fields.name("logit_bias"),
            f"'logit_bias' names {len(given)} tokens, at most {MAX_BIASED_TOKENS} are taken",
        )
    own = Fields(given, fields.name("logit_bias"))
    bias = {}
    for key in own.names():
        if not (key.isascii() and key.isdecimal() and len(key) < 10):
            name = fields.name("logit_bias")
            raise refusal(name, f"'{name}' names '{key:.40}', it must name tokens by their ids")
        bias[int(key)] = own.number(key, 0.0, -100, 100)
    return bias
