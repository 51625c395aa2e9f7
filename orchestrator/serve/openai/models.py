"""GET /v1/models: the one model that is served."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse

from orchestrator.serve.errors import ApiError
from orchestrator.serve.service import Service, service_of

_OWNER = "stageline"


async def list_models(request: Request) -> JSONResponse:
    """Answer with the list of the one model."""
    return JSONResponse({"object": "list", "data": [_model(service_of(request))]})


async def show_model(request: Request) -> JSONResponse:
    """Answer with one model.

    Raises:
        ApiError: it is another one.
    """
    service = service_of(request)
    check_model(service, request.path_params["model"])
    return JSONResponse(_model(service))


def check_model(service: Service, name: str) -> None:
    """Refuse the name of a model that is not served.

    Raises:
        ApiError: it is not the name of the one that is.
    """
    if name != service.model_name:
        raise ApiError(
            HTTPStatus.NOT_FOUND,
            f"the model '{name:.200}' is not served here; the one that is: '{service.model_name}'",
            code="model_not_found",
            param="model",
        )


def _model(service: Service) -> dict[str, Any]:
    return {
        "id": service.model_name,
        "object": "model",
        "created": service.created_s,
        "owned_by": _OWNER,
        # As other servers tell it; OpenAI's own objects have nothing of the kind.
        "max_model_len": service.pipeline.facts.max_context,
    }
