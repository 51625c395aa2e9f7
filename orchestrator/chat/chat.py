"""`orchestrator chat`: plan, start the stages, chat, end the stages."""

from __future__ import annotations

import asyncio
import contextlib
import shlex
import signal
import time
import traceback
from collections.abc import Sequence
from functools import partial

from orchestrator.asking import AnswerOptions
from orchestrator.bundle.mask import Masker
from orchestrator.bundle.records import Recorder
from orchestrator.chat.attention import Attention
from orchestrator.chat.console import Console
from orchestrator.chat.options import ChatOptions
from orchestrator.chat.room import Room
from orchestrator.chat.session import Session
from orchestrator.chat.talk import Talk
from orchestrator.interruption import Interrupted
from orchestrator.opening import Settled, opened_in_view, settled
from orchestrator.pipeline import Pipeline
from orchestrator.request import RequestRefused
from orchestrator.run_bundle import Diary
from orchestrator.setting import plan_setting
from orchestrator.stderr import is_watched, say
from orchestrator.trouble import trouble_of
from worker.protocol.exits import ExitCode


def chat(options: ChatOptions, command: Sequence[str]) -> int:
    """Chat to the end and return the exit code; `command` is the command line for the bundle."""
    diary = Diary(options, command)
    details: str | None = None
    try:
        with contextlib.ExitStack() as hold:
            _chat(options, diary, hold)
    except KeyboardInterrupt:
        trouble = trouble_of(Interrupted(signal.SIGINT))
    except Exception as error:  # noqa: BLE001 - every error ends here, as one sentence and exit code
        trouble = trouble_of(error)
        if not trouble.expected:
            details = traceback.format_exc()
            say(details)
    else:
        diary.close(ExitCode.OK, None)
        return ExitCode.OK
    trouble = trouble.masked(Masker(diary.around.masked(options.forward or ())))
    if trouble.sentence:
        is_signal = trouble.kind == "interrupted"
        say(trouble.sentence if is_signal else f"error: {trouble.sentence}")
        if diary.path is not None and not is_signal:
            say(f"see: orchestrator bundle diagnose {shlex.quote(str(diary.path))}")
    diary.close(trouble.exit_code, details or trouble.sentence or None)
    return trouble.exit_code


def _chat(options: ChatOptions, diary: Diary, hold: contextlib.ExitStack) -> None:
    begun_s = time.perf_counter()
    setting = plan_setting(options, diary.around, hold, stub=options.stub, is_watched=is_watched())
    plan = asyncio.run(settled(options, setting, diary))
    recorder = plan.recorder(diary)
    with contextlib.closing(Console()) as console, Attention() as attention:
        room = Room(partial(_opened, plan, recorder, console))
        try:
            pipeline = _enter(room, attention)
            _check(pipeline)
            num_stages = len(pipeline.hosts)
            console.tell(
                f"{num_stages} stage{'' if num_stages == 1 else 's'} ready after "
                f"{time.perf_counter() - begun_s:.1f} s; /help tells what can be typed"
            )
            talk = Talk(options.system)
            Session(pipeline, room, console, attention, talk, _answers(options)).run()
        finally:
            console.end_text()
            with (
                attention.to(lambda number: room.hurry()),
                contextlib.suppress(asyncio.CancelledError),
            ):
                room.leave()


def _opened(
    plan: Settled, recorder: Recorder, console: Console
) -> contextlib.AbstractAsyncContextManager[Pipeline]:
    return opened_in_view(
        plan,
        recorder,
        on_notice=lambda text: console.tell(f"note: {text}"),
        end_text=console.end_text,
    )


def _enter(room: Room, attention: Attention) -> Pipeline:
    """Start the stages.

    Raises:
        Interrupted: a signal came meanwhile.
        StageFailure, PipelineMismatch, DraftRefused: see `opened`.
    """
    came: list[signal.Signals] = []

    def hurry(number: signal.Signals) -> None:
        if not came:
            say(f"{number.name}: ending the stages; a second one ends them at once")
        came.append(number)
        room.hurry()

    with attention.to(hurry):
        try:
            pipeline = room.enter()
        except BaseException:
            if came:
                raise Interrupted(came[0]) from None
            raise
    if came:
        raise Interrupted(came[0])
    return pipeline


def _check(pipeline: Pipeline) -> None:
    """See that the model can chat.

    Raises:
        RequestRefused: it cannot.
    """
    if not pipeline.has_chat_template:
        raise RequestRefused(
            "the model has no chat template; complete plain texts with orchestrator run --raw"
        )


def _answers(options: ChatOptions) -> AnswerOptions:
    return {
        "max_new_tokens": options.max_new_tokens,
        "temperature": options.temperature,
        "top_k": options.top_k,
        "top_p": options.top_p,
        "min_p": options.min_p,
        "repetition_penalty": options.repetition_penalty,
        "seed": options.seed,
        "stop": options.stop,
    }
