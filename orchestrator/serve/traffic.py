"""Every request over HTTP on its way through: counted, logged where asked for, and timed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from http import HTTPStatus

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from orchestrator.serve.errors import ApiError
from orchestrator.serve.meters import Meters

OTHER_ROUTE = "other"
# As nginx counts a client that went away before it was answered.
GONE = 499


class Traffic:
    """An ASGI app that counts each request, and bounds the time that its body may take.

    Args:
        app: what answers.
        meters: where they are counted.
        routes: paths that are counted apart; all others are one.
        receive_timeout_s: for a whole body.
        log: takes a line for each request, without query, body or key; None: no lines.
    """

    def __init__(
        self,
        app: ASGIApp,
        meters: Meters,
        routes: frozenset[str],
        receive_timeout_s: float,
        log: Callable[[str], None] | None = None,
    ) -> None:
        self._app = app
        self._meters = meters
        self._routes = routes
        self._receive_timeout_s = receive_timeout_s
        self._log = log

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Hand the request on."""
        if scope["type"] != "http":
            return
        begun_s, status = time.perf_counter(), 0

        async def watched_send(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, _bounded(receive, self._receive_timeout_s), watched_send)
        except Exception:
            status = status or HTTPStatus.INTERNAL_SERVER_ERROR
            raise
        finally:
            self._count(scope, status, time.perf_counter() - begun_s)

    def _count(self, scope: Scope, status: int, duration_s: float) -> None:
        """Count it; status 0 is a client that went away before the answer began."""
        route = scope["path"] if scope["path"] in self._routes else OTHER_ROUTE
        self._meters.http_requests.labels(route, str(status or GONE)).inc()
        if self._log is not None:
            address = scope["client"][0] if scope["client"] else "-"
            method, path = scope["method"], scope["path"]
            self._log(f"{address} {method} {path!r} {status or GONE} {duration_s * 1e3:.0f} ms")


def _bounded(receive: Receive, timeout_s: float) -> Receive:
    """Return a `receive` that gives up on a body that takes too long as a whole."""
    deadline_s = asyncio.get_running_loop().time() + timeout_s
    is_whole = False

    async def bounded() -> Message:
        nonlocal is_whole
        if is_whole:  # What comes now is that the client goes away.
            return await receive()
        try:
            async with asyncio.timeout_at(deadline_s):
                message = await receive()
        except TimeoutError:
            raise ApiError(
                HTTPStatus.REQUEST_TIMEOUT,
                f"the body was not here after {timeout_s:g} s; send it faster",
                code="request_timeout",
                headers={"Connection": "close"},
            ) from None
        is_whole = message["type"] != "http.request" or not message.get("more_body", False)
        return message

    return bounded
