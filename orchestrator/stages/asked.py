"""What the stages are asked: texts for tokens, and tokens through all of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from orchestrator.chunk import Chunk, Scoring
from orchestrator.failures import OpRejected
from orchestrator.scheduler.rows import replies_of_rows
from orchestrator.stages.told import ToldStages
from orchestrator.vocabulary import Vocabulary
from worker.protocol.errors import ErrorCode, ProtocolError
from worker.protocol.ops import (
    Detokenize,
    RequestId,
    SampledReply,
    Sampling,
    Tokenize,
)
from worker.protocol.ops import Vocabulary as AskVocabulary


class AskedStages(ToldStages):
    """Answers by what the stages reply; an op that waits for a lost stage notices but the time."""

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
        return (await self._seats.ask(0, request)).tokens

    async def detokenize(
        self, rid: RequestId, tokens: Sequence[int], *, show_special: bool = False
    ) -> str:
        """Return the text of token ids; that of special tokens only where it is asked for.

        Raises:
            OpRejected, StageFailure, ConnectionError: see `Seat.ask`.
        """
        request = Detokenize(request_id=rid, tokens=tuple(tokens), show_special=show_special)
        return (await self._seats.ask(-1, request)).text

    async def vocabulary(self, rid: RequestId = "stageline:vocabulary") -> Vocabulary:
        """Return what every token id stands for; some megabytes, so ask once.

        Raises:
            OpRejected: there is no tokenizer, or the reply is wrong.
            StageFailure, ConnectionError: see `Seat.ask`.
        """
        reply = await self._seats.ask(0, AskVocabulary(request_id=rid))
        try:
            return Vocabulary.of(reply)
        except ProtocolError as error:
            spec, code = self._seats.all[0].spec, str(ErrorCode.INTERNAL)
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
        return replies_of_rows(self._seats.all[-1].spec, rid, len(tokens), reply)

    async def release(self, rid: RequestId) -> None:
        """Free the request's KV cache on every stage that lives, and forget what was sent."""
        self._scheduler.forget(rid)
        self._crew.history.forget(rid)
        await self._seats.free(rid, len(self._seats.all))

    def rest(self, rid: RequestId) -> None:
        """Hear that a request is over and its KV caches are to stay; see `has_history`."""
        self._scheduler.forget(rid)
        self._crew.history.rest(rid)

    def wake(self, rid: RequestId) -> None:
        """Hear that the KV caches of a request that rests are used again."""
        self._crew.history.wake(rid)
