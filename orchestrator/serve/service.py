"""What the handlers of all endpoints share."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass, field, replace
from typing import cast

from starlette.requests import Request

from orchestrator.generate import TokenOutput
from orchestrator.pipeline import Pipeline
from orchestrator.request import GenerationRequest
from orchestrator.serve.desk import Desk, Draining
from orchestrator.serve.limits import Limits
from orchestrator.serve.meters import Meters


@dataclass(slots=True, kw_only=True)
class Service:
    """One pipeline that is served over HTTP; `service_of(request)` finds it.

    Attributes:
        pipeline: answers requests.
        model_name: what /v1/models calls the model, and what requests must name.
        created_s: when the server was started, as Unix time.
        desk: who may generate.
        limits: what one request may cost.
        meters: what Prometheus is told.
    """

    pipeline: Pipeline
    model_name: str
    created_s: int
    desk: Desk
    limits: Limits
    meters: Meters
    _waits: set[asyncio.Timeout] = field(default_factory=set, init=False)
    _ended: bool = field(default=False, init=False)

    @contextlib.asynccontextmanager
    async def place(self, request: Request) -> AsyncIterator[None]:
        """Hold a place for one answer to a request over HTTP; see `Desk.place`.

        Raises:
            Busy, Draining: there is none.
        """
        begun_s = time.perf_counter()
        async with self.desk.place(client_of(request)):
            self.meters.waited(time.perf_counter() - begun_s)
            yield

    async def submit(self, request: GenerationRequest) -> AsyncGenerator[TokenOutput, None]:
        """Yield the answer token by token, and measure it; see `Pipeline.submit`.

        The caller closes it (`contextlib.aclosing`), which cancels the request.

        Raises:
            RequestRefused, OpRejected, StageFailure: see `Pipeline.submit`.
            Draining: the server had waited for this answer as long as it could.
        """
        request = replace(request, prefill_chunk=self.pipeline.prefill_chunk)
        tokens = self.pipeline.submit(request)
        before_s, is_first = time.perf_counter(), True
        async with contextlib.aclosing(tokens):
            while (token := await self._next(tokens)) is not None:
                now_s = time.perf_counter()
                self.meters.token(now_s - before_s, is_first=is_first)
                before_s, is_first = now_s, False
                if token.finish is not None:
                    self.meters.answer(token)
                yield token

    def end(self) -> None:
        """End every answer under way, and every later one at once.

        They are told of the loss of the stages where that is why, else `Draining`.
        """
        self._ended = True
        now_s = asyncio.get_running_loop().time()
        for wait in self._waits:
            wait.reschedule(now_s)

    async def _next(self, tokens: AsyncGenerator[TokenOutput, None]) -> TokenOutput | None:
        if self._ended:
            raise self._why()
        try:
            async with asyncio.timeout(None) as wait:
                self._waits.add(wait)
                try:
                    return await anext(tokens, None)
                finally:
                    self._waits.discard(wait)
        except TimeoutError:
            if wait.expired():
                raise self._why() from None
            raise

    def _why(self) -> Exception:
        """Return why answers are ended: a loss may be known here before an answer hears of it."""
        return self.pipeline.stages.failure or Draining()


def service_of(request: Request) -> Service:
    """Return the service of the app that a request came to."""
    return cast(Service, request.app.state.service)


def client_of(request: Request) -> str:
    """Return what tells one client from others: the key it has shown, or its address."""
    named: str | None = getattr(request.state, "client", None)
    if named is not None:
        return named
    return request.client.host if request.client is not None else ""
