"""`POST /forward`: one message through the stage's layers."""

from __future__ import annotations

import base64
import contextlib
import itertools
from collections.abc import Iterator, Sequence
from http import HTTPStatus
from typing import Any

from starlette.responses import JSONResponse, Response

from orchestrator.failures import OpRejected
from orchestrator.serve.errors import ApiError, refusal
from orchestrator.stage_http.headers import (
    ATTN_MASK,
    POSITION,
    SESSION,
    SHAPE,
    Given,
    bad_header,
)
from orchestrator.stage_http.hidden_body import hidden_response, read_hidden
from orchestrator.stage_http.one_stage import OneStage
from orchestrator.stage_http.prompt_body import Prompt, read_prompt
from orchestrator.stage_http.rows import Rows, rows_of
from orchestrator.stage_http.sessions import Session, SessionBook
from worker.protocol.capabilities import Capability
from worker.protocol.errors import ErrorCode
from worker.protocol.ops import (
    Detokenize,
    EmbedAndForward,
    ForwardAndSample,
    ForwardRange,
    HiddenReply,
    Release,
    Tokenize,
)


class Forward:
    """Turns requests over HTTP into ops, and their replies into responses.

    A request without a session leaves nothing behind.

    Args:
        stage: what is asked.
        most_rows: of one message.
        most_sessions: KV caches that are kept for clients.

    Attributes:
        most_rows: as given.
    """

    def __init__(self, stage: OneStage, most_rows: int, most_sessions: int) -> None:
        self._stage = stage
        self.most_rows = most_rows
        self._sessions = SessionBook(most_sessions, lambda name: stage.free(_rid(name)))
        self._names = itertools.count()

    async def answer(self, given: Given, kind: str, body: bytes) -> Response:
        """Work on one message.

        Args:
            given: its headers.
            kind: its Content-Type, bare and in lower case.
            body: a prompt for the first stage, hidden states for every other.

        Raises:
            ApiError: it cannot be served as it is; nothing changed.
            OpRejected, StageFailure, ConnectionError: see `OneStage.ask`.
        """
        if given.session is None and given.position:
            raise bad_header(
                POSITION, f"is {given.position} without a {SESSION}: no KV cache is kept then"
            )
        with self._session(given) as (rid, session):
            if self._stage.layers.is_first:
                rows, hidden = await self._first(rid, given, session, read_prompt(kind, body))
            else:
                hidden = read_hidden(given, kind, body, self._stage.ready)
                rows = self._rows(given, session, hidden.seq_len, None)
            if self._stage.layers.is_last:
                response = await self._last(rid, given, rows, hidden)
            elif self._stage.layers.is_first:
                response = hidden_response(given, rows, hidden, self._stage.ready)
            else:
                request = ForwardRange(request_id=rid, **self._carried(rows, hidden))
                reply = await self._stage.ask(request)
                response = hidden_response(given, rows, reply, self._stage.ready)
            session.mask = rows.whole_mask
        return response

    async def tokenize(self, prompt: Prompt) -> tuple[int, ...]:
        """Return the token ids of a prompt.

        Raises:
            OpRejected, StageFailure, ConnectionError: see `OneStage.ask`.
        """
        if prompt.tokens is not None:
            return prompt.tokens
        request = Tokenize(
            request_id=self._new_rid(), prompt=prompt.prompt, messages=prompt.messages
        )
        with _blamed(prompt.field):
            return (await self._stage.ask(request)).tokens

    async def detokenize(self, tokens: Sequence[int]) -> str:
        """Return the text of token ids.

        Raises:
            OpRejected, StageFailure, ConnectionError: see `OneStage.ask`.
        """
        request = Detokenize(request_id=self._new_rid(), tokens=tuple(tokens))
        with _blamed("tokens"):
            return (await self._stage.ask(request)).text

    async def release(self, name: str) -> bool:
        """Free a session's KV cache; tell whether there was one.

        Raises:
            ApiError: 409: a request is working on it.
            OpRejected, StageFailure, ConnectionError: see `OneStage.ask`.
        """
        with self._sessions.taken(name):
            reply = await self._stage.ask(Release(request_id=_rid(name)))
        self._sessions.forget(name)
        return reply.released

    @contextlib.contextmanager
    def _session(self, given: Given) -> Iterator[tuple[str, Session]]:
        """Name a message's KV cache; one that nobody named is freed after it."""
        if given.session is not None:
            with self._sessions.taken(given.session) as session:
                yield _rid(given.session), session
            return
        rid = self._new_rid()
        try:
            yield rid, Session()
        finally:
            self._stage.free(rid)

    async def _first(
        self, rid: str, given: Given, session: Session, prompt: Prompt
    ) -> tuple[Rows, HiddenReply]:
        """Run a prompt through the embeddings and the layers."""
        if given.position and prompt.tokens is None:
            raise bad_header(
                POSITION, f"is {given.position}, and a text stands at 0: send 'tokens' after it"
            )
        if given.shape is not None or given.dtype is not None:
            raise bad_header(SHAPE, "and the dtype are of hidden states; a prompt has none")
        tokens = await self.tokenize(prompt)
        if not tokens:
            raise refusal(
                prompt.field, "the prompt has no tokens, it needs at least one: send more text"
            )
        rows = self._rows(given, session, len(tokens), tokens)
        request = EmbedAndForward(
            request_id=rid, tokens=tokens, position=rows.position, attention_mask_b64=_mask(rows)
        )
        with _blamed(prompt.field):
            return rows, await self._stage.ask(request)

    async def _last(self, rid: str, given: Given, rows: Rows, hidden: HiddenReply) -> Response:
        """Choose the token after the last row, greedily."""
        request = ForwardAndSample(request_id=rid, **self._carried(rows, hidden))
        token_id = (await self._stage.ask(request)).token_id
        assert token_id is not None, "a token was asked for"
        has_text = Capability.TOKENIZER in self._stage.ready.capabilities
        fields = {
            "token_id": token_id,
            "text": await self.detokenize((token_id,)) if has_text else None,
            "is_end": token_id in self._stage.ready.eos_token_ids,
            "position": rows.position + rows.count,
        }
        return JSONResponse(
            fields, headers={} if given.session is None else {SESSION: given.session}
        )

    def _carried(self, rows: Rows, hidden: HiddenReply) -> dict[str, Any]:
        """Return the fields of an op that takes hidden states."""
        return {
            "position": rows.position,
            "seq_len": rows.count,
            "tokens": rows.token_ids,
            "attention_mask_b64": _mask(rows),
            "hidden_shape": hidden.hidden_shape,
            "hidden_dtype": hidden.hidden_dtype,
            "hidden_b64": hidden.hidden_b64,
        }

    def _rows(
        self, given: Given, session: Session, count: int, tokens: Sequence[int] | None
    ) -> Rows:
        if count > self.most_rows:
            raise ApiError(
                HTTPStatus.BAD_REQUEST,
                f"the message has {count} rows, at most {self.most_rows} are taken at once: send "
                "it in pieces with a session, or start the stage with a higher --max-rows",
                code="too_many_rows",
            )
        rows = rows_of(given, count, tokens, session.mask)
        if rows.mask is not None and Capability.PADDING not in self._stage.ready.capabilities:
            raise bad_header(ATTN_MASK, "has a 0, and this stage takes no padding: leave it away")
        return rows

    def _new_rid(self) -> str:
        return f"once:{next(self._names)}"


@contextlib.contextmanager
def _blamed(field: str | None) -> Iterator[None]:
    """Name the field of the body that the worker refuses to take."""
    try:
        yield
    except OpRejected as rejected:
        if rejected.code != ErrorCode.BAD_FIELD:
            raise
        raise refusal(field, rejected.text, code=rejected.code) from None


def _rid(name: str) -> str:
    """Return what the worker calls a session; no name of a client can be one of our own."""
    return f"session:{name}"


def _mask(rows: Rows) -> bytes | None:
    return None if rows.mask is None else base64.b64encode(rows.mask)
