"""The endpoints of OpenAI's interface."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from types import MappingProxyType

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from orchestrator.serve.openai.body import read_object
from orchestrator.serve.openai.chat_plan import plan_chat
from orchestrator.serve.openai.chat_request import read_chat_request
from orchestrator.serve.openai.completion_plan import plan_completion
from orchestrator.serve.openai.completion_request import read_completion_request
from orchestrator.serve.openai.event_stream import EventStream
from orchestrator.serve.openai.failure import api_error_of
from orchestrator.serve.openai.models import check_model, list_models, show_model
from orchestrator.serve.openai.plan import Plan
from orchestrator.serve.openai.presence import while_present
from orchestrator.serve.openai.room import check_room
from orchestrator.serve.openai.whole import whole_response
from orchestrator.serve.service import Service, service_of


async def complete_chat(http: Request) -> Response:
    """Answer POST /v1/chat/completions.

    Raises:
        ApiError: it is not answered.
        ClientDisconnect: nobody waits for the answer any more.
    """
    service = service_of(http)
    body = await read_object(http, service.limits.max_body_bytes)
    request = read_chat_request(body, service.limits)
    check_model(service, request.model)
    check_room(service.desk, request.asked.n)
    return await _answered(service, http, lambda: plan_chat(service, request))


async def complete_text(http: Request) -> Response:
    """Answer POST /v1/completions.

    Raises:
        ApiError: it is not answered.
        ClientDisconnect: nobody waits for the answer any more.
    """
    service = service_of(http)
    body = await read_object(http, service.limits.max_body_bytes)
    request = read_completion_request(body, service.limits)
    check_model(service, request.model)
    check_room(service.desk, request.asked.n, len(request.prompts))
    return await _answered(service, http, lambda: plan_completion(service, request))


async def _answered(
    service: Service, http: Request, make_plan: Callable[[], Awaitable[Plan]]
) -> Response:
    async def work() -> Response:
        plan = await make_plan()
        if plan.stream:
            return EventStream(service, http, plan)
        return await whole_response(service, http, plan)

    try:
        return await while_present(http.receive, work())
    except Exception as error:
        told = api_error_of(error)
        if told is None:
            raise
        raise told from error


ROUTES = (
    Route("/v1/models", list_models, methods=["GET"]),
    Route("/v1/models/{model:path}", show_model, methods=["GET"]),
    Route("/v1/chat/completions", complete_chat, methods=["POST"]),
    Route("/v1/completions", complete_text, methods=["POST"]),
)
# OpenAI's newer interface, which clients may ask for first.
INSTEAD = MappingProxyType({"/responses": "/v1/chat/completions"})
