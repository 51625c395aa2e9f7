"""Workers for one errand: they end by themselves, all together, and leave nothing behind."""

from __future__ import annotations

import asyncio
import os
import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.errand import Errands
from orchestrator.errand_kind import ErrandKind
from orchestrator.failures import Crashed, HostsNotAsked, NotReady, StageFailure, VersionMismatch
from orchestrator.specs import StageSpec, WorkerOptions
from orchestrator.stage import StageStatus
from orchestrator.timeouts import Timeouts
from tests.support.errand_hosts import peer_line
from tests.support.stages import PATIENT, MemoryRecorder, peer_spec
from worker.protocol.events import Event


def errand(
    kind: ErrandKind = ErrandKind.SURVEY, stage: int = 0, **environment: object
) -> StageSpec:
    command = shlex.split(peer_line(**environment).partition("=")[2])[0]
    return StageSpec(
        stage=stage,
        num_stages=8,
        host=f"host{stage}",
        transport="command",
        command=tuple(shlex.split(command)),
        options=WorkerOptions(only=kind, model_id="m"),
    )


def done(
    *specs: StageSpec, recorder: MemoryRecorder | None = None, timeouts: Timeouts = PATIENT
) -> tuple[list[tuple[Event, ...]], list[str]]:
    """Run the errands; return what was told, and the phases of the first."""
    phases: list[str] = []

    def note(status: StageStatus) -> None:
        if status.stage == specs[0].stage and [status.phase] != phases[-1:]:
            phases.append(status.phase)

    errands = Errands(specs, recorder=recorder, timeouts=timeouts, on_status=note)
    return asyncio.run(errands.run()), phases


def test_an_errand_ends_by_itself_and_its_events_are_returned_in_order() -> None:
    recorder = MemoryRecorder()
    told, phases = done(errand(), errand(ErrandKind.FETCH, 1), recorder=recorder)
    assert [[event.kind for event in events] for events in told] == [
        ["starting", "host_surveyed", "model_surveyed", "exiting"],
        ["starting", *["pp_download_progress"] * 3, "model_fetched", "exiting"],
    ]
    assert phases == ["connecting", "loading", "done", "closed"]
    assert [(end.exit_code, end.expected) for end in recorder.exits] == [(0, True)] * 2
    assert recorder.failures == []


def test_the_first_failure_is_raised_and_the_others_are_ended() -> None:
    recorder = MemoryRecorder()
    with pytest.raises(StageFailure) as caught:
        done(
            errand(errand="hangs"),
            errand(stage=1, errand="dies"),
            recorder=recorder,
            timeouts=replace(PATIENT, others_s=0.1),
        )
    assert (type(caught.value), caught.value.scene.stage, caught.value.scene.phase) == (
        Crashed,
        1,
        "surveying",
    )
    ends = {end.stage: (end.signal, end.expected) for end in recorder.exits}
    assert ends == {0: (None, True), 1: ("SIGKILL", False)}


def test_all_that_fail_a_survey_are_named_and_only_the_first_of_another_errand() -> None:
    with pytest.raises(HostsNotAsked) as caught:
        done(*(errand(stage=stage, errand="dies") for stage in (0, 1)))
    assert (str(caught.value).count("\n"), caught.value.kind, caught.value.exit_code) == (
        1,
        "crashed",
        5,
    )
    with pytest.raises(Crashed) as alone:
        done(*(errand(ErrandKind.FETCH, stage, errand="dies") for stage in (0, 1)))
    assert "\n" not in str(alone.value)


def test_another_protocol_is_refused_with_both_versions() -> None:
    spec = peer_spec("other_version")
    with pytest.raises(VersionMismatch, match="the worker on other_version speaks protocol"):
        done(replace(spec, options=WorkerOptions(only=ErrandKind.LIST_CACHE)))


class SkippingLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock a test can put forward."""

    skipped_s = 0.0

    def time(self) -> float:
        return super().time() + self.skipped_s


def fetched_in_steps(fifo: Path, *, skip_s: float, limit_s: float) -> tuple[Event, ...]:
    """Fetch in three steps, each after `skip_s` seconds of the clock."""
    os.mkfifo(fifo)
    ticks = os.open(fifo, os.O_RDWR)  # so that a write never waits for a reader
    news = asyncio.Event()

    def note(status: StageStatus) -> None:
        if status.phase == "loading":
            news.set()

    async def run() -> list[tuple[Event, ...]]:
        spec, timeouts = errand(ErrandKind.FETCH, steps=fifo), replace(PATIENT, errand_s=limit_s)
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SkippingLoop)
        running = asyncio.create_task(Errands([spec], timeouts=timeouts, on_status=note).run())
        for _ in range(3):
            await asyncio.wait(
                {running, asyncio.create_task(news.wait())}, return_when="FIRST_COMPLETED"
            )
            news.clear()
            loop.skipped_s += skip_s
            await asyncio.sleep(0)
            if running.done():
                break
            os.write(ticks, b"x")
        return await running

    try:
        with asyncio.Runner(loop_factory=SkippingLoop) as runner:
            (events,) = runner.run(run())
    finally:
        os.close(ticks)
    return events


def test_a_download_that_advances_is_never_late(tmp_path: Path) -> None:
    events = fetched_in_steps(tmp_path / "tick", skip_s=600, limit_s=1000)
    assert events[-1].kind == "exiting"


def test_a_download_that_does_not_advance_is_late(tmp_path: Path) -> None:
    with pytest.raises(NotReady, match=r"was not done within 1000 s \(last event: starting\)"):
        fetched_in_steps(tmp_path / "tick", skip_s=1001, limit_s=1000)
