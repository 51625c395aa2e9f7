"""`orchestrator run`: plan, start the stages, stream one answer, end the stages."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import signal
import sys
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from orchestrator.answer import Answer
from orchestrator.bundle.held import HeldRecorder
from orchestrator.bundle.mask import Masker
from orchestrator.bundle.records import Recorder
from orchestrator.config import Surroundings
from orchestrator.failures import StageFailure
from orchestrator.generate import generate
from orchestrator.interruption import Interrupted, Interruption
from orchestrator.pipeline import Pipeline
from orchestrator.placing import settle
from orchestrator.plan import Plan
from orchestrator.prompt import as_messages, read_prompt
from orchestrator.recovery import RecoveryPolicy
from orchestrator.request import GenerationRequest, RequestRefused
from orchestrator.run_bundle import Diary
from orchestrator.run_options import RunOptions
from orchestrator.run_report import end_line, report
from orchestrator.run_speculation import Speculation, speculation_of
from orchestrator.setting import Setting, plan_setting
from orchestrator.status import RunDisplay
from orchestrator.stderr import is_watched, say
from orchestrator.survey import survey_specs
from orchestrator.text_output import TextOutput
from orchestrator.trouble import Trouble, trouble_of
from worker.protocol.encodings import Encoding
from worker.protocol.ops import Sampling


@dataclass(frozen=True, slots=True)
class Job:
    """Everything that is settled before the first process is started."""

    options: RunOptions
    setting: Setting
    prompt: str


def run(options: RunOptions, command: Sequence[str]) -> int:
    """Run it and return the exit code; `command` is the command line for the bundle."""
    with contextlib.ExitStack() as hold:
        return _run(options, command, hold)


def _run(options: RunOptions, command: Sequence[str], hold: contextlib.ExitStack) -> int:
    answer = Answer()
    diary = Diary(options, command)
    trouble: Trouble | None = None
    error_text: str | None = None
    try:
        job = prepare(options, diary.around, hold)
        plan = _settle(job, diary)
        recorder = diary.open(job.setting.entries, plan.specs, plan.placement)
        answer.bundle = diary.path
        asyncio.run(_serve(job, plan, answer, recorder))
    except KeyboardInterrupt:
        trouble = trouble_of(Interrupted(signal.SIGINT))
    except Exception as error:  # noqa: BLE001 - every error ends here, as one sentence and exit code
        trouble = trouble_of(error)
        if not trouble.expected:
            error_text = traceback.format_exc()
            say(error_text)
    if trouble is not None:
        trouble = trouble.masked(Masker(diary.around.masked(options.forward or ())))
    answer.bundle = diary.path
    exit_code = report(options, answer, trouble)
    diary.close(exit_code, error_text or (trouble.sentence if trouble else "") or None)
    return exit_code


def prepare(options: RunOptions, around: Surroundings, hold: contextlib.ExitStack) -> Job:
    """Settle hosts and prompt; `hold` keeps an allocation of Slurm.

    Raises:
        HostsError, SlurmError, PromptError: one of them cannot be used.
    """
    setting = plan_setting(options, around, hold, stub=options.stub, is_watched=is_watched())
    return Job(options, setting, read_prompt(options))


def _settle(job: Job, diary: Diary) -> Plan:
    """Plan; what a survey told is in the bundle only where it failed.

    Raises:
        StageFailure, PlanError, Interrupted: see `settle`.
    """
    held = HeldRecorder()
    try:
        return asyncio.run(settle(job.setting, held))
    except StageFailure:
        held.hand_over(diary.open(job.setting.entries, survey_specs(job.setting)))
        raise


async def _serve(job: Job, plan: Plan, answer: Answer, recorder: Recorder) -> None:
    output = TextOutput.stdout()
    for note in plan.notes:
        _note(answer, note)
    try:
        with Interruption(say) as interruption:
            async with (
                speculation_of(job.options, job.setting, plan.specs) as speculation,
                await _start(job, plan, answer, recorder) as pipeline,
            ):
                interruption.harder = partial(_kill, pipeline, speculation)
                answer.started(pipeline.hosts, pipeline.ready)
                if job.options.wire_encoding == Encoding.INT8_ROW_TOP8 and len(pipeline.ready) > 1:
                    _note(answer, "hidden states travel as int8-row-top8: near the exact answer")
                request = _request(job, pipeline.facts.capabilities, answer)
                speculator, lack = await speculation.of(pipeline)
                if lack is not None:
                    _note(answer, lack)
                answer.asked()
                tokens = generate(pipeline, request, recorder, speculator)
                try:
                    async with contextlib.aclosing(tokens):
                        async for token in tokens:
                            answer.take(token)
                            if not job.options.json:
                                await output.write(token.text)
                finally:
                    answer.ended(pipeline)
    finally:
        output.close()


async def _start(job: Job, plan: Plan, answer: Answer, recorder: Recorder) -> Pipeline:
    shown = 0

    def end_text() -> None:
        nonlocal shown
        if not job.options.json and not answer.ends_line and shown != len(answer.pieces):
            end_line()
        shown = len(answer.pieces)

    def on_notice(text: str) -> None:
        end_text()
        _note(answer, text)

    with RunDisplay(plan.specs, sys.stderr, end_text) as display:
        return await Pipeline.start(
            plan.specs,
            recorder=recorder,
            timeouts=job.setting.timeouts,
            on_status=display.update,
            policy=RecoveryPolicy(most_attempts=job.options.restarts),
            spares=plan.spares,
            on_notice=on_notice,
            wire_encoding=job.options.wire_encoding,
            links=job.options.links,
        )


def _kill(pipeline: Pipeline, speculation: Speculation) -> None:
    pipeline.kill()
    speculation.kill()


def _request(job: Job, capabilities: frozenset[str], answer: Answer) -> GenerationRequest:
    options = job.options
    is_chat = not options.raw and "chat_template" in capabilities
    if not is_chat and options.system is not None:
        raise RequestRefused(
            "the model has no chat template, so --system has no place; put its text into the prompt"
        )
    if not is_chat and not options.raw:
        _note(answer, "the model has no chat template; completing the plain text, as --raw does")
    if options.temperature > 0:
        answer.seed = secrets.randbelow(2**31) if options.seed is None else options.seed
    return GenerationRequest(
        request_id=f"run-{time.time_ns():x}",
        prompt=None if is_chat else job.prompt,
        messages=as_messages(job.prompt, options.system) if is_chat else None,
        max_new_tokens=options.max_new_tokens,
        sampling=Sampling(
            temperature=options.temperature,
            top_k=options.top_k,
            top_p=options.top_p,
            min_p=options.min_p,
            repetition_penalty=options.repetition_penalty,
            seed=answer.seed or 0,
        ),
        stop=options.stop,
        ignore_eos=options.ignore_eos,
        prefill_chunk=options.prefill_chunk,
    )


def _note(answer: Answer, note: str) -> None:
    answer.notes.append(note)
    say(f"note: {note}")
