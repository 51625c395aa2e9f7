"""Routes of the chat page: the page, its files, the state of the stages."""

from __future__ import annotations

from http import HTTPStatus
from importlib import resources
from types import MappingProxyType

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from orchestrator.serve.errors import ApiError
from orchestrator.serve.page.status import status_of
from orchestrator.serve.service import service_of

# What the page may do: load its own files and ask its own server. Trusted types make the browser
# itself refuse to read text as HTML, whoever wrote the text.
POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "connect-src 'self'",
        "img-src data:",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)
HEADERS = MappingProxyType(
    {
        "content-security-policy": POLICY,
        "x-content-type-options": "nosniff",
        "referrer-policy": "no-referrer",
        "cross-origin-opener-policy": "same-origin",
        "cache-control": "no-cache",  # the next version's page must not run the last one's script
    }
)
_JS, _CSS = "text/javascript", "text/css"
FILES = MappingProxyType(
    {
        "page.css": _CSS,
        "page.js": _JS,
        "answer.js": _JS,
        "ask.js": _JS,
        "chat.js": _JS,
        "dom.js": _JS,
        "key.js": _JS,
        "markdown.js": _JS,
        "panel.js": _JS,
        "settings.js": _JS,
        "speech.js": _JS,
        "store.js": _JS,
        "timing.js": _JS,
    }
)


async def show_page(request: Request) -> Response:
    """Answer with the page."""
    return _file("index.html", "text/html")


async def show_file(request: Request) -> Response:
    """Answer with one of the page's files; there are no others."""
    name = request.path_params["name"]
    if name not in FILES:
        raise ApiError(HTTPStatus.NOT_FOUND, f"the page has no file {name!r}", code="not_found")
    return _file(name, FILES[name])


async def show_status(request: Request) -> Response:
    """Answer with what the stages are and do."""
    status = status_of(service_of(request))
    return JSONResponse(status, headers={"cache-control": "no-store"})


def _file(name: str, media_type: str) -> Response:
    content = resources.files(__package__).joinpath(name).read_bytes()
    return Response(content, media_type=media_type, headers=dict(HEADERS))


ROUTES = (
    Route("/", show_page),
    Route("/page/{name}", show_file),
    Route("/stageline/status", show_status),
)
# What may be asked for without a key: the page itself asks the user for it.
OPEN_PATHS = frozenset({"/", *(f"/page/{name}" for name in FILES)})
