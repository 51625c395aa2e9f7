"""One request through a pipeline: tokenize, prefill, decode, stop, release."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

from orchestrator.answer_text import AnswerText
from orchestrator.bundle.records import Recorder
from orchestrator.meter import Meter, Timings
from orchestrator.prefixes import Prefixes, Reuse
from orchestrator.request import GenerationRequest
from orchestrator.speculation.speculated import Bounds
from orchestrator.speculation.speculator import Speculator
from orchestrator.stages import Stages
from orchestrator.token_source import Guesses, PlainTokens, TokenSource, chosen

FinishReason = Literal["stop", "length"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finish:
    """How a request ended.

    Attributes:
        reason: "stop" at an end-of-text token or a stop string, "length" at the limit.
        matched_stop: the stop string that ended the text, or None.
        timings: of the request.
        guesses: tokens that were guessed ahead; None where that was off.
    """

    reason: FinishReason
    matched_stop: str | None
    timings: Timings
    guesses: Guesses | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenOutput:
    """One new token.

    Attributes:
        text: what may be shown with it; empty while a character or a stop string is unfinished,
            and more than the token's own where text was held back before.
        logprob: natural log of its probability before any sampling filter, where asked for.
        top_tokens: ids of the likeliest tokens at its place, as many as asked for.
        top_logprobs: their log probabilities.
        prompt_tokens: tokens of the prompt, the same in each output.
        cached_tokens: of those, how many the stages still held of an earlier request.
        finish: set in the last output only.
    """

    token_id: int
    text: str
    logprob: float | None
    prompt_tokens: int
    top_tokens: tuple[int, ...] = ()
    top_logprobs: tuple[float, ...] = ()
    cached_tokens: int = 0
    finish: Finish | None = None


async def generate(
    pipeline: Stages,
    request: GenerationRequest,
    recorder: Recorder,
    speculator: Speculator | None = None,
    prefixes: Prefixes | None = None,
) -> AsyncGenerator[TokenOutput, None]:
    """Yield the answer token by token.

    Closing the generator, or cancelling the task that runs it, cancels the request: no further op
    is sent, and every stage frees its cache, unless `prefixes` keeps it. The caller closes it
    (`contextlib.aclosing`).

    Args:
        pipeline: the model.
        request: what to generate.
        recorder: takes the record of the request.
        speculator: guesses tokens ahead; the tokens are the same without.
        prefixes: what is kept of earlier requests; None keeps nothing.

    Raises:
        RequestRefused: the prompt is empty or does not fit; nothing was computed.
        OpRejected, StageFailure: see `StageClient.call`.
    """
    meter = Meter()
    try:
        # Its own generator, so that whatever happens to this one is seen in one place.
        kept = Prefixes(pipeline, Reuse.OFF) if prefixes is None else prefixes
        outputs = _outputs(pipeline, request, speculator, kept, meter)
        async with contextlib.aclosing(outputs):
            async for output in outputs:
                if output.finish is not None:
                    meter.finish_reason = output.finish.reason
                yield output
    except Exception:
        meter.finish_reason = "error"
        raise
    finally:
        recorder.request(meter.record(request))


async def _outputs(
    pipeline: Stages,
    request: GenerationRequest,
    speculator: Speculator | None,
    prefixes: Prefixes,
    meter: Meter,
) -> AsyncGenerator[TokenOutput, None]:
    prompt = await prompt_tokens(pipeline, request)
    limit = request.new_tokens(len(prompt), pipeline.facts.max_context)
    meter.prompt_tokens, meter.prefix_reuse = len(prompt), prefixes.reuse.value
    ends = frozenset() if request.ignore_eos else pipeline.facts.eos_token_ids
    lease = await prefixes.open(request, prompt)
    source: TokenSource | None = None
    is_sound = True
    try:
        source = (
            PlainTokens(pipeline, request, lease)
            if speculator is None or request.is_steered
            else speculator.open(request, lease, Bounds(len(prompt) + limit, ends))
        )
        detokenize = partial(
            pipeline.detokenize, request.request_id, show_special=request.show_special
        )
        async with (
            contextlib.aclosing(source),
            contextlib.aclosing(AnswerText(detokenize, request.stop)) as text,
            contextlib.aclosing(_worded(source, text, Bounds(limit, ends), meter)) as outputs,
        ):
            async for output in outputs:
                if meter.cached_tokens is None:
                    meter.cached_tokens = prefixes.computed(lease)
                yield replace(output, cached_tokens=meter.cached_tokens)
    except Exception:
        is_sound = False
        raise
    finally:
        meter.caches, meter.history_bytes = lease.name, pipeline.history_bytes(lease.name)
        done = source.done if source is not None and is_sound else None
        await prefixes.close(lease, done, given_up=meter.finish_reason == "cancelled")


async def prompt_tokens(pipeline: Stages, request: GenerationRequest) -> tuple[int, ...]:
    """Return the ids of a request's prompt.

    Raises:
        OpRejected, StageFailure: see `StageClient.call`.
    """
    if request.tokens is not None:
        return request.tokens
    return await pipeline.tokenize(
        request.request_id,
        request.prompt,
        request.messages,
        tools=request.tools,
        template_options=request.template_options,
    )


async def _worded(
    source: TokenSource, text: AnswerText, bounds: Bounds, meter: Meter
) -> AsyncGenerator[TokenOutput, None]:
    """Yield the tokens with their text; `bounds` are those of the answer alone."""
    reply = await source.next()
    while True:
        token_id = chosen(reply)
        meter.guesses = source.guesses
        output = TokenOutput(
            token_id=token_id,
            text="",
            logprob=reply.logprob,
            top_tokens=reply.top_tokens or (),
            top_logprobs=reply.top_logprobs or (),
            prompt_tokens=meter.prompt_tokens,
        )
        if token_id in bounds.ends or meter.completion_tokens + 1 == bounds.total:
            # The end-of-text token itself is not shown.
            shown = "" if token_id in bounds.ends else await text.push(token_id)
            shown += await text.finish()
            meter.token()
            is_stop = token_id in bounds.ends or text.matched is not None
            yield _last(output, shown, "stop" if is_stop else "length", text, meter)
            return
        # The text of this token is made while the next one is computed. Its op is sent first, so
        # that one worker that does both does not keep the text back for a whole step.
        text.foresee((token_id, *source.ahead))
        pushing = asyncio.create_task(text.push(token_id))
        stepping = asyncio.create_task(source.next())
        async with _owned(pushing, stepping):
            shown = await pushing
            meter.token()
            if text.matched is not None:
                yield _last(output, shown, "stop", text, meter)
                return
            yield replace(output, text=shown)
            reply = await stepping


def _last(
    output: TokenOutput, shown: str, reason: FinishReason, text: AnswerText, meter: Meter
) -> TokenOutput:
    finish = Finish(
        reason=reason,
        matched_stop=text.matched,
        timings=meter.timings(),
        guesses=meter.guesses,
    )
    return replace(output, text=shown, finish=finish)


@contextlib.asynccontextmanager
async def _owned(*tasks: asyncio.Task[object]) -> AsyncIterator[None]:
    """End the tasks with the block, whichever way it is left."""
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
