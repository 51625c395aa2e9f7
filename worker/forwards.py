"""Ops that run layers: alone, or several requests in one pass; each leaves its session whole."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from worker.backends.base import Draw, Part, Placement, Sampled, StageBackend
from worker.protocol.ops import (
    DecodeStep,
    EmbedAndForward,
    ForwardAndSample,
    ForwardRange,
    HiddenReply,
    Reply,
    SampledReply,
)
from worker.protocol.payload import decode_hidden, decode_mask, encode_hidden
from worker.protocol.schema import ErrorCode, ProtocolError, to_fields
from worker.protocol.stage import StageSlice
from worker.sampled import is_scored, num_choices, options_of, sampled_reply, score_fields
from worker.sessions import Sessions, Turn
from worker.stopwatch import Stopwatch

A = TypeVar("A")
Forwarded = EmbedAndForward | ForwardRange | ForwardAndSample
# Fields of a last stage's op that name tokens.
_ABOUT_TOKENS = ("penalty_tokens", "suppress_tokens", "bias_tokens", "score_tokens")


@dataclass(frozen=True, slots=True)
class Job(Generic[A]):
    """One request on its way through the layers.

    Attributes:
        request: what was asked.
        part: its rows, where they stand, and its cache.
        turn: what the op may do to its session; None where there is none.
    """

    request: Forwarded
    part: Part[A]
    turn: Turn | None


class Forwards(Generic[A]):
    """What the ops that run layers do on this stage."""

    def __init__(self, own: StageSlice, backend: StageBackend[A], sessions: Sessions) -> None:
        self._slice = own
        self._backend = backend
        self._sessions = sessions

    def one(self, request: Forwarded, timed: Stopwatch) -> Reply:
        """Work on one request.

        Raises:
            Exception: as `Handlers.handle`; the session is as it was.
        """
        if request.as_steps:
            (answer,) = self._steps([request], timed)
            if isinstance(answer, Exception):
                raise answer
            return answer
        job = self._opened(request, timed)
        part = job.part
        with self._undone_if_it_fails([job]):
            # A chunk that asks for no token does without the head, which is large.
            every_row = is_scored(request) or not part.choices
            with timed("forward"):
                outputs = self._backend.forward(
                    part.inputs, part.cache, part.placement, every_row=every_row
                )
            reply = self._reply(job, outputs, timed)
        self._commit(job)
        return reply

    def together(self, requests: Sequence[Forwarded], timed: Stopwatch) -> list[Reply | Exception]:
        """Work on requests of one role, each of another session; steps share their passes.

        The exception stands in the place of a reply to a request that failed; its session is as
        it was.
        """
        steps = [i for i, request in enumerate(requests) if is_step(request)]
        answers: dict[int, Reply | Exception] = {}
        if steps:
            found = self._steps([requests[i] for i in steps], timed)
            answers.update(zip(steps, found, strict=True))
        for i, request in enumerate(requests):
            if i in answers:
                continue
            try:
                answers[i] = self.one(request, timed)
            except Exception as error:  # noqa: BLE001 - it is this request's, and no other's
                answers[i] = error
        return [answers[i] for i in range(len(requests))]

    def _steps(self, requests: Sequence[Forwarded], timed: Stopwatch) -> list[Reply | Exception]:
        answers: list[Reply | Exception | None] = [None] * len(requests)
        jobs: dict[int, Job[A]] = {}
        for i, request in enumerate(requests):
            try:
                jobs[i] = self._opened(request, timed)
            except Exception as error:  # noqa: BLE001 - it is this request's, and no other's
                answers[i] = error
        with self._undone_if_it_fails(list(jobs.values())):
            with timed("forward"):
                parts = [job.part for job in jobs.values()]
                found = dict(zip(jobs, self._backend.forward_together(parts), strict=True))
            chosen = self._choices(jobs, found, timed)
            for i, job in jobs.items():
                outputs = found[i]
                try:
                    if isinstance(outputs, Exception):
                        raise outputs
                    answers[i] = self._step_reply(job, outputs, chosen.get(i), timed)
                except Exception as error:  # noqa: BLE001 - as above
                    answers[i] = error
        for i, job in jobs.items():
            if isinstance(answers[i], Exception):
                self._undo(job)
        self._commit(*(job for i, job in jobs.items() if not isinstance(answers[i], Exception)))
        return [answer for answer in answers if answer is not None]

    def _choices(
        self, jobs: dict[int, Job[A]], found: dict[int, A | Exception], timed: Stopwatch
    ) -> dict[int, list[Sampled] | Exception]:
        """Choose the tokens of every job that asks for some, all at once."""
        draws: dict[int, Draw[A]] = {}
        for i, job in jobs.items():
            request, outputs, part = job.request, found[i], job.part
            if not isinstance(request, ForwardAndSample) or isinstance(outputs, Exception):
                continue
            if part.choices:
                first = part.placement.position + part.placement.seq_len - part.choices
                draws[i] = Draw(outputs, options_of(request, part.choices), first)
        if not draws:
            return {}
        with timed("sample"):
            return dict(zip(draws, self._backend.choose(list(draws.values())), strict=True))

    def _opened(self, request: Forwarded, timed: Stopwatch) -> Job[A]:
        """Take a request in, and enter its session."""
        seq_len = (
            len(request.tokens) // request.batch
            if isinstance(request, EmbedAndForward)
            else request.seq_len
        )
        placement = self._place(request, seq_len)
        if isinstance(request, EmbedAndForward):
            self._backend.check_tokens(request.tokens)
            mask = decode_mask(request.attention_mask_b64, request.batch, seq_len)
            with timed("embed"):
                inputs = self._backend.embed(request.tokens, placement)
        else:
            inputs, mask = self._load(request, timed)
        choices = 0
        if isinstance(request, ForwardAndSample):
            for name in _ABOUT_TOKENS:
                self._backend.check_tokens(getattr(request, name) or ())
            choices = num_choices(request)
            if self._slice.is_whole:
                # The layers and the cache have had these rows in embed_and_forward.
                return Job(request, Part(inputs, None, placement, choices), None)
        if not self._backend.keeps_caches:
            return Job(request, Part(inputs, None, placement, choices), None)
        turn = self._sessions.enter(
            request.request_id, placement.position, placement.batch, seq_len, mask
        )
        if turn.mask is not None:
            placement = replace(placement, attention_mask=b"".join(turn.mask))
        return Job(request, Part(inputs, turn.session.cache, placement, choices), turn)

    def _place(self, request: Forwarded, seq_len: int) -> Placement:
        """Return where the rows stand, within the context: on every stage, not the first alone."""
        limit = self._backend.facts.max_context
        if limit is not None and request.position + seq_len > limit:
            raise ProtocolError(
                ErrorCode.CONTEXT_FULL,
                f"position {request.position} + seq_len {seq_len} = {request.position + seq_len} "
                f"is past the context limit of {limit}: shorten the request",
            )
        return Placement(position=request.position, batch=request.batch, seq_len=seq_len)

    def _load(
        self, request: ForwardRange | ForwardAndSample, timed: Stopwatch
    ) -> tuple[A, bytes | None]:
        """Take in the hidden states and the mask of a message."""
        facts = self._backend.facts
        with timed("load"):
            hidden = decode_hidden(request, facts.hidden_dim, facts.hidden_dtype, facts.codings)
            mask = decode_mask(request.attention_mask_b64, request.batch, request.seq_len)
            if request.tokens is not None:
                self._backend.check_tokens(request.tokens)
            return self._backend.load(hidden, request.tokens), mask

    @contextmanager
    def _undone_if_it_fails(self, jobs: Sequence[Job[A]]) -> Iterator[None]:
        try:
            yield
        except BaseException:
            for job in jobs:
                self._undo(job)
            raise

    def _undo(self, job: Job[A]) -> None:
        if job.turn is not None:
            self._sessions.undo(job.turn)

    def _commit(self, *jobs: Job[A]) -> None:
        turns = [(job.request.request_id, job.turn) for job in jobs if job.turn is not None]
        self._sessions.commit(*turns)

    def _reply(self, job: Job[A], outputs: A, timed: Stopwatch) -> Reply:
        request, placement = job.request, job.part.placement
        if not isinstance(request, ForwardAndSample):
            return self._hidden_reply(request, outputs, placement, timed)
        reply = SampledReply()
        if request.sample:
            with timed("sample"):
                sampled = self._backend.sample(outputs, request, placement)
            reply = sampled_reply(sampled, request.batch)
        if not request.score_tokens:
            return reply
        with timed("score"):
            scored = self._backend.score(
                outputs, request.score_tokens, request.top_logprobs, placement
            )
        return replace(reply, scores=tuple(score_fields(one) for one in scored))

    def _step_reply(
        self, job: Job[A], outputs: A, chosen: list[Sampled] | Exception | None, timed: Stopwatch
    ) -> Reply:
        request = job.request
        if not isinstance(request, ForwardAndSample):
            return self._hidden_reply(request, outputs, job.part.placement, timed)
        if chosen is None:
            return SampledReply()
        if isinstance(chosen, Exception):
            raise chosen
        replies = [sampled_reply(sampled) for sampled in chosen]
        if not request.sample_steps:
            return replies[0]
        return SampledReply(steps=tuple(to_fields(reply) for reply in replies))

    def _hidden_reply(
        self,
        request: EmbedAndForward | ForwardRange,
        outputs: A,
        placement: Placement,
        timed: Stopwatch,
    ) -> HiddenReply:
        facts, encoding = self._backend.facts, request.reply_encoding
        with timed("dump"):
            hidden = self._backend.dump(outputs, placement)
            usual = (1, placement.seq_len, facts.hidden_dim)
            return HiddenReply(
                seq_len=placement.seq_len,
                hidden_shape=None if hidden.shape == usual else hidden.shape,
                hidden_dtype=hidden.dtype,
                hidden_encoding=encoding,
                hidden_b64=encode_hidden(hidden, encoding, facts.hidden_dim, facts.codings),
            )


def as_embedding(request: DecodeStep) -> EmbedAndForward:
    """Return a decode step as the op that it is a short form of."""
    return EmbedAndForward(
        request_id=request.request_id,
        tokens=(request.token_id,),
        position=request.position,
        reply_encoding=request.reply_encoding,
    )


def is_step(request: Forwarded) -> bool:
    """Say whether a request's rows are worked on one by one, as those of others may be beside it.

    One row at position 0 is a prefill.
    """
    if request.as_steps:
        return True
    if is_scored(request):
        return False
    rows = len(request.tokens) if isinstance(request, EmbedAndForward) else request.seq_len
    is_alone = request.batch == 1 and request.attention_mask_b64 is None
    return is_alone and rows == 1 and request.position > 0
