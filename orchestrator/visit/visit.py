"""One program of ours on one host: start it, hear which Python it is, talk in lines."""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any

from orchestrator.specs import StageSpec
from orchestrator.transport.base import (
    ExitStatus,
    LineTooLong,
    PipeClosed,
    SpawnError,
    StageProcess,
)
from orchestrator.transport.pipes import PipedProcess
from orchestrator.visit.check import Check
from orchestrator.visit.departure import Departure, VisitFailed, why_departed
from orchestrator.visit.greeting import Greeting, Interpreter, too_noisy
from orchestrator.visit.launch import visit_launch

# The longest line is what a measurement of the link sends back.
_MAX_LINE_BYTES = 8 * 1024 * 1024
_STDERR_KEPT_BYTES = 16 * 1024
_END_S = 2.0
_KILL_S = 5.0


class Visit:
    """Own one process on one host; leaving the block ends it.

    Args:
        spec: where; of its options nothing is used.
        python: words that start Python there.

    Attributes:
        is_cut: whether the program is busy with what is no use any more.
    """

    def __init__(self, spec: StageSpec, python: Sequence[str]) -> None:
        self.spec = spec
        self._nonce = secrets.token_hex(8)
        self._launch = visit_launch(spec, python, self._nonce)
        self._process: StageProcess | None = None
        self._stderr = b""
        self._greeting = Greeting(self._nonce)
        self.is_cut = False

    async def __aenter__(self) -> Visit:
        starting = asyncio.ensure_future(
            PipedProcess.start(
                self._launch, max_line_bytes=_MAX_LINE_BYTES, on_stderr=self._take_stderr
            )
        )
        try:
            self._process = await asyncio.shield(starting)
        except SpawnError as error:
            raise VisitFailed(Check.LOGIN, str(error), here=True) from None
        except asyncio.CancelledError:
            # Half a process cannot be ended: wait until it is whole.
            await asyncio.wait({starting})
            if starting.exception() is None:
                self._process = starting.result()
                await self._end(0)
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        is_over = error is not None or self.is_cut
        ending = asyncio.ensure_future(self._end(0 if is_over else _END_S))
        while not ending.done():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait({ending})
        ending.result()

    @property
    def bytes_received(self) -> int:
        """Bytes that have come from the host."""
        return self._open.bytes_received

    async def meet(self, limit_s: float) -> Interpreter:
        """Wait until Python runs there, and return which it is; login noise is skipped.

        Raises:
            VisitFailed: it does not, within the limit.
        """
        try:
            async with asyncio.timeout(limit_s):
                return await self._meet()
        except TimeoutError:
            raise self._greeting.too_late(limit_s) from None

    async def teach(self, program: str, limit_s: float) -> None:
        """Have Python run a program, which says `ready` by `tell` first.

        Raises:
            VisitFailed: it does not get so far.
        """
        # One line, whatever is in it: Python reads it with `eval`.
        self._send(ascii(program).encode("ascii") + b"\n")
        await self.hear(limit_s)

    def ask(self, question: Mapping[str, Any], payload: bytes = b"") -> None:
        """Send one question, as a line of JSON, with bytes behind it.

        Raises:
            VisitFailed: the program is gone.
        """
        self._send(json.dumps(question).encode("ascii") + b"\n" + payload)

    async def hear(self, limit_s: float) -> dict[str, Any]:
        """Return the next thing that the program tells.

        Raises:
            VisitFailed: the connection is lost, the program ended, or what it says is no answer.
            TimeoutError: nothing came within the limit.
        """
        head = f"{self._nonce} ".encode("ascii")
        async with asyncio.timeout(limit_s):
            while line := await self._readline():
                if line.startswith(head):
                    return self._decoded(line[len(head) :])
            raise await self._departed()

    async def swallow_line(self, limit_s: float) -> None:
        """Take one line of any content.

        Raises:
            VisitFailed: the connection is lost.
            TimeoutError: it has not come whole within the limit.
        """
        async with asyncio.timeout(limit_s):
            if not await self._readline():
                raise await self._departed()

    def cut(self) -> None:
        """Have the end of the block wait for nothing: the program is busy with what is no use."""
        self.is_cut = True

    async def _meet(self) -> Interpreter:
        while line := await self._readline():
            interpreter = self._greeting.take(line)
            if interpreter is not None:
                return interpreter
        raise await self._departed()

    async def _readline(self) -> bytes:
        try:
            return await self._open.readline()
        except LineTooLong:
            raise too_noisy() from None

    def _send(self, data: bytes) -> None:
        # A closed pipe is told of by the reader, who knows why.
        with contextlib.suppress(PipeClosed):
            self._open.write(data)

    def _decoded(self, data: bytes) -> dict[str, Any]:
        try:
            fields = json.loads(data)
        except ValueError:
            fields = None
        if not isinstance(fields, dict):
            raise VisitFailed(Check.LOGIN, f"answers with what is no answer: {data[:100]!r}")
        return fields

    async def _departed(self) -> VisitFailed:
        """Say why nothing more comes."""
        process, status = self._open, ExitStatus(None)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_END_S):
                status = await process.wait()
                await process.stderr_ended()
        lines = self._stderr.decode("utf-8", "replace").splitlines()
        greeting = self._greeting
        return why_departed(
            Departure(self.spec, status, greeting.has_shell, tuple(lines), tuple(greeting.noise))
        )

    @property
    def _open(self) -> StageProcess:
        assert self._process is not None, "used outside its block"
        return self._process

    def _take_stderr(self, chunk: bytes) -> None:
        self._stderr = (self._stderr + chunk)[-_STDERR_KEPT_BYTES:]

    async def _end(self, patience_s: float) -> None:
        """End the process: by the end of its stdin, else at once."""
        process = self._process
        if process is None:
            return
        process.close_stdin()
        for limit_s in (patience_s, _KILL_S):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(limit_s):
                    await process.wait()
                    break
            process.kill()
        process.close()
