"""The app: the routes of one stage, what stands before them, and how failures are told."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from http import HTTPStatus
from typing import cast

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from orchestrator.failures import OpRejected, StageFailure
from orchestrator.serve.cross_origin import cross_origin
from orchestrator.serve.desk import Busy, Desk, Draining
from orchestrator.serve.errors import SERVER_ERROR, ApiError
from orchestrator.serve.guard import Guard, Rules
from orchestrator.serve.limits import Limits
from orchestrator.serve.openai.body import parse_object, read_bytes
from orchestrator.serve.told import error_handlers
from orchestrator.stage_http.forward import Forward
from orchestrator.stage_http.headers import ALL_HEADERS, POSITION, SESSION, read_headers
from orchestrator.stage_http.one_stage import OneStage
from orchestrator.stage_http.prompt_body import check_names, read_prompt, token_ids
from worker.protocol.schema import ErrorCode

HEALTH_PATH = "/health"
_REJECTED = {
    ErrorCode.BAD_FIELD: HTTPStatus.BAD_REQUEST,
    ErrorCode.MISSING_FIELD: HTTPStatus.BAD_REQUEST,
    ErrorCode.CONTEXT_FULL: HTTPStatus.BAD_REQUEST,
    ErrorCode.WRONG_ROLE: HTTPStatus.BAD_REQUEST,
    ErrorCode.NO_SESSION: HTTPStatus.CONFLICT,
    ErrorCode.BAD_POSITION: HTTPStatus.CONFLICT,
    ErrorCode.OUT_OF_MEMORY: HTTPStatus.SERVICE_UNAVAILABLE,
}
_AT_FAULT = {ErrorCode.NO_SESSION: SESSION, ErrorCode.BAD_POSITION: POSITION}


@dataclass(frozen=True, slots=True, kw_only=True)
class StageService:
    """What the handlers share."""

    stage: OneStage
    forward: Forward
    desk: Desk
    limits: Limits
    model_name: str


def build_app(service: StageService, rules: Rules) -> Starlette:
    """Return the ASGI app."""
    routes = [
        Route("/forward", _forward, methods=["POST"]),
        Route("/tokenize", _tokenize, methods=["POST"]),
        Route("/detokenize", _detokenize, methods=["POST"]),
        Route("/sessions/{name}", _release, methods=["DELETE"]),
        Route("/stage", _describe, methods=["GET"]),
        Route(HEALTH_PATH, _health, methods=["GET"]),
    ]
    app = Starlette(
        routes=routes,
        middleware=[
            *cross_origin(rules.origins, ("GET", "POST", "DELETE"), ALL_HEADERS),
            Middleware(Guard, rules=rules),
        ],
        exception_handlers=error_handlers([one.path for one in routes]),
    )
    app.state.service = service
    return app


async def _forward(request: Request) -> Response:
    given = read_headers(request.headers)
    service = _service(request)
    async with _admitted(request):
        return await service.forward.answer(given, _kind(request), await _body(request))


async def _tokenize(request: Request) -> Response:
    _need_role(request, is_there=_service(request).stage.layers.is_first, role="first")
    async with _admitted(request):
        prompt = read_prompt(_kind(request), await _body(request))
        return JSONResponse({"tokens": await _service(request).forward.tokenize(prompt)})


async def _detokenize(request: Request) -> Response:
    _need_role(request, is_there=_service(request).stage.layers.is_last, role="last")
    async with _admitted(request):
        fields = parse_object(await _body(request))
        check_names(fields, ("tokens",))
        tokens = token_ids(fields.get("tokens"))
        return JSONResponse({"text": await _service(request).forward.detokenize(tokens)})


async def _release(request: Request) -> Response:
    async with _admitted(request):
        name = request.path_params["name"]
        return JSONResponse({"released": await _service(request).forward.release(name)})


async def _describe(request: Request) -> Response:
    service = _service(request)
    ready, layers = service.stage.ready, service.stage.layers
    return JSONResponse(
        {
            "model": service.model_name,
            "layers": [layers.shard_start, layers.shard_end],
            "num_layers": layers.num_layers,
            "roles": sorted(layers.roles),
            "hidden_dim": ready.hidden_dim,
            "hidden_dtype": ready.hidden_dtype,
            "vocab_size": ready.vocab_size,
            "eos_token_ids": ready.eos_token_ids,
            "max_context": ready.max_context,
            "max_rows": service.forward.most_rows,
            "needs_tokens": ready.needs_tokens,
            "quantization": ready.quantization,
            "device": ready.device,
        }
    )


async def _health(request: Request) -> Response:
    service = _service(request)
    if service.desk.is_draining:
        state = "draining"
    else:
        state = "ok" if await service.stage.is_well() else "lost"
    status = HTTPStatus.OK if state == "ok" else HTTPStatus.SERVICE_UNAVAILABLE
    return JSONResponse({"status": state}, status, headers={"Cache-Control": "no-store"})


@contextlib.asynccontextmanager
async def _admitted(request: Request) -> AsyncIterator[None]:
    """Hold a place for the block; a failure of the stage is told as HTTP has it.

    Raises:
        ApiError: there is no place, or the stage has refused or is lost.
    """
    client: str = request.state.client
    try:
        async with _service(request).desk.place(client):
            yield
    except Busy as error:
        raise _retry(HTTPStatus.TOO_MANY_REQUESTS, error, "busy", error.retry_after_s) from None
    except Draining as error:
        raise _retry(
            HTTPStatus.SERVICE_UNAVAILABLE, error, "draining", error.retry_after_s
        ) from None
    except (StageFailure, ConnectionError) as error:
        raise _retry(HTTPStatus.SERVICE_UNAVAILABLE, error, "stage_lost", 5) from None
    except OpRejected as error:
        raise _rejected(error) from None


def _rejected(error: OpRejected) -> ApiError:
    status = next(
        (status for code, status in _REJECTED.items() if code == error.code),
        HTTPStatus.INTERNAL_SERVER_ERROR,
    )
    if status == HTTPStatus.INTERNAL_SERVER_ERROR:
        return ApiError(status, str(error), type=SERVER_ERROR, code=error.code)
    param = next((name for code, name in _AT_FAULT.items() if code == error.code), None)
    return ApiError(status, error.text, code=error.code, param=param)


def _retry(status: HTTPStatus, error: Exception, code: str, after_s: int) -> ApiError:
    headers = {"Retry-After": str(after_s)}
    return ApiError(status, str(error), type=SERVER_ERROR, code=code, headers=headers)


def _need_role(request: Request, *, is_there: bool, role: str) -> None:
    if not is_there:
        layers = _service(request).stage.layers
        raise ApiError(
            HTTPStatus.BAD_REQUEST,
            f"{request.url.path} is served by the {role} stage; this one holds layers {layers} of "
            f"{layers.num_layers}",
            code=ErrorCode.WRONG_ROLE,
        )


def _kind(request: Request) -> str:
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


async def _body(request: Request) -> bytes:
    limits = _service(request).limits
    try:
        async with asyncio.timeout(limits.receive_timeout_s):
            return await read_bytes(request, limits.max_body_bytes)
    except TimeoutError:
        raise ApiError(
            HTTPStatus.REQUEST_TIMEOUT,
            f"the body was not here after {limits.receive_timeout_s:g} s; send it faster",
            code="request_timeout",
            headers={"Connection": "close"},
        ) from None


def _service(request: Request) -> StageService:
    return cast(StageService, request.app.state.service)
