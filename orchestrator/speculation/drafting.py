"""Have guesses made, at once or beside the passes, and put them behind the tokens of a request."""

from __future__ import annotations

import asyncio
from typing import Any

from orchestrator.failures import OpRejected, StageFailure
from orchestrator.speculation.drafter import Draft, Drafter
from orchestrator.speculation.path import Path, Verdict

MOST_AT_ONCE = 15
# A drafter that takes time goes on until so many of its guesses wait to be sent.
MOST_WAITING = 32


class Drafting:
    """Owns the drafter of one request.

    Args:
        drafter: closed with this.
        path: the tokens; takes the guesses.
        total: tokens of prompt and answer together, at most.
        ends: tokens after which none comes.
    """

    def __init__(self, drafter: Drafter, path: Path, total: int, ends: frozenset[int]) -> None:
        self._drafter = drafter
        self._path = path
        self._total = total
        self._ends = ends
        self._is_stopped = False
        self._task: asyncio.Task[Draft] | None = None
        self._start = 0  # the place that the running task guesses for
        self._dropped: set[asyncio.Task[Draft]] = set()

    @property
    def takes_time(self) -> bool:
        """Whether guesses are made beside the passes."""
        return self._drafter.takes_time and not self._is_stopped

    @property
    def is_on(self) -> bool:
        """Whether guesses are being made at this moment."""
        return self._task is not None

    async def refresh(self) -> None:
        """Guess what follows what was sent, if that takes no time."""
        if self._drafter.takes_time or self._is_stopped:
            return
        path = self._path
        # A guess at the last token is of no use: the pass before gives it anyway.
        most = min(MOST_AT_ONCE, self._total - 1 - len(path.ids))
        draft = Draft()
        if most > 0:
            draft = await self._drafter.guess(path.ids, path.num_certain, most)
        path.redraft(draft, self._ends)

    def go_on(self) -> bool:
        """Have the next guess made beside the passes; tell whether one is being made."""
        path = self._path
        if self.takes_time and self._task is None and not path.is_ended:
            start = len(path.ids) + len(path.unsent)
            if start < self._total - 1 and len(path.unsent) < MOST_WAITING:
                self._start, most = start, min(MOST_AT_ONCE, self._total - 1 - start)
                guessing: Any = self._drafter.guess(path.all_ids, path.num_certain, most)
                self._task = asyncio.create_task(guessing)
        return self.is_on

    async def wait_beside(self, task: asyncio.Task[Any]) -> Verdict | None:
        """Wait for the task, or for guesses if those come first; take them in and judge them.

        A drafter that fails guesses no more, and the answer goes on without.
        """
        if self._task is None:
            await asyncio.wait({task})
            return None
        await asyncio.wait({task, self._task}, return_when=asyncio.FIRST_COMPLETED)
        if not self._task.done():
            return None
        done, self._task = self._task, None
        try:
            return self._path.draft(self._start, done.result(), self._ends)
        except (OpRejected, StageFailure, ConnectionError):
            self.stop()
            return None

    def drop(self) -> None:
        """Give up what is being guessed: it follows a guess that was wrong."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            self._dropped.add(task)
            task.add_done_callback(self._dropped.discard)

    def stop(self) -> None:
        """Guess no more in this request."""
        self._is_stopped = True
        self.drop()

    async def aclose(self) -> None:
        """End what is being guessed and the drafter."""
        self.drop()
        await asyncio.gather(*self._dropped, return_exceptions=True)
        await self._drafter.aclose()
