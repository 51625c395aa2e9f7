"""/health: asks the stages, and not only the port."""

from __future__ import annotations

import asyncio
import time
from dataclasses import asdict, dataclass
from http import HTTPStatus
from typing import Any, Literal

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from orchestrator.failures import OpRejected, StageFailure
from orchestrator.serve.service import Service, service_of
from orchestrator.stages import Stages

StageState = Literal["ready", "silent", "recovering", "lost"]
State = Literal["ok", "recovering", "lost", "silent", "draining"]

_ANSWER_S = 2.0
# So often at most are the stages asked, however many ask here.
_FRESH_S = 1.0


@dataclass(frozen=True, slots=True)
class StageHealth:
    """One stage as it is now.

    Attributes:
        state: "ready" if it has answered just now, "silent" if it has not in time, "recovering"
            while it is brought back, "lost" if that has failed for now.
        trouble: why it is not ready, in one sentence.
    """

    stage: int
    host: str
    layers: tuple[int, ...] | None
    device: str | None
    state: StageState
    trouble: str | None = None


class Health:
    """Asks every stage at once, for all who want to know at that time together.

    Args:
        stages: who is asked.
        answer_s: how long each may take.
    """

    def __init__(self, stages: Stages, answer_s: float = _ANSWER_S) -> None:
        self._stages = stages
        self._answer_s = answer_s
        self._found: tuple[StageHealth, ...] = ()
        self._asked_s = float("-inf")
        self._lock = asyncio.Lock()

    async def look(self) -> tuple[StageHealth, ...]:
        """Return every stage as it was a second ago at most."""
        async with self._lock:
            if time.monotonic() - self._asked_s > _FRESH_S:
                indices = range(len(self._stages.hosts))
                self._found = tuple(await asyncio.gather(*map(self._ask, indices)))
                self._asked_s = time.monotonic()
            return self._found

    async def _ask(self, index: int) -> StageHealth:
        state: StageState = "ready"
        trouble: str | None = None
        try:
            async with asyncio.timeout(self._answer_s):
                await self._stages.ping(index)
        except TimeoutError:
            state = "silent"
            trouble = f"stage {index} has not answered a ping within {self._answer_s:g} s"
        except (StageFailure, OpRejected, ConnectionError) as error:
            state, trouble = self._stages.states[index], str(error)
            state = "lost" if state == "ready" else state  # It was lost in this moment.
        client = self._stages.stages[index]
        ready = client.ready
        return StageHealth(
            stage=index,
            host=self._stages.hosts[index],
            layers=None if ready is None else ready.layer_range,
            device=None if ready is None else ready.device,
            state=state,
            trouble=trouble,
        )


def health_route(health: Health) -> Route:
    """Return the endpoint; details are for those who may ask for anything."""

    async def endpoint(request: Request) -> Response:
        stages = await health.look()
        state, message = _summary(service_of(request), stages)
        body: dict[str, Any] = {"status": state}
        if getattr(request.state, "has_key", True):
            body["message"] = message
            body["stages"] = [asdict(stage) for stage in stages]
        status = HTTPStatus.OK if state == "ok" else HTTPStatus.SERVICE_UNAVAILABLE
        return JSONResponse(body, status, headers={"Cache-Control": "no-store"})

    return Route("/health", endpoint, methods=["GET"])


def _summary(service: Service, stages: tuple[StageHealth, ...]) -> tuple[State, str]:
    if service.desk.is_draining:
        return "draining", "the server is shutting down"
    for stage in stages:
        if stage.state != "ready":
            return stage.state, stage.trouble or ""
    return "ok", f"all {len(stages)} stages answer"
