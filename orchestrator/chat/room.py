"""A pipeline in a thread of its own: pings go on while the terminal is waited for."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager
from typing import Any, TypeVar

from orchestrator.pipeline import Pipeline

T = TypeVar("T")


class Room:
    """Opens a pipeline in a thread with an event loop, and runs coroutines there.

    Lines are read in the main thread, which alone hears signals: so Ctrl-C ends a wait for a line
    as it does in any program, and no thread is left behind that waits for one.

    Args:
        opened: opens the pipeline.
    """

    def __init__(self, opened: Callable[[], AbstractAsyncContextManager[Pipeline]]) -> None:
        self._opened = opened
        self._ready: Future[Pipeline] = Future()
        self._ended: Future[None] = Future()
        self._loop = asyncio.new_event_loop()
        self._work: asyncio.Task[None] | None = None
        self._leaving = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="pipeline")

    def enter(self) -> Pipeline:
        """Open the pipeline and wait until it serves; a `leave` is owed in any case.

        Raises:
            Exception: what opening it raises.
            CancelledError: `hurry` was called meanwhile.
        """
        self._thread.start()
        return self._ready.result()

    def begin(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Run a coroutine beside the pipeline."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def soon(self, call: Callable[[], object]) -> None:
        """Call something in the event loop; nothing happens once it has ended."""
        try:
            self._loop.call_soon_threadsafe(call)
        except RuntimeError:
            return  # The loop is closed, and all that it had to do has been done.

    def leave(self) -> None:
        """End the pipeline in order and wait for it.

        Raises:
            Exception: what its end raises.
        """
        self.soon(self._leaving.set)
        self._thread.join()
        if self._ready.done() and not self._ready.cancelled() and not self._ready.exception():
            self._ended.result()

    def hurry(self) -> None:
        """End the pipeline sooner: first what is waited for, then by SIGKILL."""
        self.soon(self._cancel)

    def _cancel(self) -> None:
        if self._ready.done() and self._leaving.is_set():
            self._ready.result().kill()
        if self._work is not None:
            self._work.cancel()

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            try:
                runner.run(self._serve())
                self._ended.set_result(None)
            except BaseException as error:  # noqa: BLE001 - the main thread raises it
                (self._ended if self._ready.done() else self._ready).set_exception(error)

    async def _serve(self) -> None:
        self._work = asyncio.current_task()
        async with self._opened() as pipeline:
            self._ready.set_result(pipeline)
            await self._leaving.wait()
