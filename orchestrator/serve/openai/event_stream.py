"""Answers as server-sent events while they come."""

from __future__ import annotations

import json
import traceback
from collections.abc import Sequence
from http import HTTPStatus
from typing import Any

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from orchestrator.serve.errors import SERVER_ERROR, ApiError
from orchestrator.serve.openai.choices import Choices
from orchestrator.serve.openai.delta import Delta
from orchestrator.serve.openai.failure import api_error_of
from orchestrator.serve.openai.plan import Plan
from orchestrator.serve.openai.presence import while_present
from orchestrator.serve.service import Service
from orchestrator.stderr import say

# Proxies cut connections on which nothing comes, many of them after a minute, some after 30 s.
KEEP_ALIVE_S = 15.0
_KEEP_ALIVE = b": still working\n\n"
_DONE = b"data: [DONE]\n\n"
_HEADERS = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-cache",
    "X-Accel-Buffering": "no",  # nginx would collect events before it sends them on.
}


class EventStream(Response):
    """Sends the answers of a plan; the status is held back until something is known of them.

    So what fails before the first token has an error status. What fails later ends the stream with
    an error event, and then there is neither a reason of the end nor `[DONE]`.
    """

    def __init__(
        self, service: Service, http: Request, plan: Plan, keep_alive_s: float = KEEP_ALIVE_S
    ) -> None:
        super().__init__(headers=_HEADERS)
        # What Starlette has set for an empty body.
        del self.headers["content-length"]
        self._service = service
        self._http = http
        self._plan = plan
        self._keep_alive_s = keep_alive_s
        self._has_begun = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send everything, or end the work when the client goes away."""
        try:
            await while_present(receive, self._send(scope, receive, send))
        except ClientDisconnect:
            return  # Nobody is there to be told.

    async def _send(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self._send_answers(send)
            plan = self._plan
            if plan.include_usage:
                await self._put(send, _events([plan.reply.usage_chunk(plan.usage.body())]))
            await self._put(send, _DONE)
        except Exception as error:  # noqa: BLE001 - the client is told, the operator where unforeseen.
            told = api_error_of(error) or _unforeseen(error)
            if not self._has_begun:
                await told.response()(scope, receive, send)
                return
            await self._put(send, _events([told.body()]))
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _send_answers(self, send: Send) -> None:
        async with Choices(self._service, self._http, self._plan.choices) as choices:
            while (deltas := await choices.next(self._keep_alive_s)) is not None:
                await self._put(send, self._laid_out(deltas) or _KEEP_ALIVE)

    def _laid_out(self, deltas: Sequence[Delta]) -> bytes:
        chunks: list[dict[str, Any]] = []
        for delta in deltas:
            self._plan.usage.take(delta)
            chunks += self._plan.reply.chunks(delta)
        return _events(chunks)

    async def _put(self, send: Send, data: bytes) -> None:
        if not self._has_begun:
            self._has_begun = True
            start = {"type": "http.response.start", "status": HTTPStatus.OK.value}
            await send({**start, "headers": self.raw_headers})
        await send({"type": "http.response.body", "body": data, "more_body": True})


def _events(objects: Sequence[dict[str, Any]]) -> bytes:
    return b"".join(
        b"data: %s\n\n"
        % json.dumps(one, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
        for one in objects
    )


def _unforeseen(error: Exception) -> ApiError:
    say("".join(traceback.format_exception(error)))
    return ApiError(
        HTTPStatus.INTERNAL_SERVER_ERROR,
        f"an unexpected {type(error).__name__} in the server; its log has the traceback",
        type=SERVER_ERROR,
        code="internal",
    )
