"""From options to a pipeline that answers: where every one is planned, started and ended."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass

from orchestrator.bundle.held import HeldRecorder
from orchestrator.bundle.records import Recorder
from orchestrator.errand_run import RunErrands, run_errands, run_errands_quietly
from orchestrator.failures import StageFailure
from orchestrator.pipeline import Pipeline
from orchestrator.pipeline_options import PipelineOptions
from orchestrator.placing import settle
from orchestrator.plan import Plan
from orchestrator.prefixes import Prefixes, Reuse
from orchestrator.recovery import RecoveryPolicy
from orchestrator.run_bundle import Diary
from orchestrator.run_speculation import speculation_of
from orchestrator.setting import Setting, plan_setting
from orchestrator.stage import StageStatus
from orchestrator.stages import Stages
from orchestrator.status import RunDisplay
from orchestrator.survey import survey_specs
from orchestrator.trouble import trouble_of
from worker.protocol.encodings import Encoding
from worker.protocol.exits import ExitCode


@dataclass(frozen=True, slots=True)
class Settled:
    """Everything that is known before the first stage is started."""

    options: PipelineOptions
    setting: Setting
    plan: Plan

    def recorder(self, diary: Diary) -> Recorder:
        """Begin the bundle."""
        return diary.open(self.setting.entries, self.plan.specs, self.plan.placement)


async def settled(
    options: PipelineOptions, setting: Setting, diary: Diary, errands: RunErrands = run_errands
) -> Settled:
    """Plan; what a survey told is in the bundle only where it failed.

    Args:
        options: what was asked for.
        setting: what comes of them; see `plan_setting`.
        diary: the bundle.
        errands: how the hosts are asked, where they have to be.

    Raises:
        StageFailure, PlanError, Interrupted: see `settle`.
    """
    held = HeldRecorder()
    try:
        return Settled(options, setting, await settle(setting, held, errands))
    except StageFailure:
        diary.open_survey(setting.entries, survey_specs(setting), held)
        raise


@contextlib.asynccontextmanager
async def opened(
    settled: Settled,
    recorder: Recorder,
    *,
    on_status: Callable[[StageStatus], None] = lambda status: None,
    on_notice: Callable[[str], None] = lambda text: None,
    on_started: Callable[[Stages], None] = lambda stages: None,
) -> AsyncIterator[Pipeline]:
    """Start the stages, and a draft model beside them; end them all with the block.

    Args:
        settled: what to start.
        recorder: takes every fact.
        on_status: see `Stages.start`.
        on_notice: takes one sentence for the user each time.
        on_started: told once all stages serve; a draft model may take longer.

    Raises:
        StageFailure, PipelineMismatch: see `Stages.start`.
        DraftRefused: the draft model cannot guess for this one.
    """
    options, setting, plan = settled.options, settled.setting, settled.plan
    for note in plan.notes:
        on_notice(note)
    async with (
        speculation_of(options, setting, plan.specs) as speculation,
        await Stages.start(
            plan.specs,
            recorder=recorder,
            timeouts=setting.timeouts,
            on_status=on_status,
            policy=RecoveryPolicy(most_attempts=options.restarts),
            spares=plan.spares,
            on_notice=on_notice,
            wire_encoding=options.wire_encoding,
            links=options.links,
        ) as stages,
    ):
        on_started(stages)
        if options.wire_encoding == Encoding.INT8_ROW_TOP8 and len(stages.ready) > 1:
            on_notice("hidden states travel as int8-row-top8: near the exact answer")
        speculator, lack = await speculation.of(stages)
        if lack is not None:
            on_notice(lack)
        async with contextlib.aclosing(Prefixes(stages, Reuse(options.prefix_reuse))) as prefixes:
            if prefixes.lack is not None:
                on_notice(prefixes.lack)
            yield Pipeline(
                stages,
                recorder,
                speculator,
                prefixes=prefixes,
                prefill_chunk=options.prefill_chunk,
            )


@contextlib.asynccontextmanager
async def opened_in_view(
    settled: Settled,
    recorder: Recorder,
    *,
    on_notice: Callable[[str], None],
    on_started: Callable[[Stages], None] = lambda stages: None,
    end_text: Callable[[], None] = lambda: None,
) -> AsyncIterator[Pipeline]:
    """Open a pipeline as a command does: what the stages do is told on stderr.

    Args:
        settled, recorder, on_notice, on_started: see `opened`.
        end_text: called before each line of a stage that is started again.

    Raises:
        StageFailure, PipelineMismatch, DraftRefused: see `opened`.
    """
    with contextlib.ExitStack() as view:
        display = view.enter_context(RunDisplay(settled.plan.specs, sys.stderr, end_text))

        def started(stages: Stages) -> None:
            view.close()
            on_started(stages)

        async with opened(
            settled,
            recorder,
            on_status=display.update,
            on_notice=on_notice,
            on_started=started,
        ) as pipeline:
            yield pipeline


@contextlib.asynccontextmanager
async def opened_by_options(
    options: PipelineOptions,
    command: Sequence[str],
    *,
    record: Callable[[Recorder], Recorder] = lambda recorder: recorder,
    on_status: Callable[[StageStatus], None] = lambda status: None,
    on_notice: Callable[[str], None] = lambda text: None,
) -> AsyncIterator[Pipeline]:
    """Plan and open a pipeline for a program that has no terminal; end all with the block.

    Args:
        options: what is asked for.
        command: the program's command line, for the bundle.
        record: given what writes the bundle, returns what takes the facts.
        on_status, on_notice: see `opened`.

    Raises:
        HostsError, SlurmError, NotForwarded: see `plan_setting`.
        StageFailure, PlanError, PipelineMismatch, DraftRefused: see `settled` and `opened`.
    """
    diary = Diary(options, command)
    with contextlib.ExitStack() as hold:
        try:
            setting = plan_setting(options, diary.around, hold, stub=options.stub)
            one = await settled(options, setting, diary, run_errands_quietly)
            recorder = record(one.recorder(diary))
            async with opened(one, recorder, on_status=on_status, on_notice=on_notice) as pipeline:
                yield pipeline
        except BaseException as error:
            trouble = trouble_of(error) if isinstance(error, Exception) else None
            if trouble is None:
                diary.close(ExitCode.INTERRUPTED, type(error).__name__)
            else:
                # What the block itself raised may quote the user's text.
                known = trouble.sentence if trouble.expected else type(error).__name__
                diary.close(trouble.exit_code, known)
            raise
        diary.close(ExitCode.OK, None)
