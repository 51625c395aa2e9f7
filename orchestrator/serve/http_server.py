"""uvicorn, run as a part of this program: no signals of its own, no log of its own."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from starlette.types import ASGIApp
from uvicorn import Config, Server

from orchestrator.serve.limits import MOST_HEAD_BYTES, Limits
from orchestrator.serve.protocol import punctual

_KEEP_ALIVE_S = 75
# What is left of answers once the pipeline has let them go is some lines to be written.
_LAST_LINES_S = 3


class HttpServer(Server):
    """Serves an app until it is told to stop (`should_exit`)."""

    def __init__(self, app: ASGIApp, limits: Limits, *, most_connections: int) -> None:
        config = Config(
            app,
            http=punctual(limits.receive_timeout_s, limits.send_timeout_s),
            ws="none",
            loop="asyncio",
            lifespan="off",
            log_config=None,
            # It logs every malformed request; a server that is scanned would tell of nothing else.
            log_level="critical",
            access_log=False,
            proxy_headers=False,
            server_header=False,
            limit_concurrency=most_connections,
            timeout_keep_alive=_KEEP_ALIVE_S,
            timeout_graceful_shutdown=_LAST_LINES_S,
            h11_max_incomplete_event_size=MOST_HEAD_BYTES,
        )
        super().__init__(config)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to this program."""
        yield

    def cut(self) -> None:
        """Drop every connection that is left."""
        for connection in tuple(self.server_state.connections):
            if connection.transport is not None:
                connection.transport.abort()
