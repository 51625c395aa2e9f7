"""The stages of one model in order: started together, called in turn, ended together."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from functools import partial
from types import TracebackType
from typing import Any, TypeVar

from orchestrator.bundle.records import NoRecorder, Recorder, RecoveryRecord
from orchestrator.chunk import Chunk, Scoring
from orchestrator.failures import OpRejected, StageFailure
from orchestrator.links.links import Links
from orchestrator.links.names import STAR
from orchestrator.pipeline_facts import PipelineFacts, facts_of
from orchestrator.recovery.crew import Crew
from orchestrator.recovery.policy import NO_RECOVERY, RecoveryPolicy
from orchestrator.recovery.replay import Replay
from orchestrator.recovery.seat import Seat, SeatState
from orchestrator.recovery.spares import SpareSlot
from orchestrator.scheduler import Scheduler
from orchestrator.scheduler.rows import replies_of_rows
from orchestrator.specs import StageSpec
from orchestrator.stage import StageClient, StageStatus
from orchestrator.stage.together import at_once
from orchestrator.timeouts import Timeouts
from orchestrator.vocabulary import Vocabulary
from orchestrator.wire_encoding import AUTO, WireEncoding
from worker.protocol.errors import ErrorCode, ProtocolError
from worker.protocol.ops import (
    Detokenize,
    HiddenReply,
    Ping,
    Release,
    Reply,
    Request,
    RequestId,
    SampledReply,
    Sampling,
    Tokenize,
)
from worker.protocol.ops import Vocabulary as AskVocabulary
from worker.protocol.ready import Ready

R = TypeVar("R", bound=Reply)

_PING_ID = "stageline:alive"


class Stages:
    """Ordered stages; use `async with await Stages.start(…)`, or owe it an `aclose`.

    A lost stage is started again and sent what it was sent before, as the policy allows; the ops
    that wait for it notice nothing but the time.
    """

    def __init__(
        self,
        specs: Sequence[StageSpec],
        crew: Crew,
        wire_encoding: str = AUTO,
        links: str = STAR,
    ) -> None:
        self._crew = crew
        self._facts: PipelineFacts | None = None
        self._asked_encoding = wire_encoding
        self._encoding: WireEncoding | None = None
        self._freeing: set[asyncio.Task[None]] = set()
        self._seats = tuple(
            Seat(spec, crew, self._replay_of(index, len(specs))) for index, spec in enumerate(specs)
        )
        self._links = Links(self._seats, links, crew.on_notice)
        self._scheduler = Scheduler(
            self._seats, crew, lambda: self.facts, self._encoding_of, self._links
        )

    @staticmethod
    async def start(
        specs: Sequence[StageSpec],
        *,
        recorder: Recorder | None = None,
        timeouts: Timeouts | None = None,
        on_status: Callable[[StageStatus], None] = lambda status: None,
        policy: RecoveryPolicy = NO_RECOVERY,
        spares: Sequence[SpareSlot] = (),
        on_notice: Callable[[str], None] = lambda text: None,
        wire_encoding: str = AUTO,
        links: str = STAR,
    ) -> Stages:
        """Start every stage at once and wait until all serve.

        Args:
            specs: what to start.
            recorder: takes every fact.
            timeouts: every deadline.
            on_status: told of each stage's phases and events until all serve, then of those that
                are started again, until they serve.
            policy: how hard to try to bring a lost stage back; also while they start.
            spares: where a stage may go when its host is lost.
            on_notice: takes a line for the user for each lost stage and each that is back.
            wire_encoding: of hidden states; see `WireEncoding`.
            links: which stages hand hidden states straight on; see `Links`.

        Raises:
            StageFailure: the first that was noticed; the other stages have been ended.
            PipelineMismatch: they do not make one model, or one does not know the encoding; all
                have been ended.
        """
        crew = Crew(
            len(specs),
            recorder=recorder or NoRecorder(),
            timeouts=timeouts or Timeouts(),
            on_status=on_status,
            policy=policy,
            spares=spares,
            on_notice=on_notice,
        )
        pipeline = Stages(specs, crew, wire_encoding, links)
        try:
            await pipeline._open()
        except StageFailure as failure:
            await pipeline.aclose()
            raise (pipeline.failure or failure) from None
        except BaseException:
            await pipeline.aclose()
            raise
        return pipeline

    @property
    def facts(self) -> PipelineFacts:
        """What the stages together are, as they were when all served first."""
        assert self._facts is not None, "a pipeline that is not started has no facts"
        return self._facts

    @property
    def stages(self) -> tuple[StageClient, ...]:
        """The newest stage of each place."""
        return tuple(seat.client for seat in self._seats)

    @property
    def hosts(self) -> tuple[str, ...]:
        """The label of each stage's host, as it is now."""
        return tuple(seat.spec.host for seat in self._seats)

    @property
    def ready(self) -> tuple[Ready, ...]:
        """The newest ready line of each stage."""
        return tuple(seat.ready for seat in self._seats if seat.ready is not None)

    @property
    def states(self) -> tuple[SeatState, ...]:
        """Whether each stage serves, is being brought back, or neither."""
        return tuple(seat.state for seat in self._seats)

    @property
    def encodings_used(self) -> tuple[str, ...]:
        """The encodings that hidden states have had on the wire so far."""
        return () if self._encoding is None else tuple(sorted(self._encoding.used))

    @property
    def links_live(self) -> tuple[bool, ...]:
        """For each stage but the last, whether it hands hidden states straight on."""
        return self._links.live

    @property
    def failure(self) -> StageFailure | None:
        """The first failure of any stage that is not recovered: the cause of those after it."""
        return self._crew.failures[0] if self._crew.failures else None

    @property
    def recoveries(self) -> Sequence[RecoveryRecord]:
        """Every attempt to bring a stage back, in the order of their ends."""
        return self._crew.recoveries

    @property
    def peak_history_bytes(self) -> int:
        """The most hidden states that were ever held for replay."""
        return self._crew.history.peak_bytes

    @property
    def links_s(self) -> float:
        """What the links take of one pass through all stages, as far as is known."""
        return self._scheduler.links_s

    def history_bytes(self, rid: RequestId) -> int:
        """Return the hidden states that are held of a request for replay."""
        return self._crew.history.bytes_of(rid)

    async def tokenize(
        self,
        rid: RequestId,
        prompt: str | None = None,
        messages: Sequence[dict[str, Any]] | None = None,
        *,
        tools: Sequence[dict[str, Any]] | None = None,
        template_options: dict[str, Any] | None = None,
    ) -> tuple[int, ...]:
        """Return the token ids of a prompt, or of messages through the chat template.

        Raises:
            OpRejected, StageFailure, ConnectionError: see `Seat.ask`.
        """
        request = Tokenize(
            request_id=rid,
            prompt=prompt,
            messages=None if messages is None else tuple(messages),
            tools=None if tools is None else tuple(tools),
            template_options=template_options,
        )
        return (await self._ask(0, request)).tokens

    async def detokenize(
        self, rid: RequestId, tokens: Sequence[int], *, show_special: bool = False
    ) -> str:
        """Return the text of token ids; that of special tokens only where it is asked for.

        Raises:
            OpRejected, StageFailure, ConnectionError: see `Seat.ask`.
        """
        request = Detokenize(request_id=rid, tokens=tuple(tokens), show_special=show_special)
        return (await self._ask(-1, request)).text

    async def vocabulary(self, rid: RequestId = "stageline:vocabulary") -> Vocabulary:
        """Return what every token id stands for; some megabytes, so ask once.

        Raises:
            OpRejected: there is no tokenizer, or the reply is wrong.
            StageFailure, ConnectionError: see `Seat.ask`.
        """
        reply = await self._ask(0, AskVocabulary(request_id=rid))
        try:
            return Vocabulary.of(reply)
        except ProtocolError as error:
            spec, code = self._seats[0].spec, str(ErrorCode.INTERNAL)
            raise OpRejected(spec.stage, spec.host, AskVocabulary.op, code, error.text) from None

    async def forward(
        self,
        rid: RequestId,
        tokens: Sequence[int],
        position: int,
        sampling: Sampling | None,
        *,
        scoring: Scoring | None = None,
        timeout_s: float | None = None,
    ) -> SampledReply:
        """Run tokens through every stage.

        Args:
            rid: names the KV cache on each stage; what was sent is kept until its `release`.
            tokens: ids of consecutive tokens; one at position > 0 is a decode step.
            position: absolute index of the first.
            sampling: how to choose the next token; None chooses none (a prefill chunk).
            scoring: tokens to be scored.
            timeout_s: for each stage's op.

        Raises:
            OpRejected, StageFailure, ConnectionError: see `Seat.ask`.
        """
        chunk = Chunk(tuple(tokens), position)
        return await self._scheduler.forward(
            rid, chunk, sampling, scoring=scoring, timeout_s=timeout_s
        )

    async def prefill(
        self,
        rid: RequestId,
        tokens: Sequence[int],
        chunk_tokens: int,
        sampling: Sampling | None,
        *,
        timeout_s: float | None = None,
    ) -> SampledReply:
        """Run a prompt from position 0 in chunks; the last one chooses the first token.

        Args:
            rid: see `forward`.
            tokens: ids of the prompt.
            chunk_tokens: tokens of every chunk but the last.
            sampling: how to choose the token.
            timeout_s: for each stage's op.

        Raises:
            OpRejected, StageFailure, ConnectionError: see `Seat.ask`.
        """
        chunks = [
            Chunk(tuple(tokens[start : start + chunk_tokens]), start)
            for start in range(0, len(tokens), chunk_tokens)
        ]
        return await self.run(rid, chunks, sampling, timeout_s=timeout_s)

    async def run(
        self,
        rid: RequestId,
        chunks: Sequence[Chunk],
        sampling: Sampling | None,
        *,
        timeout_s: float | None = None,
    ) -> SampledReply:
        """Run chunks that follow each other, several at once; the last one chooses a token.

        Args:
            rid: see `forward`.
            chunks: at least one; the first stands where the KV cache is to end before.
            sampling: how to choose the token.
            timeout_s: for each stage's op.

        Raises:
            OpRejected, StageFailure, ConnectionError: see `Seat.ask`.
        """
        return await self._scheduler.prefill(rid, chunks, sampling, timeout_s=timeout_s)

    async def verify(
        self,
        rid: RequestId,
        tokens: Sequence[int],
        position: int,
        sampling: Sampling,
        *,
        timeout_s: float | None = None,
    ) -> tuple[SampledReply, ...]:
        """Run tokens through every stage as decode steps and choose a token after each.

        Several calls for one request at consecutive positions may be under way; each stage gets
        them in the order of the calls. A cancelled one is sent to no further stage, and a later
        one at a lower position is right whatever was sent.

        Args:
            rid: see `forward`.
            tokens: ids of consecutive tokens.
            position: absolute index of the first, above 0.
            sampling: how to choose; its `penalty_tokens` include the first of `tokens`.
            timeout_s: for each stage's op.

        Raises:
            OpRejected, StageFailure, ConnectionError: see `Seat.ask`.
        """
        # One alone is a step like any other.
        chunk = Chunk(tuple(tokens), position, as_steps=len(tokens) > 1)
        reply = await self._scheduler.forward(
            rid, chunk, sampling, each=chunk.as_steps, timeout_s=timeout_s
        )
        if not chunk.as_steps:
            return (reply,)
        return replies_of_rows(self._seats[-1].spec, rid, len(tokens), reply)

    async def release(self, rid: RequestId) -> None:
        """Free the request's KV cache on every stage that lives, and forget what was sent."""
        self._scheduler.forget(rid)
        self._crew.history.forget(rid)
        await self._free(rid, len(self._seats))

    def rest(self, rid: RequestId) -> None:
        """Hear that a request is over and its KV caches are to stay; see `has_history`."""
        self._scheduler.forget(rid)
        self._crew.history.rest(rid)

    def wake(self, rid: RequestId) -> None:
        """Hear that the KV caches of a request that rests are used again."""
        self._crew.history.wake(rid)

    def has_history(self, rid: RequestId) -> bool:
        """Tell whether a request that rests can be gone on with: no stage was lost meanwhile."""
        return self._crew.history.has(rid)

    def was_rebuilt(self, rid: RequestId) -> bool:
        """Tell whether a stage had freed its KV cache of a request, since it was woken."""
        return self._crew.history.was_rebuilt(rid)

    async def ping(self, stage: int) -> None:
        """Ask a stage whether it lives; a lost one is not brought back for that.

        Raises:
            StageFailure: it is lost at the moment, or for good.
            OpRejected, ConnectionError: see `StageClient.call`.
        """
        if (lost := self.failure or self._seats[stage].lost) is not None:
            raise lost
        await self._seats[stage].client.call(Ping(request_id=_PING_ID))

    async def revive(self, stage: int) -> None:
        """Wait until a stage serves; where it was given up, begin to bring it back again.

        Raises:
            OpRejected, StageFailure, ConnectionError: see `Seat.ask`.
        """
        await self._ask(stage, Ping(request_id=_PING_ID))

    def kill(self) -> None:
        """Send SIGKILL to every stage now; `aclose` is still owed."""
        self._crew.kill()

    async def aclose(self) -> None:
        """End every stage, all at once, each by its ladder; safe to call again."""
        left = [task for seat in self._seats if (task := seat.end()) is not None]
        await self._scheduler.aclose()
        await self._links.aclose()
        for task in self._freeing:
            task.cancel()
        try:
            if left or self._freeing:
                await asyncio.wait({*left, *self._freeing})
        finally:
            await self._crew.aclose()

    async def __aenter__(self) -> Stages:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()

    async def _open(self) -> None:
        await at_once(seat.open() for seat in self._seats)
        self._facts = facts_of([seat.spec for seat in self._seats], self.ready)
        self._encoding = WireEncoding(self._asked_encoding, self.hosts, self.ready)
        await self._links.open()
        self._crew.all_serve()

    async def _ask(self, index: int, request: Request[R], timeout_s: float | None = None) -> R:
        if self.failure is not None:
            raise self.failure  # not the symptom that this stage may show by now
        return await self._seats[index].ask(request, timeout_s)

    async def _through(
        self, rid: RequestId, chunk: Chunk, end: int, timeout_s: float | None = None
    ) -> HiddenReply:
        """Run a chunk through the stages `0:end` and return what comes out."""
        hidden = await self._ask(0, chunk.first_op(rid), timeout_s)
        self._crew.history.add(0, rid, chunk, None)
        with_tokens = self.facts.needs_tokens
        for index in range(1, end):
            encoding = self._encoding_of(index, chunk)
            request = chunk.middle_op(rid, hidden, with_tokens=with_tokens, encoding=encoding)
            given, hidden = hidden, await self._ask(index, request, timeout_s)
            self._crew.history.add(index, rid, chunk, given)
        return hidden

    def _encoding_of(self, index: int, chunk: Chunk) -> str:
        """Return how a stage shall encode what it replies to a chunk."""
        assert self._encoding is not None, "a pipeline that is not started runs nothing"
        return self._encoding.of(chunk, self._seats[index].client.received_bytes_s)

    async def _free(self, rid: RequestId, end: int) -> None:
        """Free a KV cache on the stages `0:end` that serve."""

        async def one(seat: Seat) -> None:
            # A lost stage has no cache any more, and a refusal changes nothing for the caller.
            with contextlib.suppress(StageFailure, OpRejected, ConnectionError):
                await seat.client.call(Release(request_id=rid))

        await asyncio.gather(*(one(seat) for seat in self._seats[:end] if seat.is_serving))

    def _free_replayed(self, rid: RequestId, *, end: int) -> None:
        """Forget a replay's own request and have its caches freed, in a task of the pipeline."""
        self._crew.history.forget(rid)
        task = asyncio.create_task(self._free(rid, end))
        self._freeing.add(task)
        task.add_done_callback(self._freeing.discard)

    def _replay_of(self, index: int, num_stages: int) -> Replay:
        return Replay(
            index,
            num_stages,
            self._crew.history,
            through=self._through,
            release=partial(self._free_replayed, end=index),
            facts=lambda: self.facts,
        )
