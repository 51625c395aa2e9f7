"""Start the stages as a run does, put requests through them, and tell what was found."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack

from orchestrator.benchmark.guessed import GuessRounds
from orchestrator.benchmark.options import BenchOptions
from orchestrator.benchmark.page import page_of
from orchestrator.benchmark.result import BenchResult
from orchestrator.benchmark.rounds import Rounds
from orchestrator.benchmark.summary import Summary
from orchestrator.benchmark.surveyed import Planned, planned
from orchestrator.benchmark.tables import show_result
from orchestrator.benchmark.tap import Tap
from orchestrator.benchmark.workload import Workload
from orchestrator.bundle.output import write_text
from orchestrator.bundle.records import Recorder
from orchestrator.bundle.screen import screen_for
from orchestrator.command import put
from orchestrator.interruption import Interruption
from orchestrator.pipeline import Pipeline
from orchestrator.run_bundle import Diary
from orchestrator.run_speculation import speculation_of
from orchestrator.setting import Setting, plan_setting
from orchestrator.speculation.speculator import Speculator
from orchestrator.stages import Stages
from orchestrator.status import RunDisplay
from orchestrator.stderr import is_watched, say
from orchestrator.trouble import trouble_of
from worker.protocol.exits import ExitCode


async def bench(options: BenchOptions, command: Sequence[str], hold: ExitStack) -> int:
    """Measure, print, and return the exit code; `command` is the command line for the bundle.

    Raises:
        Exception: whatever ended it before; the bundle has it too.
    """
    diary = Diary(options, command)
    try:
        result = await _measured(options, diary, hold)
        _print(result, options)
    except BaseException as error:
        trouble = trouble_of(error) if isinstance(error, Exception) else None
        diary.close(
            ExitCode.INTERRUPTED if trouble is None else trouble.exit_code,
            type(error).__name__ if trouble is None else trouble.sentence,
        )
        if diary.path is not None:
            say(f"see: orchestrator bundle diagnose {diary.path}")
        raise
    if result.guesses is not None and not result.guesses.same_tokens:
        sentence = "guesses changed the tokens of an answer, which they never may; see the table"
        diary.close(ExitCode.UNCAUGHT, sentence)
        say(f"error: {sentence}")
        return ExitCode.UNCAUGHT
    diary.close(ExitCode.OK, None)
    return ExitCode.OK


async def _measured(options: BenchOptions, diary: Diary, hold: ExitStack) -> BenchResult:
    setting = plan_setting(options, diary.around, hold, stub=options.stub, is_watched=is_watched())
    found = await planned(setting, diary)
    for note in found.plan.notes:
        say(f"note: {note}")
    recorder = Tap(diary.open(setting.entries, found.plan.specs, found.plan.placement))
    with Interruption(say) as interruption:
        began_s = time.perf_counter()
        async with (
            speculation_of(options, setting, found.plan.specs) as speculation,
            await _start(found, setting, recorder) as pipeline,
        ):
            interruption.harder = pipeline.kill
            ready_ms = (time.perf_counter() - began_s) * 1e3
            speculator, lack = await speculation.of(pipeline)
            if speculator is not None:
                interruption.harder = Pipeline(pipeline, recorder, speculator).kill
            if lack is not None:
                say(f"note: {lack}")
            summary = Summary(options, found, pipeline, ready_ms)
            notes = () if lack is None else (lack,)
            return await _asked(options, pipeline, recorder, speculator, summary, notes)


async def _asked(
    options: BenchOptions,
    pipeline: Stages,
    tap: Tap,
    speculator: Speculator | None,
    summary: Summary,
    notes: tuple[str, ...],
) -> BenchResult:
    workload = await Workload.fitted(
        pipeline,
        prompt_tokens=options.prompt_tokens,
        new_tokens=options.new_tokens,
        prefill_chunk=options.prefill_chunk,
    )
    rounds = Rounds(pipeline, tap, workload)
    guessing = None if speculator is None else GuessRounds(pipeline, tap, workload, speculator)
    first = await rounds.warm_up()
    if guessing is not None:
        await guessing.warm_up()
    for number in range(options.rounds):
        await rounds.run(options.streams, number, options.rounds)
        if guessing is not None:
            await guessing.run(number, options.rounds)
    guesses = None if guessing is None else guessing.result(options.draft_model_id)
    return summary.result(first, rounds, guesses, notes)


async def _start(found: Planned, setting: Setting, recorder: Recorder) -> Stages:
    """Start the stages; a stage that is lost ends the bench, for its figures would be odd."""
    with RunDisplay(found.plan.specs, sys.stderr, lambda: None) as display:
        return await Stages.start(
            found.plan.specs,
            recorder=recorder,
            timeouts=setting.timeouts,
            on_status=display.update,
            on_notice=say,
        )


def _print(result: BenchResult, options: BenchOptions) -> None:
    """Write the object or the tables, then the page.

    Raises:
        OutputClosed, OutputFailed: stdout cannot be written.
        OutputError: the page cannot.
    """
    if options.json:
        put(json.dumps(result.to_json(), indent=2))
    else:
        show_result(result, screen_for(sys.stdout))
    if options.html is not None:
        write_text(options.html, page_of(result))
        say(f"page: {options.html}")
