"""Op -> composition of backend primitives; written once for every backend."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

from worker.backends.base import StageBackend
from worker.forwards import Forwarded, Forwards, as_embedding
from worker.op_failures import OpFailures
from worker.protocol.ops import (
    DecodeStep,
    Detokenize,
    EmbedAndForward,
    Environment,
    ForwardAndSample,
    ForwardRange,
    GeneratedReply,
    GenerateFull,
    Ping,
    PongReply,
    Release,
    ReleasedReply,
    Reply,
    Request,
    Shutdown,
    ShutdownReply,
    TextReply,
    Together,
    TogetherReply,
    Tokenize,
    TokensReply,
    Vocabulary,
    VocabularyReply,
)
from worker.protocol.payload import encode_base64
from worker.protocol.roles import StageIdentity
from worker.protocol.schema import ErrorCode, ProtocolError
from worker.protocol.stage import StageSlice
from worker.protocol.together import join_replies, split_requests
from worker.sessions import Sessions
from worker.stopwatch import Stopwatch

A = TypeVar("A")


class Handlers(Generic[A]):
    """What each op does on this stage."""

    def __init__(self, own: StageSlice, backend: StageBackend[A], sessions: Sessions) -> None:
        self._slice = own
        self._backend = backend
        self._sessions = sessions
        self._forwards = Forwards(own, backend, sessions)
        self.failures = OpFailures(sessions.release)
        self._by_request: dict[type[Request[Any]], Callable[[Any, Stopwatch], Reply]] = {
            Tokenize: self._tokenize,
            EmbedAndForward: self._forwards.one,
            DecodeStep: lambda request, timed: self._forwards.one(as_embedding(request), timed),
            ForwardRange: self._forwards.one,
            ForwardAndSample: self._forwards.one,
            Together: self._together,
            Detokenize: self._detokenize,
            GenerateFull: self._generate_full,
            Vocabulary: self._vocabulary,
            Release: self._release,
            Ping: lambda _request, _timed: PongReply(pong=True),
            Shutdown: lambda _request, _timed: ShutdownReply(shutting_down=True),
            Environment: _refuse_environment,
        }

    def handle(self, request: Request[Any], timed: Stopwatch) -> Reply:
        """Work on one request.

        Raises:
            ProtocolError: the request cannot be served; nothing changed.
            OutOfDeviceMemory: the device had no memory; see `OpFailures`.
        """
        return self._by_request[type(request)](request, timed)

    def _tokenize(self, request: Tokenize, timed: Stopwatch) -> TokensReply:
        with timed("tokenize"):
            tokens = self._backend.tokenize(
                request.prompt, request.messages, request.tools, request.template_options
            )
        return TokensReply(tokens=tuple(tokens))

    def _detokenize(self, request: Detokenize, timed: Stopwatch) -> TextReply:
        self._backend.check_tokens(request.tokens)
        with timed("detokenize"):
            text = self._backend.detokenize(request.tokens, show_special=request.show_special)
        return TextReply(text=text)

    def _vocabulary(self, request: Vocabulary, timed: Stopwatch) -> VocabularyReply:
        with timed("vocabulary"):
            known = self._backend.vocabulary()
            return VocabularyReply(
                token_lengths=tuple(map(len, known.pieces)),
                special_tokens=known.special_tokens,
                chat_template=known.chat_template,
                tokens_b64=encode_base64(b"".join(known.pieces)),
            )

    def _together(self, request: Together, timed: Stopwatch) -> TogetherReply:
        parts = split_requests(request, StageIdentity(self._slice))
        own = [_forwarded(part) for part in parts]
        asked = [part for part in own if not isinstance(part, ProtocolError)]
        timed.requests, timed.rows = len(parts), sum(map(_rows, asked))
        found = iter(self._forwards.together(asked, timed))
        answers = [part if isinstance(part, ProtocolError) else next(found) for part in own]
        return join_replies(
            [
                self._told(part, answer, timed) if isinstance(answer, Exception) else answer
                for part, answer in zip(parts, answers, strict=True)
            ]
        )

    def _told(
        self, part: Request[Any] | ProtocolError, error: Exception, timed: Stopwatch
    ) -> ProtocolError:
        if isinstance(part, ProtocolError):
            return part
        told, event = self.failures.told(part, error)
        if event is not None:
            timed.tracebacks.append(event)
        return told

    def _generate_full(self, request: GenerateFull, timed: Stopwatch) -> GeneratedReply:
        with timed("generate"):
            tokens = self._backend.generate(
                request.prompt, request.max_tokens, request.prefill_chunk, request.ignore_eos
            )
        return GeneratedReply(tokens=tuple(tokens))

    def _release(self, request: Release, timed: Stopwatch) -> ReleasedReply:
        return ReleasedReply(released=self._sessions.release(request.request_id))


def _refuse_environment(_request: Environment, _timed: Stopwatch) -> Reply:
    raise ProtocolError(
        ErrorCode.UNKNOWN_OP,
        "op 'environment' is taken before loading only: start the worker with --await-environment "
        "and send it as the first line",
    )


def _forwarded(part: Request[Any] | ProtocolError) -> Forwarded | ProtocolError:
    if isinstance(part, DecodeStep):
        return as_embedding(part)
    assert isinstance(part, EmbedAndForward | ForwardRange | ForwardAndSample | ProtocolError)
    return part


def _rows(request: Forwarded) -> int:
    if isinstance(request, EmbedAndForward):
        return len(request.tokens) // request.batch
    return request.seq_len
