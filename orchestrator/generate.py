"""One request through a pipeline: tokenize, prefill, decode, stop, release."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

from orchestrator.answer_text import AnswerText
from orchestrator.bundle.records import Recorder
from orchestrator.meter import Meter, Timings
from orchestrator.pipeline import Pipeline
from orchestrator.request import GenerationRequest
from worker.protocol.ops import SampledReply, Sampling

FinishReason = Literal["stop", "length"]

# A stage that is busy with an op of the request frees the cache after it; a caller that gave the
# request up need not wait for that longer than this.
RELEASE_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Finish:
    """How a request ended.

    Attributes:
        reason: "stop" at an end-of-text token or a stop string, "length" at the limit.
        matched_stop: the stop string that ended the text, or None.
        timings: of the request.
    """

    reason: FinishReason
    matched_stop: str | None
    timings: Timings


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenOutput:
    """One new token.

    Attributes:
        text: what may be shown with it; empty while a character or a stop string is unfinished,
            and more than the token's own where text was held back before.
        prompt_tokens: tokens of the prompt, the same in each output.
        finish: set in the last output only.
    """

    token_id: int
    text: str
    logprob: float | None
    prompt_tokens: int
    finish: Finish | None = None


async def generate(
    pipeline: Pipeline, request: GenerationRequest, recorder: Recorder
) -> AsyncGenerator[TokenOutput, None]:
    """Yield the answer token by token; positions are counted here and nowhere else.

    Closing the generator, or cancelling the task that runs it, cancels the request: no further op
    is sent, and every stage frees its cache. The caller closes it (`contextlib.aclosing`).

    Raises:
        RequestRefused: the prompt is empty or does not fit; nothing was computed.
        OpRejected, StageFailure: see `StageClient.call`.
    """
    meter = Meter()
    try:
        # Its own generator, so that whatever happens to this one is seen in one place.
        async with contextlib.aclosing(_outputs(pipeline, request, meter)) as outputs:
            async for output in outputs:
                if output.finish is not None:
                    meter.finish_reason = output.finish.reason
                yield output
    except Exception:
        meter.finish_reason = "error"
        raise
    finally:
        recorder.request(meter.record(request, pipeline.history_bytes(request.request_id)))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(RELEASE_S):
                await pipeline.release(request.request_id)


async def _outputs(
    pipeline: Pipeline, request: GenerationRequest, meter: Meter
) -> AsyncGenerator[TokenOutput, None]:
    rid = request.request_id
    ids = list(await pipeline.tokenize(rid, request.prompt, request.messages))
    limit = request.new_tokens(len(ids), pipeline.facts.max_context)
    meter.prompt_tokens = len(ids)
    ends = frozenset() if request.ignore_eos else pipeline.facts.eos_token_ids
    text = AnswerText(partial(pipeline.detokenize, rid), request.stop)
    reply = await _prefill(pipeline, request, ids)
    while True:
        token_id = _chosen(reply)
        ids.append(token_id)
        output = TokenOutput(
            token_id=token_id, text="", logprob=reply.logprob, prompt_tokens=meter.prompt_tokens
        )
        if token_id in ends or len(ids) - meter.prompt_tokens == limit:
            # The end-of-text token itself is not shown.
            shown = "" if token_id in ends else await text.push(token_id)
            shown += await text.finish()
            meter.token()
            is_stop = token_id in ends or text.matched is not None
            yield _last(output, shown, "stop" if is_stop else "length", text, meter)
            return
        # The text of this token is made while the next one is computed. Its op is sent first, so
        # that one worker that does both does not keep the text back for a whole step.
        pushing = asyncio.create_task(text.push(token_id))
        stepping = asyncio.create_task(
            pipeline.forward(rid, (token_id,), len(ids) - 1, _sampling(request, ids))
        )
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
    finish = Finish(reason=reason, matched_stop=text.matched, timings=meter.timings())
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


async def _prefill(
    pipeline: Pipeline, request: GenerationRequest, ids: Sequence[int]
) -> SampledReply:
    """Run the prompt in chunks; the last one chooses the first token."""
    step = request.prefill_chunk
    for start in range(0, len(ids) - step, step):
        await pipeline.forward(request.request_id, ids[start : start + step], start, None)
    start = (len(ids) - 1) // step * step
    return await pipeline.forward(request.request_id, ids[start:], start, _sampling(request, ids))


def _sampling(request: GenerationRequest, ids: Sequence[int]) -> Sampling:
    if request.sampling.repetition_penalty == 1.0:
        return request.sampling
    return replace(request.sampling, penalty_tokens=tuple(sorted(set(ids))))


def _chosen(reply: SampledReply) -> int:
    assert reply.token_id is not None, "sampling was asked for"
    return reply.token_id
