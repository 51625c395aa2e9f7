"""`orchestrator run`: plan, start the stages, stream one answer, end the stages."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import signal
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass

from orchestrator.answer import Answer
from orchestrator.bundle.mask import Masker
from orchestrator.bundle.records import Recorder
from orchestrator.config import Surroundings
from orchestrator.interruption import Interrupted, Interruption
from orchestrator.opening import Settled, opened_in_view, settled
from orchestrator.pipeline import Pipeline
from orchestrator.prompt import as_messages, read_prompt
from orchestrator.request import GenerationRequest, RequestRefused
from orchestrator.run_bundle import Diary
from orchestrator.run_options import RunOptions
from orchestrator.run_report import end_line, report
from orchestrator.setting import Setting, plan_setting
from orchestrator.stages import Stages
from orchestrator.stderr import is_watched, say
from orchestrator.text_output import TextOutput
from orchestrator.trouble import Trouble, trouble_of
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
        plan = asyncio.run(settled(options, job.setting, diary))
        recorder = plan.recorder(diary)
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


async def _serve(job: Job, plan: Settled, answer: Answer, recorder: Recorder) -> None:
    text = _Text(answer, shows=not job.options.json)
    try:
        with Interruption(say) as interruption:

            def started(stages: Stages) -> None:
                interruption.harder = stages.kill
                answer.started(stages.hosts, stages.ready)

            async with opened_in_view(
                plan, recorder, on_notice=text.note, on_started=started, end_text=text.end
            ) as pipeline:
                interruption.harder = pipeline.kill
                request = _request(job, pipeline, text)
                answer.asked()
                try:
                    async with contextlib.aclosing(pipeline.submit(request)) as tokens:
                        async for token in tokens:
                            answer.take(token)
                            await text.show(token.text)
                finally:
                    answer.ended(pipeline.stages)
    finally:
        text.close()


class _Text:
    """The answer on stdout, and the notes beside it on stderr."""

    def __init__(self, answer: Answer, *, shows: bool) -> None:
        self.answer = answer
        self._output = TextOutput.stdout()
        self._shows = shows
        self._num_ended = 0

    async def show(self, text: str) -> None:
        """Write the newest piece."""
        if self._shows:
            await self._output.write(text)

    def note(self, text: str) -> None:
        """Tell the user something, and keep it."""
        self.end()
        self.answer.notes.append(text)
        say(f"note: {text}")

    def end(self) -> None:
        """End the line of the text for what goes to stderr, once."""
        num_pieces = len(self.answer.pieces)
        if self._shows and not self.answer.ends_line and self._num_ended != num_pieces:
            end_line()
        self._num_ended = num_pieces

    def close(self) -> None:
        """End the thread that writes."""
        self._output.close()


def _request(job: Job, pipeline: Pipeline, text: _Text) -> GenerationRequest:
    options, answer = job.options, text.answer
    is_chat = not options.raw and pipeline.has_chat_template
    if not is_chat and options.system is not None:
        raise RequestRefused(
            "the model has no chat template, so --system has no place; put its text into the prompt"
        )
    if not is_chat and not options.raw:
        text.note("the model has no chat template; completing the plain text, as --raw does")
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
