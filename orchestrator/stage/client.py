"""Start one stage, call its ops, end it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar, cast

from orchestrator.bundle.records import Recorder
from orchestrator.failures import HostUnreachable, Hung, NotReady, StageFailure
from orchestrator.specs import StageSpec
from orchestrator.stage.link import StageLink
from orchestrator.stage.notes import StageNotes, StageStatus
from orchestrator.stage.scribe import Scribe
from orchestrator.timeouts import Timeouts
from orchestrator.transport.base import PipeClosed
from worker.protocol.codec import encode_request
from worker.protocol.ops import Reply, Request
from worker.protocol.ready import Ready

R = TypeVar("R", bound=Reply)


class StageClient:
    """One stage; knows no other.

    Its first failure is raised by every call from then on.

    Args:
        spec: what to start.
        recorder: takes every fact.
        timeouts: every deadline.
        on_status: told of each new phase and event, from the event loop.
        on_failure: told of the failure, once.
    """

    def __init__(
        self,
        spec: StageSpec,
        *,
        recorder: Recorder,
        timeouts: Timeouts,
        on_status: Callable[[StageStatus], None] = lambda status: None,
        on_failure: Callable[[StageFailure], None] = lambda failure: None,
    ) -> None:
        self.spec = spec
        self._timeouts = timeouts
        self._on_status = on_status
        self._news = asyncio.Event()
        self._notes = StageNotes(spec.stage, spec.host, self._changed)
        scribe = Scribe(spec.stage, spec.host, recorder)
        self._link = StageLink(spec, self._notes, scribe, timeouts, on_failure)

    @property
    def status(self) -> StageStatus:
        """Phase, last event and since when, for display."""
        return self._notes.status

    @property
    def ready(self) -> Ready | None:
        """The ready line, once it came."""
        return self._link.inbox.ready

    @property
    def failure(self) -> StageFailure | None:
        """Why the stage is lost, if it is."""
        return self._link.failure

    async def start(self) -> Ready:
        """Start the worker and wait until it serves; `aclose` is owed in any case.

        Raises:
            StageFailure: it cannot; its process is being ended.
        """
        self._on_status(self.status)
        await self._link.spawn()
        await self._reach(self._said_hello, self._timeouts.hello_s, self._no_hello)
        await self._reach(lambda: self.ready is not None, self._timeouts.ready_s, self._not_ready)
        assert self.ready is not None
        return self.ready

    async def call(self, request: Request[R], timeout_s: float | None = None) -> R:
        """Send an op and return its reply. A cancelled call's reply is dropped when it comes.

        Raises:
            OpRejected: the worker refused the op and serves on.
            StageFailure: the stage is lost.
            ConnectionError: the stage is not ready, or closed.
        """
        assert request.request_id is not None, "an op without request_id cannot be matched"
        limit_s = self._timeouts.op_s if timeout_s is None else timeout_s
        line = encode_request(request)
        link = self._link
        try:
            async with asyncio.timeout(limit_s):
                await link.process.room()
                # Nothing is awaited between here and the write: a call that is cancelled while it
                # waits for room must not be expecting a reply.
                return cast(R, await link.write(link.process, request, line).future)
        except TimeoutError:
            late = f"did not answer {request.op} within {limit_s:g} s; it or its host is too slow"
            raise link.fail(Hung(link.scene(), late)) from None
        except PipeClosed:
            raise await link.pipe_closed() from None

    def abort(self, failure: StageFailure) -> None:
        """End the calls in flight with another stage's failure."""
        self._link.pending.fail_all(failure, forget=False)

    def kill(self) -> None:
        """Send SIGKILL now; `aclose` is still owed."""
        self._link.closing = True
        self._link.kill_process()

    async def aclose(self) -> None:
        """End the process by the ladder; when cancelled, by SIGKILL. Safe to call again."""
        await self._link.aclose()

    def _said_hello(self) -> bool:
        return self._link.inbox.handshake.hello is not None

    def _changed(self, status: StageStatus) -> None:
        self._news.set()
        self._on_status(status)

    async def _reach(
        self, reached: Callable[[], bool], limit_s: float, late: Callable[[], StageFailure]
    ) -> None:
        try:
            async with asyncio.timeout(limit_s):
                while not reached() and self.failure is None:
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            self._link.fail(late())
        if self.failure is not None:
            raise self.failure

    def _no_hello(self) -> StageFailure:
        kind = HostUnreachable if self.spec.transport == "ssh" else NotReady
        return kind(
            self._link.scene(),
            f"wrote no first message within {self._timeouts.hello_s:g} s; check that a login "
            "there works and the host is not overloaded, or raise --start-timeout-s",
        )

    def _not_ready(self) -> StageFailure:
        scene = self._link.scene()
        last = scene.last_events[-1] if scene.last_events else "none"
        return NotReady(
            scene,
            f"was not ready within {self._timeouts.ready_s:g} s (last event: {last}); raise "
            "--start-timeout-s if it is only slow",
        )
