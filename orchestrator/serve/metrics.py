"""/metrics: for Prometheus."""

from __future__ import annotations

from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from orchestrator.serve.service import service_of


async def show_metrics(request: Request) -> Response:
    """Answer with every metric in the text format."""
    text = service_of(request).meters.text()
    # The type is given with its charset; Response would add another.
    return Response(text, headers={"Content-Type": CONTENT_TYPE_PLAIN_0_0_4})


ROUTE = Route("/metrics", show_metrics, methods=["GET"])
