"""Workers that are started for one thing and end by themselves, on many hosts at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from orchestrator.bundle.records import NoRecorder, Recorder
from orchestrator.errand_kind import ErrandKind
from orchestrator.failures import HostsNotAsked, StageFailure
from orchestrator.specs import StageSpec
from orchestrator.stage import StageClient, StageStatus
from orchestrator.stage.gate import StartGate
from orchestrator.stage.together import at_once, close_all
from orchestrator.timeouts import Timeouts
from worker.protocol.events import Event

SURVEYS = (ErrandKind.SURVEY, ErrandKind.SURVEY_HOST)


class Errands:
    """Run one worker for each spec, over any transport, all at once.

    Args:
        specs: what to start; each has an errand in its options.
        recorder: takes every fact.
        timeouts: every deadline.
        on_status: told of each new phase and event, from the event loop.
    """

    def __init__(
        self,
        specs: Sequence[StageSpec],
        *,
        recorder: Recorder | None = None,
        timeouts: Timeouts | None = None,
        on_status: Callable[[StageStatus], None] = lambda status: None,
    ) -> None:
        assert all(spec.options.only is not None for spec in specs), "a spec without an errand"
        self._is_survey = all(spec.options.only in SURVEYS for spec in specs)
        self._timeouts = timeouts or Timeouts()
        self._failures: list[StageFailure] = []
        gate = StartGate()
        self._events: list[list[Event]] = [[] for _ in specs]
        self._workers = [
            StageClient(
                spec,
                recorder=recorder or NoRecorder(),
                timeouts=self._timeouts,
                on_status=on_status,
                on_failure=lambda failure, _: self._failures.append(failure),
                on_event=events.append,
                gate=gate,
            )
            for spec, events in zip(specs, self._events, strict=True)
        ]

    async def run(self) -> list[tuple[Event, ...]]:
        """Return what each worker told, in the order of the specs, once all have done it.

        Nothing is left running, whatever happens.

        Raises:
            HostsNotAsked: more than one of a survey failed; each had a while to end its own.
            StageFailure: the first that was noticed; the other workers have been ended.
        """
        works = [worker.finish() for worker in self._workers]
        try:
            await at_once(works, grace_s=self._timeouts.others_s if self._is_survey else 0.0)
        except StageFailure:
            failures = tuple(self._failures)
            await close_all(self._workers)
            is_alone = len(failures) == 1 or not self._is_survey
            raise (failures[0] if is_alone else HostsNotAsked(failures)) from None
        except BaseException:
            await close_all(self._workers)
            raise
        await close_all(self._workers)
        return [tuple(events) for events in self._events]

    def kill(self) -> None:
        """Send SIGKILL to every worker now."""
        for worker in self._workers:
            worker.kill()
