"""The lanes of all stages, in order."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial

from orchestrator.scheduler.lane import Lane, Queue, Steps
from orchestrator.scheduler.pace import Pace, ops_wanted


class Lanes(tuple[Lane, ...]):
    """A lane for each stage, each of which knows what comes from the stages before it."""

    __slots__ = ()

    @staticmethod
    def of(paces: Sequence[Pace], steps: Steps, expects: Callable[[], float | None]) -> Lanes:
        """Return lanes.

        Args:
            paces: of each stage.
            steps: the decode steps that wait for the first stage.
            expects: seconds until one is expected there; None: none is.
        """

        def comes(index: int) -> float | None:
            return lanes.next_step_s(index) if index else expects()

        lanes = Lanes(
            Lane(
                pace,
                Queue() if index else steps,
                patience=lambda: 2 * ops_wanted(paces),
                comes=partial(comes, index),
            )
            for index, pace in enumerate(paces)
        )
        return lanes

    def next_step_s(self, index: int) -> float | None:
        """Return in how many seconds the next op of steps gets to a stage, as far as is known."""
        after_s = 0.0
        for before in range(index - 1, -1, -1):
            lane = self[before]
            after_s += lane.pace.step_s + lane.pace.link_s
            # Those that wait before the first stage may have to wait for these to come out.
            if lane.steps_out or (before and lane.steps_here):
                return after_s
        return None

    def kick(self) -> None:
        """Let through what may go, everywhere."""
        for lane in self:
            lane.kick()

    def kick_idle(self) -> None:
        """Look again, a moment later, at stages that stand idle for a step that may not come."""
        if any(lane.keeps_free for lane in self):
            asyncio.get_running_loop().call_soon(self.kick)

    def close(self) -> None:
        """Stand idle no more."""
        for lane in self:
            lane.close()
        self.kick()
