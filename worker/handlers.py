"""Op -> composition of backend primitives; written once for every backend."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from worker.backends.base import KVCache, Placement, StageBackend
from worker.protocol.ops import (
    DecodeStep,
    Detokenize,
    EmbedAndForward,
    Environment,
    ForwardAndSample,
    ForwardRange,
    GeneratedReply,
    GenerateFull,
    HiddenReply,
    Ping,
    PongReply,
    Release,
    ReleasedReply,
    Reply,
    Request,
    RequestId,
    SampledReply,
    Shutdown,
    ShutdownReply,
    TextReply,
    Tokenize,
    TokensReply,
)
from worker.protocol.payload import decode_hidden, decode_mask, encode_base64
from worker.protocol.schema import ErrorCode, ProtocolError
from worker.protocol.stage import StageSlice
from worker.sessions import Sessions, Turn

A = TypeVar("A")
_Forwarded = EmbedAndForward | ForwardRange | ForwardAndSample


@dataclass(slots=True)
class Stopwatch:
    """Milliseconds of each primitive of one op."""

    compute_ms: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        """Time one primitive."""
        start_s = time.perf_counter()
        try:
            yield
        finally:
            took_ms = (time.perf_counter() - start_s) * 1000
            self.compute_ms[name] = round(self.compute_ms.get(name, 0) + took_ms, 3)


class Handlers(Generic[A]):
    """What each op does on this stage."""

    def __init__(self, own: StageSlice, backend: StageBackend[A], sessions: Sessions) -> None:
        self._slice = own
        self._backend = backend
        self._sessions = sessions
        self._by_request: dict[type[Request[Any]], Callable[[Any, Stopwatch], Reply]] = {
            Tokenize: self._tokenize,
            EmbedAndForward: self._embed_and_forward,
            DecodeStep: self._decode_step,
            ForwardRange: self._forward_range,
            ForwardAndSample: self._forward_and_sample,
            Detokenize: self._detokenize,
            GenerateFull: self._generate_full,
            Release: self._release,
            Ping: lambda _request, _timed: PongReply(pong=True),
            Shutdown: lambda _request, _timed: ShutdownReply(shutting_down=True),
            Environment: _refuse_environment,
        }

    def handle(self, request: Request[Any], timed: Stopwatch) -> Reply:
        """Work on one request.

        Raises:
            ProtocolError: the request cannot be served; nothing changed.
            OutOfDeviceMemory: the device had no memory; see `drop`.
        """
        return self._by_request[type(request)](request, timed)

    def drop(self, request_id: RequestId) -> None:
        """Free the session of a request that ran out of memory."""
        self._sessions.release(request_id)

    def _tokenize(self, request: Tokenize, timed: Stopwatch) -> TokensReply:
        with timed("tokenize"):
            return TokensReply(
                tokens=tuple(self._backend.tokenize(request.prompt, request.messages))
            )

    def _detokenize(self, request: Detokenize, timed: Stopwatch) -> TextReply:
        self._backend.check_tokens(request.tokens)
        with timed("detokenize"):
            return TextReply(text=self._backend.detokenize(request.tokens))

    def _decode_step(self, request: DecodeStep, timed: Stopwatch) -> HiddenReply:
        step = EmbedAndForward(
            request_id=request.request_id, tokens=(request.token_id,), position=request.position
        )
        return self._embed_and_forward(step, timed)

    def _embed_and_forward(self, request: EmbedAndForward, timed: Stopwatch) -> HiddenReply:
        batch = request.batch
        placement = self._place(request, len(request.tokens) // batch)
        self._backend.check_tokens(request.tokens)
        mask = decode_mask(request.attention_mask_b64, batch, placement.seq_len)
        with timed("embed"):
            inputs = self._backend.embed(request.tokens, placement)
        with self._run(request, inputs, placement, mask, timed) as (outputs, placed):
            return self._hidden_reply(outputs, placed, timed)

    def _forward_range(self, request: ForwardRange, timed: Stopwatch) -> HiddenReply:
        placement = self._place(request, request.seq_len)
        inputs, mask = self._load(request, timed)
        with self._run(request, inputs, placement, mask, timed) as (outputs, placed):
            return self._hidden_reply(outputs, placed, timed)

    def _forward_and_sample(self, request: ForwardAndSample, timed: Stopwatch) -> SampledReply:
        placement = self._place(request, request.seq_len)
        inputs, mask = self._load(request, timed)
        self._backend.check_tokens((request.penalty_tokens or ()) + (request.suppress_tokens or ()))
        if self._slice.is_whole:
            # The layers and the cache have had these rows in embed_and_forward.
            with timed("forward"):
                outputs = self._forward(request)(inputs, None, placement)
            return self._sampled_reply(request, outputs, placement, timed)
        with self._run(request, inputs, placement, mask, timed) as (outputs, placed):
            return self._sampled_reply(request, outputs, placed, timed)

    def _generate_full(self, request: GenerateFull, timed: Stopwatch) -> GeneratedReply:
        with timed("generate"):
            tokens = self._backend.generate(
                request.prompt, request.max_tokens, request.prefill_chunk, request.ignore_eos
            )
        return GeneratedReply(tokens=tuple(tokens))

    def _release(self, request: Release, timed: Stopwatch) -> ReleasedReply:
        return ReleasedReply(released=self._sessions.release(request.request_id))

    def _place(self, request: _Forwarded, seq_len: int) -> Placement:
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
            hidden = decode_hidden(request, facts.hidden_dim, facts.hidden_dtype)
            mask = decode_mask(request.attention_mask_b64, request.batch, request.seq_len)
            if request.tokens is not None:
                self._backend.check_tokens(request.tokens)
            return self._backend.load(hidden, request.tokens), mask

    @contextmanager
    def _run(
        self,
        request: _Forwarded,
        inputs: A,
        placement: Placement,
        mask: bytes | None,
        timed: Stopwatch,
    ) -> Iterator[tuple[A, Placement]]:
        """Run this stage's layers in the request's session, which keeps them if the block ends.

        When the forward or the block fails, the session is as it was.
        """
        forward, request_id = self._forward(request), request.request_id
        if not self._backend.keeps_caches:
            with timed("forward"):
                outputs = forward(inputs, None, placement)
            yield outputs, placement
            return
        turn = self._sessions.enter(
            request_id, placement.position, placement.batch, placement.seq_len, mask
        )
        placement = Placement(placement.position, placement.batch, placement.seq_len, _joined(turn))
        try:
            with timed("forward"):
                outputs = forward(inputs, turn.session.cache, placement)
            yield outputs, placement
        except BaseException:
            self._sessions.undo(turn)
            raise
        self._sessions.commit(request_id, turn)

    def _forward(self, request: _Forwarded) -> Callable[[A, KVCache | None, Placement], A]:
        return self._backend.forward_steps if request.as_steps else self._backend.forward

    def _hidden_reply(self, outputs: A, placement: Placement, timed: Stopwatch) -> HiddenReply:
        with timed("dump"):
            hidden = self._backend.dump(outputs, placement)
            usual = (1, placement.seq_len, self._backend.facts.hidden_dim)
            return HiddenReply(
                seq_len=placement.seq_len,
                hidden_shape=None if hidden.shape == usual else hidden.shape,
                hidden_dtype=hidden.dtype,
                hidden_b64=encode_base64(hidden.data),
            )

    def _sampled_reply(
        self, request: ForwardAndSample, outputs: A, placement: Placement, timed: Stopwatch
    ) -> SampledReply:
        if not request.sample:
            return SampledReply()
        if request.as_steps:
            placement = placement.step(placement.seq_len - 1)
        with timed("sample"):
            sampled = self._backend.sample(outputs, request, placement)
        return SampledReply(
            token_id=sampled.token_ids[0],
            token_ids=sampled.token_ids if request.batch > 1 else None,
            logprob=sampled.logprob,
            top_tokens=sampled.top_tokens,
            top_logprobs=sampled.top_logprobs,
        )


def _refuse_environment(_request: Environment, _timed: Stopwatch) -> Reply:
    raise ProtocolError(
        ErrorCode.UNKNOWN_OP,
        "op 'environment' is taken before loading only: start the worker with --await-environment "
        "and send it as the first line",
    )


def _joined(turn: Turn) -> bytes | None:
    return None if turn.mask is None else b"".join(turn.mask)
