"""Which decode steps go together, and when: the waiting room before the first stage."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence

from orchestrator.scheduler.job import Job
from orchestrator.scheduler.pace import Pace, ops_wanted
from orchestrator.scheduler.presence import Presence

_LEAST_LINGER_S = 0.002
_MOST_LINGER_S = 0.02


class Admission:
    """Gives waiting steps their first turn, alone or in groups.

    Every stage is busy when as many groups are under way as all windows take together. More would
    make them smaller, and each reads all weights again; so no more are, and each has its share of
    the requests. Where some of a share have just been given a token, a group waits a moment.

    Args:
        paces: of the stages.
        most_rows: most rows that a group may have; with 1 each step goes alone.
        send: starts a group of several.
        look_again: has the lane ask again.

    Attributes:
        presence: the requests that are between two steps.
        waiting: the steps that wait, the oldest first.
        under_way: groups, or steps that go alone, that have not come out of the last stage.
    """

    def __init__(
        self,
        paces: Sequence[Pace],
        *,
        most_rows: Callable[[], int],
        send: Callable[[Sequence[Job]], None],
        look_again: Callable[[], None],
    ) -> None:
        self.presence = Presence()
        self.under_way = 0
        self.waiting: deque[Job] = deque()
        self._live = 0
        self._closed = False
        self._paces = paces
        self._most_rows = most_rows
        self._send = send
        self._look_again = look_again
        self._timer: asyncio.TimerHandle | None = None

    @property
    def comes_s(self) -> float | None:
        """Seconds until a step may be asked for; None: none is about to be."""
        is_near = self.presence and self.presence.expected(self._linger_s)
        return 0.0 if is_near else None

    def came(self, job: Job) -> None:
        """Hear of a step; it waits from now on for its grant."""
        if not job.goes_alone:  # else it has come before
            self.presence.came(job.rid, self._linger_s)
            self._live += 1
        job.granted = asyncio.get_running_loop().create_future()
        self.waiting.append(job)

    def ended(self, job: Job) -> None:
        """Hear that a step is answered, or not wanted any more."""
        self._live -= 1
        if job.granted is not None and job.granted.cancelled() and job in self.waiting:
            self.waiting.remove(job)

    def grant(self) -> bool:
        """Give the turn to the next group; False where none is to go at this moment."""
        if not self.waiting:
            return False
        most_rows = self._most_rows()
        if most_rows == 1 or self.waiting[0].goes_alone:
            self._go((self.waiting.popleft(),))
            return True
        groups = ops_wanted(self._paces)
        if self.under_way >= groups and not self._closed:
            return False
        linger_s = self._linger_s
        expected = self.presence.expected(linger_s) if self.presence else 0
        left = max(groups - self.under_way, 1)
        share = min(
            -(-(self._live + expected) // groups),
            -(-(len(self.waiting) + expected) // left),
        )
        taken = self._first(share, most_rows)
        is_short = len(taken) < share and len(taken) == len(self.waiting)
        if is_short and expected and not self._closed:
            self._come_back(linger_s - self.presence.oldest_s())
            return False
        for job in taken:
            self.waiting.remove(job)
        self._go(taken)
        return True

    def close(self) -> None:
        """Let all go, whenever there is a turn."""
        self._closed = True
        self._forget_timer()

    def _forget_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _first(self, most: int, most_rows: int) -> Sequence[Job]:
        """Return the oldest that wait, one of each request, of no more rows than may be."""
        taken, rids, rows = [self.waiting[0]], {self.waiting[0].rid}, self.waiting[0].rows
        for job in self.waiting:
            if len(taken) >= most or rows >= most_rows:
                break
            fits = job.rid not in rids and rows + job.rows <= most_rows
            if fits and not job.goes_alone:
                taken.append(job)
                rids.add(job.rid)
                rows += job.rows
        return taken

    def _go(self, jobs: Sequence[Job]) -> None:
        self.under_way += 1
        if len(jobs) == 1:
            jobs[0].has_turn = jobs[0].is_unit = True
            jobs[0].turn_hop = 0
            jobs[0].go_alone()  # Not for good: its next step is another job.
        else:
            self._send(jobs)

    @property
    def _linger_s(self) -> float:
        """How long to wait for one: a fraction of what going without it would cost."""
        return min(max(self._paces[0].step_s / 4, _LEAST_LINGER_S), _MOST_LINGER_S)

    def _come_back(self, after_s: float) -> None:
        self._forget_timer()
        self._timer = asyncio.get_running_loop().call_later(max(after_s, 0.0), self._look_again)
