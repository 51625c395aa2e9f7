"""What a client is told of a failure further down."""

from __future__ import annotations

from http import HTTPStatus

from orchestrator.failures import OpRejected, StageFailure
from orchestrator.request import RequestRefused
from orchestrator.serve.desk import Busy, Draining
from orchestrator.serve.errors import SERVER_ERROR, ApiError, refusal
from orchestrator.serve.openai.prompt import TOO_LONG
from worker.protocol.errors import ErrorCode

_CLIENTS_FAULT = (ErrorCode.BAD_FIELD, ErrorCode.MISSING_FIELD, ErrorCode.CONTEXT_FULL)
# A stage that is lost may be back by then, a cache freed.
_RETRY_AFTER_S = "5"


def api_error_of(error: Exception) -> ApiError | None:
    """Return what the client is told; None where nothing of the kind was foreseen."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, Busy):
        return ApiError(
            HTTPStatus.TOO_MANY_REQUESTS,
            str(error),
            type="rate_limit_error",
            code="rate_limit_exceeded",
            headers={"Retry-After": str(error.retry_after_s)},
        )
    if isinstance(error, Draining):
        return _unavailable(str(error), "server_shutting_down", str(error.retry_after_s))
    if isinstance(error, RequestRefused):
        return refusal(None, str(error))
    if isinstance(error, OpRejected):
        return _rejected(error)
    if isinstance(error, StageFailure):
        return _unavailable(str(error), "stage_lost", _RETRY_AFTER_S)
    if isinstance(error, ConnectionError):
        return _unavailable(
            "the stages are being ended; try again once the server is back",
            "server_shutting_down",
            _RETRY_AFTER_S,
        )
    return None


def _rejected(error: OpRejected) -> ApiError:
    if error.code in _CLIENTS_FAULT:
        # Which stage said so, and to which op, is nothing that the client could mend.
        return refusal(
            None, error.text, code=TOO_LONG if error.code == ErrorCode.CONTEXT_FULL else None
        )
    if error.code == ErrorCode.OUT_OF_MEMORY:
        return _unavailable(str(error), "out_of_memory", _RETRY_AFTER_S)
    return ApiError(
        HTTPStatus.INTERNAL_SERVER_ERROR, str(error), type=SERVER_ERROR, code="stage_error"
    )


def _unavailable(sentence: str, code: str, retry_after_s: str) -> ApiError:
    return ApiError(
        HTTPStatus.SERVICE_UNAVAILABLE,
        sentence,
        type=SERVER_ERROR,
        code=code,
        headers={"Retry-After": retry_after_s},
    )
