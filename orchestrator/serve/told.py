"""How whatever goes wrong in a handler is told to the client: always in one shape."""

from __future__ import annotations

import traceback
from collections.abc import Awaitable, Callable, Mapping, Sequence
from http import HTTPStatus

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from orchestrator.serve.absent import NOTHING, absent_path
from orchestrator.serve.errors import SERVER_ERROR, ApiError
from orchestrator.serve.traffic import GONE
from orchestrator.stderr import say

Handler = Callable[[Request, Exception], Awaitable[Response]]


def error_handlers(
    served: Sequence[str], instead: Mapping[str, str] = NOTHING
) -> Mapping[type[Exception], Handler]:
    """Return the handlers of an app; see `absent_path` for what they tell of other paths."""

    async def tell_http_error(request: Request, error: Exception) -> Response:
        """Tell what the router refuses: there is no such path, or not with this method."""
        assert isinstance(error, HTTPException)
        message = error.detail
        if error.status_code == HTTPStatus.NOT_FOUND:
            message = absent_path(request.url.path, served, instead)
        elif error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
            allowed = sorted((error.headers or {}).get("Allow", "another method").split(", "))
            use = ", ".join(allowed)
            message = f"{request.method} is not served at {request.url.path!r:.80}; use {use}"
        return ApiError(error.status_code, message, headers=error.headers or {}).response()

    return {
        ApiError: _tell_api_error,
        HTTPException: tell_http_error,
        ClientDisconnect: _tell_nobody,
        Exception: _tell_fault,
    }


async def _tell_api_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return error.response()


async def _tell_nobody(request: Request, error: Exception) -> Response:
    """Answer a client that is not there any more; the status is for the log and the metrics."""
    return Response(status_code=GONE)


async def _tell_fault(request: Request, error: Exception) -> Response:
    """Tell the client that it is not to blame, and the operator what happened."""
    say("".join(traceback.format_exception(error)))
    return ApiError(
        HTTPStatus.INTERNAL_SERVER_ERROR,
        f"an unexpected {type(error).__name__} in the server; its log has the traceback",
        type=SERVER_ERROR,
        code="internal",
    ).response()
