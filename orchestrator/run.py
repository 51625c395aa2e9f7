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
from dataclasses import dataclass, replace

from orchestrator.answer import Answer
from orchestrator.bundle.records import NoRecorder, Recorder
from orchestrator.bundle.writer import BundleWriter
from orchestrator.config import Surroundings, surroundings
from orchestrator.generate import generate
from orchestrator.hosts import HostEntry, read_hosts
from orchestrator.interruption import Interrupted, Interruption
from orchestrator.pipeline import Pipeline
from orchestrator.plan import Plan, Ways, make_plan
from orchestrator.prompt import as_messages, read_prompt
from orchestrator.request import GenerationRequest, RequestRefused
from orchestrator.run_bundle import clear_old_bundles, open_bundle
from orchestrator.run_options import RunOptions
from orchestrator.run_report import report
from orchestrator.specs import WorkerOptions
from orchestrator.status import start_display
from orchestrator.stderr import say
from orchestrator.text_output import TextOutput
from orchestrator.timeouts import Timeouts
from orchestrator.trouble import Trouble, trouble_of
from worker.protocol.ops import Sampling


@dataclass(frozen=True, slots=True)
class Job:
    """Everything that is settled before the first process is started."""

    options: RunOptions
    entries: Sequence[HostEntry]
    plan: Plan
    prompt: str


def run(options: RunOptions, command: Sequence[str]) -> int:
    """Run it and return the exit code; `command` is the command line for the bundle."""
    answer = Answer()
    writer: BundleWriter | None = None
    trouble: Trouble | None = None
    error_text: str | None = None
    around = surroundings()
    try:
        job = prepare(options, around)
        if not options.no_bundle:
            writer = open_bundle(options, job.entries, job.plan, around, command)
            answer.bundle = writer.path if writer.is_open else None
        asyncio.run(_serve(job, answer, writer or NoRecorder()))
    except KeyboardInterrupt:
        trouble = trouble_of(Interrupted(signal.SIGINT))
    except Exception as error:  # noqa: BLE001 - every error ends here, as one sentence and exit code
        trouble = trouble_of(error)
        if not trouble.expected:
            error_text = traceback.format_exc()
            say(error_text)
    exit_code = report(options, answer, trouble)
    if writer is not None:
        sentence = trouble.sentence if trouble else ""
        writer.close(exit_code, error_text or sentence or None)
        clear_old_bundles(options, around)
    return exit_code


def prepare(options: RunOptions, around: Surroundings) -> Job:
    """Settle hosts, layers and prompt.

    Raises:
        HostsError, PlanError, PromptError: one of them cannot be used.
    """
    if options.hosts is not None:
        entries = read_hosts(options.hosts)
    else:
        entries = [HostEntry(line=0, slots=options.local or 1)]
    worker = WorkerOptions(
        model_id=options.model_id,
        revision=options.revision,
        quantization=options.quantization,
        device=options.device,
        threads=options.threads,
        max_context=options.max_context,
        prefill_chunk=options.prefill_chunk,
        trust_remote_code=options.trust_remote_code,
        stub=options.stub,
    )
    ways = Ways(
        hosts_name="" if options.hosts is None else str(options.hosts),
        ssh_command=options.ssh_command,
        accept_new_host_key=options.accept_new,
        python_path=around.python_path,
        cores=around.cores,
    )
    plan = make_plan(entries, worker, ways)
    return Job(options, entries, plan, read_prompt(options))


async def _serve(job: Job, answer: Answer, recorder: Recorder) -> None:
    output = TextOutput.stdout()
    for note in job.plan.notes:
        _note(answer, note)
    try:
        with Interruption(say) as interruption:
            async with await _start(job, recorder) as pipeline:
                interruption.harder = pipeline.kill
                answer.started(tuple(spec.host for spec in job.plan.specs), pipeline.facts.ready)
                request = _request(job, pipeline.facts.capabilities, answer)
                tokens = generate(pipeline, request, recorder)
                async with contextlib.aclosing(tokens):
                    async for token in tokens:
                        answer.take(token)
                        if not job.options.json:
                            await output.write(token.text)
    finally:
        output.close()


async def _start(job: Job, recorder: Recorder) -> Pipeline:
    timeouts, limit_s = Timeouts(), job.options.start_timeout_s
    if limit_s is not None:
        timeouts = replace(timeouts, hello_s=limit_s, ready_s=limit_s)
    with start_display(job.plan.specs, sys.stderr) as display:
        return await Pipeline.start(
            job.plan.specs, recorder=recorder, timeouts=timeouts, on_status=display.update
        )


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
