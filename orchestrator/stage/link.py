"""The process of one stage and the tasks around it: read, ping, notice the end, close."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Callable
from typing import Any

from orchestrator.causes import Ending, is_dropped_login, kills_before, why_ended
from orchestrator.failures import Hung, ProtocolViolation, Scene, SpawnFailed, StageFailure
from orchestrator.oom import kernel_lines
from orchestrator.specs import StageSpec
from orchestrator.stage.deadlines import Deadlines
from orchestrator.stage.inbox import BrokenRule, Inbox
from orchestrator.stage.keeper import PING_ID, keep
from orchestrator.stage.ladder import SHUTDOWN_ID, descend
from orchestrator.stage.notes import StageNotes
from orchestrator.stage.opening import answer_first
from orchestrator.stage.pending import NEVER_S, PendingOp, PendingOps
from orchestrator.stage.scribe import Scribe
from orchestrator.timeouts import Timeouts
from orchestrator.transport.base import (
    ExitStatus,
    LineTooLong,
    PipeClosed,
    SpawnError,
    StageProcess,
)
from orchestrator.transport.pipes import PipedProcess
from orchestrator.transport.shipping import BootLine
from worker.protocol.codec import MAX_LINE_BYTES, encode_request
from worker.protocol.events import Exiting, Starting
from worker.protocol.exits import ExitCode
from worker.protocol.ops import Ping, Request, Shutdown

_CUT_SHORT = ("stdin_eof", "shutdown")


class StageLink:
    """Own one process. The first failure is kept, ends every op in flight and the process.

    The reader waits for nothing but the pipe, so a stage can always write.

    Attributes:
        done: whether it was started for an errand, did it and ended by itself.
        dropped: why the server ended the login though nothing is wrong with it; another try by
            another link may go better. It is no failure of the stage yet.
    """

    def __init__(
        self,
        spec: StageSpec,
        notes: StageNotes,
        scribe: Scribe,
        timeouts: Timeouts,
        on_failure: Callable[[StageFailure, Request[Any] | None], None],
    ) -> None:
        self.failure: StageFailure | None = None
        self.closing = False
        self.done = False
        self.dropped: StageFailure | None = None
        self.pending = PendingOps()
        self._deadlines = Deadlines(lambda: self.pending.in_flight)
        nonce = secrets.token_hex(8)
        self.inbox = Inbox(
            spec, nonce, notes, self.pending, scribe, self._on_first, self._on_broken
        )
        self._spec = spec
        self._notes = notes
        self._scribe = scribe
        self._timeouts = timeouts
        self._on_failure = on_failure
        self._process: StageProcess | None = None
        self._supervisor: asyncio.Task[None] | None = None
        self._keeper: asyncio.Task[None] | None = None

    async def spawn(self) -> None:
        """Start the process and the tasks that watch it.

        Raises:
            StageFailure: the program cannot be started.
        """
        spawning = asyncio.ensure_future(
            PipedProcess.start(
                self._spec.launch(self.inbox.handshake.nonce),
                max_line_bytes=MAX_LINE_BYTES,
                on_stderr=self._take_stderr,
            )
        )
        try:
            self._adopt(await asyncio.shield(spawning))
        except SpawnError as error:
            raise self.fail(SpawnFailed(self.scene(), str(error))) from None
        except asyncio.CancelledError:
            # Half a process cannot be ended: finish, also when cancelled again, so that aclose
            # has one to end.
            while not spawning.done():
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.wait({spawning})
            if spawning.exception() is None:
                self._adopt(spawning.result())
            raise

    @property
    def has_answered(self) -> bool:
        """Whether the host was reached, or let the login drop: it has one login less to handle."""
        handshake = self.inbox.handshake
        said = handshake.hello is not None or handshake.boot is not None
        return said or self.dropped is not None

    @property
    def received_bytes_s(self) -> float | None:
        """How fast the newest long line arrived; None before the first."""
        return None if self._process is None else self._process.received_bytes_s

    @property
    def process(self) -> StageProcess:
        """The process, for ops.

        Raises:
            StageFailure: the stage is lost.
            ConnectionError: it is not ready yet, or closed.
        """
        if self.failure is not None:
            raise self.failure
        if self._process is None or self.closing or self.inbox.ready is None:
            raise ConnectionError(f"stage {self._spec.stage} on {self._spec.host} is not open")
        return self._process

    def write(
        self, process: StageProcess, request: Request[Any], line: bytes, late_s: float = NEVER_S
    ) -> asyncio.Future[Any]:
        """Send an op's line; return what will be its reply.

        Args:
            late_s: when the reply is a TimeoutError instead, by the clock of the event loop.

        Raises:
            PipeClosed: see `pipe_closed`.
        """
        # Before the write: a fast worker can answer while the pipe is still being filled.
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        op = PendingOp(request, future, len(line), late_s)
        process.write(line)
        self.pending.add(op)
        self._deadlines.watch(op)
        return future

    async def pipe_closed(self) -> StageFailure:
        """Wait for what explains a closed stdin, usually the end of the process; return it."""
        if self._supervisor is not None:
            limit_s = self._timeouts.half_closed_s + self._timeouts.drain_s
            await asyncio.wait({self._supervisor}, timeout=limit_s)
        return self._broke("closed its stdin but goes on running")

    def scene(self, exit_status: ExitStatus | None = None) -> Scene:
        """Return where and when something goes wrong now."""
        oldest = self.pending.oldest
        return self._notes.scene(oldest.request.op if oldest else None, exit_status)

    def fail(self, failure: StageFailure) -> StageFailure:
        """Keep the first failure, end every op and the process with it; return the first."""
        self.inbox.op_events.hand_on()
        if self.failure is not None or self.closing or self.done:
            return self.failure or failure
        self.failure = failure
        self._scribe.failure(failure)
        self.kill_process()
        oldest = self.pending.oldest
        self.pending.fail_all(failure)
        self._notes.enter("failed")
        self._on_failure(failure, oldest.request if oldest else None)
        return failure

    def kill_process(self) -> None:
        """Send SIGKILL now; `aclose` is still owed."""
        if self._process is not None:
            self._process.kill()

    async def aclose(self) -> None:
        """End the process: ask and close stdin, then SIGTERM, then SIGKILL, each for a while.

        When cancelled it goes to SIGKILL at once; nothing is left behind in any case.
        """
        process, supervisor, keeper = self._process, self._supervisor, self._keeper
        if process is None or supervisor is None or keeper is None:
            return
        gentle = self.failure is None and not self.closing
        self.closing = True
        keeper.cancel()
        try:
            if gentle:
                await descend(process, supervisor, self._timeouts, self._ask_to_end)
        finally:
            if not supervisor.done():
                process.kill()
                await asyncio.wait({supervisor}, timeout=self._timeouts.kill_s)
            supervisor.cancel()
            await asyncio.gather(supervisor, keeper, return_exceptions=True)
            process.close()
            self.inbox.op_events.close()
            self.pending.fail_all(ConnectionError("the stage was closed"))
            self._deadlines.close()
            if self.failure is None and self.dropped is None:
                self._notes.enter("closed")
            await asyncio.sleep(0)  # asyncio closes the pipes in its next turn

    def _adopt(self, process: StageProcess) -> None:
        self._process = process
        self._supervisor = asyncio.create_task(self._supervise(process))
        self._keeper = asyncio.create_task(self._keep(process))
        for task in (self._supervisor, self._keeper):
            task.add_done_callback(self._own_error)

    async def _supervise(self, process: StageProcess) -> None:
        """Read until the process has ended, and say why it did."""
        exited = asyncio.ensure_future(process.wait())
        read = asyncio.ensure_future(self._read(process))
        drained = asyncio.ensure_future(process.stderr_ended())
        read.add_done_callback(self._own_error)
        try:
            await asyncio.wait({exited, read}, return_when=asyncio.FIRST_COMPLETED)
            if not exited.done():
                await asyncio.wait({exited}, timeout=self._timeouts.half_closed_s)
                if not exited.done():
                    self._broke("closed its stdout but goes on running")
            status = await exited
            # What it wrote last is still in the pipes, and says why it ended.
            await asyncio.wait({read, drained}, timeout=self._timeouts.drain_s)
            self._ended(status)
        finally:
            for task in (exited, read, drained):
                task.cancel()
            await asyncio.gather(exited, read, drained, return_exceptions=True)

    async def _read(self, process: StageProcess) -> None:
        try:
            await process.each_line(self.inbox.take)
        except BrokenRule as broken:
            self._on_broken(broken)
        except LineTooLong as error:
            self._broke(f"wrote a line of more than {error.limit_bytes} bytes, which is the limit")

    async def _keep(self, process: StageProcess) -> None:
        def ping() -> None:
            self._tell(process, Ping(request_id=PING_ID))

        try:
            limit_s = await keep(process, self._notes, self.pending, self._timeouts, ping)
        except PipeClosed:
            await self.pipe_closed()
            return
        scene = self.scene()
        cause = f"nothing came from it for {limit_s:.3g} s while {scene.phase}"
        advice = "it is stopped, or its host or the link to it is down"
        self.fail(Hung(scene, f"does not answer: {cause}; {advice}"))

    def _own_error(self, task: asyncio.Future[None]) -> None:
        """Turn an error of ours into a failure: a task that dies unseen would look like a hang."""
        error = None if task.cancelled() else task.exception()
        if error is not None:
            cause = f"cannot be followed any more, by an error of the orchestrator: {error!r}"
            failure = StageFailure(self.scene(), cause, ExitCode.UNCAUGHT)
            failure.__cause__ = error
            self.fail(failure)

    def _on_broken(self, broken: BrokenRule) -> None:
        self.fail(broken.kind(self.scene(), broken.cause, may_pass=broken.may_pass))

    def _on_first(self, line: BootLine | Starting) -> None:
        if self._process is not None:
            with contextlib.suppress(PipeClosed):  # Its end says why.
                answer_first(line, self._spec, self._process, self._tell, self._notes, self._scribe)

    def _tell(self, process: StageProcess, request: Request[Any]) -> None:
        """Send what nobody waits for the answer of."""
        self.write(process, request, encode_request(request)).cancel()

    def _ask_to_end(self, process: StageProcess) -> Callable[[], bool]:
        """Ask a stage to end; return what tells whether it has answered anything."""
        received = process.bytes_received
        if self.inbox.handshake.hello is None:  # Nothing may be sent before.
            return lambda: process.bytes_received != received
        with contextlib.suppress(PipeClosed):
            self._tell(process, Ping(request_id=PING_ID))  # answered also in a long op
            if self.inbox.ready is not None:
                self._tell(process, Shutdown(request_id=SHUTDOWN_ID))
        return lambda: not self.pending.count_of(PING_ID)

    def _broke(self, cause: str) -> StageFailure:
        return self.fail(ProtocolViolation(self.scene(), cause))

    def _ended(self, status: ExitStatus) -> None:
        self.inbox.op_events.hand_on()
        expected = self.closing or self.failure is not None
        if not expected and status.signal == "SIGKILL" and self._spec.transport == "local":
            self._ask_kernel()
        if not expected and self._did_errand(status):
            self.done = expected = True
            self._notes.enter("done")
        if not expected:
            ending = Ending(
                scene=self.scene(status),
                transport=self._spec.transport,
                said_hello=self.inbox.handshake.hello is not None,
                events=self._notes.events,
                stderr_lines=self._notes.stderr_lines,
                noise=self.inbox.handshake.noise,
                errand=self._spec.options.only,
                ssh=self._spec.ssh,
                python=self._spec.python,
                line=self._spec.line,
            )
            if is_dropped_login(ending):
                self.dropped = why_ended(ending)
                self._notes.note("its login was dropped; trying again")
                return
            self.fail(why_ended(ending))
        self._scribe.exit(status, self.failure, expected=expected)

    def _ask_kernel(self) -> None:
        """Put what the kernel here says beside the last words; the shell of an ssh host does so.

        What a launcher started may be in another place, which counts its own kills and processes.
        """
        hello = self.inbox.handshake.hello
        pid = hello.pid if hello is not None else self._process.pid if self._process else 0
        for line in kernel_lines(pid, kills_before(self._notes.events)):
            self._take_stderr(f"kernel: {line}\n".encode())

    def _did_errand(self, status: ExitStatus) -> bool:
        """Tell whether an errand was done: the worker says so in its last line."""
        last = [event for event in self._notes.events if isinstance(event, Exiting)]
        # A launcher that passes no stdin on ends a worker early, with code 0 as well.
        said = any(event.code == 0 and event.reason not in _CUT_SHORT for event in last)
        return self._spec.options.only is not None and status.code == 0 and said

    def _take_stderr(self, chunk: bytes) -> None:
        self._notes.stderr(chunk)
        self._scribe.stderr(chunk)
