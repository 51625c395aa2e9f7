"""The stages of one model in order: started together, called in turn, ended together."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, TypeVar

from orchestrator.bundle.records import NoRecorder, Recorder
from orchestrator.failures import OpRejected, StageFailure
from orchestrator.pipeline_facts import PipelineFacts, facts_of
from orchestrator.specs import StageSpec
from orchestrator.stage import StageClient, StageStatus
from orchestrator.stage.together import at_once, close_all
from orchestrator.timeouts import Timeouts
from worker.protocol.ops import (
    DecodeStep,
    Detokenize,
    EmbedAndForward,
    ForwardAndSample,
    ForwardRange,
    HiddenReply,
    Release,
    Reply,
    Request,
    RequestId,
    SampledReply,
    Sampling,
    Tokenize,
)
from worker.protocol.schema import rules_of

R = TypeVar("R", bound=Reply)

_SAMPLING_FIELDS = tuple(field.name for field, _ in rules_of(Sampling))


class Pipeline:
    """Ordered stages; use `async with await Pipeline.start(…)`, or owe it an `aclose`."""

    def __init__(
        self,
        stages: Sequence[StageClient],
        facts: PipelineFacts,
        failures: Sequence[StageFailure],
    ) -> None:
        self.stages = tuple(stages)
        self.facts = facts
        self._failures = failures

    @staticmethod
    async def start(
        specs: Sequence[StageSpec],
        *,
        recorder: Recorder | None = None,
        timeouts: Timeouts | None = None,
        on_status: Callable[[StageStatus], None] = lambda status: None,
    ) -> Pipeline:
        """Start every stage at once and wait until all serve.

        Raises:
            StageFailure: the first that was noticed; the other stages have been ended.
            PipelineMismatch: they do not make one model; all have been ended.
        """
        stages: list[StageClient] = []
        failures: list[StageFailure] = []

        def failed(failure: StageFailure) -> None:
            failures.append(failure)
            for stage in stages:
                stage.abort(failures[0])

        for spec in specs:
            stages.append(
                StageClient(
                    spec,
                    recorder=recorder or NoRecorder(),
                    timeouts=timeouts or Timeouts(),
                    on_status=on_status,
                    on_failure=failed,
                )
            )
        try:
            ready = await at_once(stage.start() for stage in stages)
            return Pipeline(stages, facts_of(specs, ready), failures)
        except StageFailure:
            await close_all(stages)
            raise failures[0] from None
        except BaseException:
            await close_all(stages)
            raise

    @property
    def failure(self) -> StageFailure | None:
        """The first failure of any stage: the cause of those after it."""
        return self._failures[0] if self._failures else None

    async def tokenize(
        self,
        rid: RequestId,
        prompt: str | None = None,
        messages: Sequence[dict[str, Any]] | None = None,
    ) -> tuple[int, ...]:
        """Return the token ids of a prompt, or of messages through the chat template.

        Raises:
            OpRejected, StageFailure: see `StageClient.call`.
        """
        request = Tokenize(
            request_id=rid,
            prompt=prompt,
            messages=None if messages is None else tuple(messages),
        )
        return (await self._ask(0, request)).tokens

    async def detokenize(self, rid: RequestId, tokens: Sequence[int]) -> str:
        """Return the text of token ids.

        Raises:
            OpRejected, StageFailure: see `StageClient.call`.
        """
        reply = await self._ask(-1, Detokenize(request_id=rid, tokens=tuple(tokens)))
        return reply.text

    async def forward(
        self,
        rid: RequestId,
        tokens: Sequence[int],
        position: int,
        sampling: Sampling | None,
        *,
        timeout_s: float | None = None,
    ) -> SampledReply:
        """Run tokens through every stage.

        Args:
            rid: names the KV cache on each stage.
            tokens: ids of consecutive tokens; one at position > 0 is a decode step.
            position: absolute index of the first.
            sampling: how to choose the next token; None chooses none (a prefill chunk).
            timeout_s: for each stage's op.

        Raises:
            OpRejected, StageFailure: see `StageClient.call`.
        """
        first = (
            DecodeStep(request_id=rid, token_id=tokens[0], position=position)
            if len(tokens) == 1 and position > 0
            else EmbedAndForward(request_id=rid, tokens=tuple(tokens), position=position)
        )
        hidden: HiddenReply = await self._ask(0, first, timeout_s)
        onward: dict[str, Any] = {"request_id": rid, "position": position}
        if self.facts.needs_tokens:
            onward["tokens"] = tuple(tokens)
        for index in range(1, len(self.stages) - 1):
            request = ForwardRange(**onward, **_carried(hidden))
            hidden = await self._ask(index, request, timeout_s)
        chosen = (
            {"sample": False}
            if sampling is None
            else {name: getattr(sampling, name) for name in _SAMPLING_FIELDS}
        )
        last = ForwardAndSample(**onward, **chosen, **_carried(hidden))
        return await self._ask(-1, last, timeout_s)

    async def release(self, rid: RequestId) -> None:
        """Free the request's KV cache on every stage that lives."""

        async def one(stage: StageClient) -> None:
            # A lost stage has no cache any more, and a refusal changes nothing for the caller.
            with contextlib.suppress(StageFailure, OpRejected, ConnectionError):
                await stage.call(Release(request_id=rid))

        await asyncio.gather(*(one(stage) for stage in self.stages))

    async def _ask(self, index: int, request: Request[R], timeout_s: float | None = None) -> R:
        if self.failure is not None:
            raise self.failure  # not the symptom that this stage may show by now
        return await self.stages[index].call(request, timeout_s)

    def kill(self) -> None:
        """Send SIGKILL to every stage now; `aclose` is still owed."""
        for stage in self.stages:
            stage.kill()

    async def aclose(self) -> None:
        """End every stage, all at once, each by its ladder; safe to call again."""
        await close_all(self.stages)

    async def __aenter__(self) -> Pipeline:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()


def _carried(hidden: HiddenReply) -> dict[str, Any]:
    """Return the reply's fields for the next request; the base64 text goes on as it is."""
    return {
        "seq_len": hidden.seq_len,
        "hidden_shape": hidden.hidden_shape,
        "hidden_dtype": hidden.hidden_dtype,
        "hidden_b64": hidden.hidden_b64,
    }
