"""What an HTTP client is told when it does not get what it asked for, in OpenAI's shape."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from types import MappingProxyType
from typing import Any

from starlette.responses import JSONResponse

INVALID_REQUEST = "invalid_request_error"
SERVER_ERROR = "server_error"
NOTHING: Mapping[str, str] = MappingProxyType({})


class ApiError(Exception):
    """A request that is not answered. `str()` is one sentence for the client.

    Args:
        status: of the HTTP response, where that has not begun.
        message: the sentence.
        type: OpenAI's kind of error.
        code: OpenAI's name of the case, where it has one.
        param: the field of the body that is at fault, as `messages[0].role`.
        headers: more of the response's.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        type: str = INVALID_REQUEST,
        code: str | None = None,
        param: str | None = None,
        headers: Mapping[str, str] = NOTHING,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.type = type
        self.code = code
        self.param = param
        self.headers = headers

    def body(self) -> dict[str, Any]:
        """Return OpenAI's error object."""
        return {
            "error": {
                "message": self.message,
                "type": self.type,
                "param": self.param,
                "code": self.code,
            }
        }

    def response(self) -> JSONResponse:
        """Return the response that tells it."""
        return JSONResponse(self.body(), self.status, headers=dict(self.headers))


def refusal(param: str | None, message: str, *, code: str | None = None) -> ApiError:
    """Return the error of a body whose field `param` cannot be served as it is."""
    return ApiError(HTTPStatus.BAD_REQUEST, message, param=param, code=code)
