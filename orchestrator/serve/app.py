"""The app: every route, what stands before them, and how errors are told."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.routing import BaseRoute, Route

from orchestrator.serve import metrics
from orchestrator.serve.cross_origin import cross_origin
from orchestrator.serve.guard import Guard, Rules
from orchestrator.serve.health import Health, health_route
from orchestrator.serve.openai.routes import INSTEAD
from orchestrator.serve.openai.routes import ROUTES as OPENAI_ROUTES
from orchestrator.serve.page.routes import ROUTES as PAGE_ROUTES
from orchestrator.serve.service import Service
from orchestrator.serve.told import error_handlers
from orchestrator.serve.traffic import Traffic


def build_app(
    service: Service,
    health: Health,
    rules: Rules,
    *,
    log: Callable[[str], None] | None = None,
) -> Starlette:
    """Return the ASGI app.

    Args:
        service: what the handlers share.
        health: asks the stages.
        rules: who may ask.
        log: takes one line for each request; None: none.
    """
    routes: list[BaseRoute] = [*OPENAI_ROUTES, *PAGE_ROUTES, metrics.ROUTE, health_route(health)]
    paths = paths_of(routes)
    app = Starlette(
        routes=routes,
        middleware=[
            Middleware(
                Traffic,
                meters=service.meters,
                routes=frozenset(paths),
                receive_timeout_s=service.limits.receive_timeout_s,
                log=log,
            ),
            *cross_origin(rules.origins, ("GET", "POST")),
            Middleware(Guard, rules=rules),
        ],
        exception_handlers=error_handlers(paths, INSTEAD),
    )
    app.state.service = service
    return app


def paths_of(routes: Sequence[BaseRoute]) -> tuple[str, ...]:
    """Return the paths of the routes that have one path each."""
    return tuple(one.path for one in routes if isinstance(one, Route) and "{" not in one.path)
