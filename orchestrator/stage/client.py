"""Start one stage, call its ops, end it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any, TypeVar

from orchestrator.bundle.records import Recorder
from orchestrator.failures import HostUnreachable, Hung, NotReady, StageFailure
from orchestrator.specs import StageSpec
from orchestrator.stage.gate import StartGate, login_pauses
from orchestrator.stage.link import StageLink
from orchestrator.stage.notes import StageNotes, StageStatus
from orchestrator.stage.scribe import Scribe
from orchestrator.timeouts import Timeouts
from orchestrator.transport.base import PipeClosed
from worker.protocol.codec import encode_request
from worker.protocol.events import Event, Op
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
        on_failure: told of the failure, once, with the op that it was at: of those without an
            answer the one that was sent first.
        on_event: told of each event, `op` and `heartbeat` aside.
        on_op: told of each `op` event.
        gate: bounds the logins of all workers that start together; None is one of its own.
    """

    def __init__(
        self,
        spec: StageSpec,
        *,
        recorder: Recorder,
        timeouts: Timeouts,
        on_status: Callable[[StageStatus], None] = lambda status: None,
        on_failure: Callable[[StageFailure, Request[Any] | None], None] = lambda *told: None,
        on_event: Callable[[Event], None] = lambda event: None,
        on_op: Callable[[Op], None] = lambda op: None,
        gate: StartGate | None = None,
    ) -> None:
        self.spec = spec
        self._timeouts = timeouts
        self._on_status = on_status
        self._news = asyncio.Event()
        self._notes = StageNotes(spec, self._changed, on_event, on_op)
        self._scribe = Scribe(spec.stage, spec.host, recorder)
        self._on_failure = on_failure
        self._gate = gate or StartGate()
        self._killed = False
        self._link = self._new_link()

    @property
    def status(self) -> StageStatus:
        """Phase, last event and since when, for display."""
        return self._notes.status

    @property
    def ready(self) -> Ready | None:
        """The ready line, once it came."""
        return self._link.inbox.ready

    @property
    def received_bytes_s(self) -> float | None:
        """How fast the newest long reply arrived; None before the first."""
        return self._link.received_bytes_s

    @property
    def failure(self) -> StageFailure | None:
        """Why the stage is lost, if it is."""
        return self._link.failure

    async def start(self) -> Ready:
        """Start the worker and wait until it serves; `aclose` is owed in any case.

        Raises:
            StageFailure: it cannot; its process is being ended.
        """
        await self._greet()
        limit_s = self._timeouts.ready_s
        await self._reach(lambda: self.ready is not None, limit_s, self._late("ready", limit_s))
        assert self.ready is not None
        return self.ready

    async def finish(self) -> None:
        """Start a worker for its errand and wait until it has done it; `aclose` is owed.

        Raises:
            StageFailure: it cannot; its process is being ended.
        """
        kind = self.spec.options.only
        is_survey = kind is not None and kind.is_survey
        limit_s = self._timeouts.survey_s if is_survey else self._timeouts.errand_s
        await self._greet()
        await self._reach(lambda: self._link.done, limit_s, self._late("done", limit_s))

    async def call(
        self,
        request: Request[R],
        timeout_s: float | None = None,
        on_sent: Callable[[], None] = lambda: None,
    ) -> R:
        """Send an op and return its reply. A cancelled call's reply is dropped when it comes.

        Args:
            request: the op.
            timeout_s: for its reply.
            on_sent: told when it is handed to the pipe; from then on the worker will get it.

        Raises:
            OpRejected: the worker refused the op and serves on.
            StageFailure: the stage is lost.
            ConnectionError: the stage is not ready, or closed.
        """
        assert request.request_id is not None, "an op without request_id cannot be matched"
        limit_s = self._timeouts.op_s if timeout_s is None else timeout_s
        link = self._link
        late_s = asyncio.get_running_loop().time() + limit_s
        line = encode_request(request)
        try:
            process = link.process
            if not process.has_room:
                async with asyncio.timeout_at(late_s):
                    await process.room()
                process = link.process
            # Nothing is awaited between here and the write: a call that is cancelled while it
            # waits for room must not be expecting a reply.
            reply = link.write(process, request, line, late_s)
            on_sent()
            answer: R = await reply
            return answer
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
        self._killed = self._link.closing = True
        self._link.kill_process()

    async def aclose(self) -> None:
        """End the process by the ladder; when cancelled, by SIGKILL. Safe to call again."""
        await self._link.aclose()

    async def _greet(self) -> None:
        """Start the process and wait for its first message; a dropped login is tried again."""
        self._on_status(self.status)
        pauses = login_pauses(self._timeouts)
        deadline_s: float | None = None
        while True:
            async with self._gate.login(self.spec):
                if deadline_s is None:
                    deadline_s = time.monotonic() + self._timeouts.hello_s
                await self._link.spawn()
                await self._hear(lambda: self._link.has_answered, deadline_s)
            dropped = self._link.dropped
            if dropped is None:
                break
            pause_s = next(pauses, None)
            if self._killed or pause_s is None or time.monotonic() + pause_s > deadline_s:
                raise self._link.fail(dropped)
            said = " ".join(self._notes.stderr_lines)
            self._scribe.note(f"the login was dropped ({said}), tried again in {pause_s:.1f} s")
            await self._link.aclose()
            self._notes.forget_stderr()
            await asyncio.sleep(pause_s)
            self._link = self._new_link()
        await self._hear(self._said_hello, deadline_s)

    async def _hear(self, heard: Callable[[], bool], deadline_s: float) -> None:
        """Wait for an answer of the host; tell the user where that takes long."""
        limit_s = self._timeouts.hello_s
        quiet = asyncio.get_running_loop().call_later(
            self._timeouts.quiet_s,
            self._notes.note,
            f"still connecting; given up after {limit_s:g} s (--start-timeout-s)",
        )
        try:
            await self._reach(heard, max(0.0, deadline_s - time.monotonic()), self._no_hello)
        finally:
            quiet.cancel()

    def _new_link(self) -> StageLink:
        return StageLink(self.spec, self._notes, self._scribe, self._timeouts, self._on_failure)

    def _said_hello(self) -> bool:
        return self._link.inbox.handshake.hello is not None

    def _changed(self, status: StageStatus) -> None:
        self._news.set()
        self._on_status(status)

    async def _reach(
        self, reached: Callable[[], bool], limit_s: float, late: Callable[[], StageFailure]
    ) -> None:
        """Wait until it is reached; each byte of a download gives the whole time anew."""
        begun_s = time.monotonic()
        try:
            async with asyncio.timeout(limit_s) as deadline:
                while not reached() and self.failure is None:
                    self._news.clear()
                    await self._news.wait()
                    if self._notes.advanced_s > begun_s:
                        begun_s = self._notes.advanced_s
                        deadline.reschedule(asyncio.get_running_loop().time() + limit_s)
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

    def _late(self, state: str, limit_s: float) -> Callable[[], StageFailure]:
        def failure() -> StageFailure:
            scene = self._link.scene()
            last = scene.last_events[-1] if scene.last_events else "none"
            return NotReady(
                scene,
                f"was not {state} within {limit_s:g} s (last event: {last}); raise "
                "--start-timeout-s if it is only slow",
            )

        return failure
