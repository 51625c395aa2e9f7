"""Answers as one JSON object once all have ended."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import JSONResponse

from orchestrator.serve.openai.choices import Choices
from orchestrator.serve.openai.plan import Plan
from orchestrator.serve.service import Service


async def whole_response(service: Service, http: Request, plan: Plan) -> JSONResponse:
    """Return the response of a plan.

    Raises:
        Exception: an answer failed; see `Choice.deltas`.
    """
    async with Choices(service, http, plan.choices) as choices:
        while (deltas := await choices.next()) is not None:
            for delta in deltas:
                plan.usage.take(delta)
                plan.reply.take(delta)
    return JSONResponse(plan.reply.body(plan.usage.body()))
