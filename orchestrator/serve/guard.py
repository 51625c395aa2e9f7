"""Who may ask at all: keys, and pages of other sites that a browser is made to ask for."""

from __future__ import annotations

import ipaddress
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from orchestrator.serve.errors import ApiError
from orchestrator.serve.keys import Keys


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """Who may ask for what.

    Attributes:
        keys: that are accepted; none: no key is asked for.
        open_paths: what needs no key.
        local_names_only: refuse requests that were meant for another name than this machine's
            own: without a key nothing else keeps a page away whose name resolves to loopback.
        origins: pages of other sites that may ask, as browsers name them; "*" is every one.
    """

    keys: Keys = field(default_factory=Keys)
    open_paths: Collection[str] = frozenset()
    local_names_only: bool = False
    origins: Sequence[str] = ()


class Guard:
    """An ASGI app that lets pass what the rules allow, and names the client to those behind it."""

    def __init__(self, app: ASGIApp, rules: Rules) -> None:
        self._app = app
        self._rules = rules

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer with 401 or 403, or hand the request on."""
        if scope["type"] != "http":
            return
        headers = Headers(scope=scope)
        try:
            self._check_name(headers)
            self._check_origin(headers)
            scope["state"]["client"] = self._client(scope, headers)
        except ApiError as error:
            await error.response()(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _check_name(self, headers: Headers) -> None:
        host = headers.get("host")
        if self._rules.local_names_only and host is not None and not is_local(host):
            raise ApiError(
                HTTPStatus.MISDIRECTED_REQUEST,
                f"the request is for host {host!r:.80}, and without an API key only localhost, "
                "127.0.0.1 and [::1] are answered for; ask for one of them, or give the server "
                "--api-key-file",
                code="wrong_host",
            )

    def _check_origin(self, headers: Headers) -> None:
        origin, host = headers.get("origin"), headers.get("host")
        allowed = self._rules.origins
        if origin is None or origin in allowed or "*" in allowed:
            return
        if host is None or _netloc(origin) != host.lower():
            raise ApiError(
                HTTPStatus.FORBIDDEN,
                f"the request comes from a page of {origin!r:.80}, which may not ask here; give "
                f"the server --allow-origin {origin:.80} if it may",
                code="origin_not_allowed",
            )

    def _client(self, scope: Scope, headers: Headers) -> str:
        """Return a name for the client, by its key where there are several, else by address.

        Raises:
            ApiError: it has shown no right key.
        """
        keys = self._rules.keys
        address = scope["client"][0] if scope["client"] else ""
        if not keys:
            return address
        kind, _, shown = headers.get("authorization", "").partition(" ")
        index = keys.index(shown.strip()) if kind.lower() == "bearer" else None
        scope["state"]["has_key"] = index is not None
        if index is None and not self._is_open(scope):
            said = "is not one of this server's" if shown else "is missing"
            raise ApiError(
                HTTPStatus.UNAUTHORIZED,
                f"the API key {said}; send one as the header 'Authorization: Bearer KEY'",
                code="invalid_api_key",
                headers={"WWW-Authenticate": "Bearer"},
            )
        return address if len(keys) == 1 or index is None else f"key {index}"

    def _is_open(self, scope: Scope) -> bool:
        return scope["method"] in ("GET", "HEAD") and scope["path"] in self._rules.open_paths


def is_local(host: str) -> bool:
    """Tell whether a Host header names this machine by a name that nobody else can give out."""
    name = urlsplit(f"//{host}").hostname if _is_netloc(host) else None
    if name is None:
        return False
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def _is_netloc(text: str) -> bool:
    try:
        urlsplit(f"//{text}")
    except ValueError:
        return False
    return not set(text) & set("/?#@\\")


def _netloc(origin: str) -> str:
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return ""
