"""A plain completion: from what was asked to what is done."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from orchestrator.serve.openai.abilities import check_abilities, check_logprobs, check_tokens
from orchestrator.serve.openai.choice import Choice
from orchestrator.serve.openai.completion_reply import CompletionReply
from orchestrator.serve.openai.completion_request import CompletionRequest
from orchestrator.serve.openai.echo import Echo
from orchestrator.serve.openai.heading import Heading
from orchestrator.serve.openai.plan import Plan
from orchestrator.serve.openai.prompt import Prompt
from orchestrator.serve.openai.seeds import with_seed
from orchestrator.serve.openai.token_logprob import ShownLogprobs
from orchestrator.serve.openai.usage import Usage
from orchestrator.serve.service import Service
from orchestrator.vocabulary import Vocabulary


async def plan_completion(service: Service, request: CompletionRequest) -> Plan:
    """Return what to do; choice i of prompt p is number p times `n` plus i.

    Raises:
        ApiError: the stages cannot serve it.
        OpRejected, StageFailure: see `Pipeline.vocabulary`.
    """
    asked, heading = request.asked, Heading.new("cmpl", service)
    for prompt in request.prompts:
        if not isinstance(prompt, str):
            check_tokens(service.pipeline, "prompt", prompt)
    vocabulary = None
    if request.logprobs:
        check_logprobs(service.pipeline, of_prompt=request.echo)
        vocabulary = await service.pipeline.vocabulary()
    choices: list[Choice] = []
    for prompt in request.prompts:
        choices += _choices(service, request, heading, prompt, len(choices), vocabulary)
    check_abilities(service.pipeline, choices[0].request)
    reply = CompletionReply(
        heading, len(choices), include_usage=asked.include_usage, vocabulary=vocabulary
    )
    return Plan(
        choices=choices,
        reply=reply,
        usage=Usage(asked.n),
        stream=asked.stream,
        include_usage=asked.include_usage,
    )


def _choices(
    service: Service,
    request: CompletionRequest,
    heading: Heading,
    prompt: str | tuple[int, ...],
    first: int,
    vocabulary: Vocabulary | None,
) -> list[Choice]:
    """Return the answers to one prompt; `first` is the number of the first one."""
    asked, is_text = request.asked, isinstance(prompt, str)
    given: dict[str, Any] = {"prompt": prompt} if is_text else {"tokens": prompt}
    base = asked.request(f"{heading.id}-{first}", **given)
    shared = Prompt(service, base, "prompt", "max_tokens")
    echo = None
    if request.echo:
        echo = Echo(
            service,
            base.request_id,
            prompt if isinstance(prompt, str) else None,
            asked.sampling.top_logprobs if request.logprobs else None,
        )
    return [
        Choice(
            index=first + number,
            request=replace(with_seed(base, number), request_id=f"{heading.id}-{first + number}"),
            prompt=shared,
            max_new_tokens=request.max_new_tokens,
            echo=echo,
            logprobs=None if vocabulary is None else ShownLogprobs(vocabulary, with_end=True),
        )
        for number in range(asked.n)
    ]
