"""Start the stages, answer over HTTP until a signal comes, end in order."""

from __future__ import annotations

import contextlib
import shlex
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from orchestrator.interruption import Interrupted, Interruption
from orchestrator.opening import opened_in_view, settled
from orchestrator.pipeline import Pipeline
from orchestrator.run_bundle import Diary
from orchestrator.serve.app import build_app
from orchestrator.serve.desk import Desk
from orchestrator.serve.guard import Rules
from orchestrator.serve.health import Health
from orchestrator.serve.http_server import HttpServer
from orchestrator.serve.keys import Keys, read_keys
from orchestrator.serve.listener import Listener, listen
from orchestrator.serve.metered import MeteredRecorder
from orchestrator.serve.meters import Meters
from orchestrator.serve.openness import check_openness
from orchestrator.serve.options import ServeOptions
from orchestrator.serve.page.routes import OPEN_PATHS
from orchestrator.serve.service import Service
from orchestrator.serve.shift import Shift
from orchestrator.setting import plan_setting
from orchestrator.stages import Stages
from orchestrator.stderr import is_watched, say
from orchestrator.trouble import trouble_of
from worker.protocol.exits import ExitCode


async def serve(options: ServeOptions, command: Sequence[str], hold: ExitStack) -> int:
    """Serve until a signal comes; `command` is the command line for the bundle.

    Raises:
        Interrupted: a signal came, and all has ended.
        Exception: whatever else ended it; the bundle has it too.
    """
    diary = Diary(options, command)
    try:
        keys = Keys(read_keys(options.api_key_file, diary.around.api_key, say))
        with contextlib.closing(listen(options.host, options.port)) as listener:
            check_openness(listener, keys, options.no_api_key_because, say)
            await _serve(Job(options, diary, keys), listener, hold)
    except BaseException as error:
        trouble = trouble_of(error) if isinstance(error, Exception) else None
        diary.close(
            ExitCode.INTERRUPTED if trouble is None else trouble.exit_code,
            type(error).__name__ if trouble is None else trouble.sentence,
        )
        if diary.path is not None and not isinstance(error, Interrupted):
            say(f"see: orchestrator bundle diagnose {shlex.quote(str(diary.path))}")
        raise
    return ExitCode.OK


@dataclass(frozen=True, slots=True)
class Job:
    """What the command line settles.

    Attributes:
        keys: that clients must show one of.
    """

    options: ServeOptions
    diary: Diary
    keys: Keys


async def _serve(job: Job, listener: Listener, hold: ExitStack) -> None:
    options, begun_s = job.options, time.perf_counter()
    around = job.diary.around
    setting = plan_setting(options, around, hold, stub=options.stub, is_watched=is_watched())
    one = await settled(options, setting, job.diary)
    meters = Meters()
    recorder = MeteredRecorder(one.recorder(job.diary), meters)
    with Interruption(say) as interruption:

        def started(stages: Stages) -> None:
            interruption.harder = stages.kill

        async with opened_in_view(one, recorder, on_notice=_note, on_started=started) as pipeline:
            interruption.harder = pipeline.kill
            # A client that went away is not heard of again, for all that is known.
            if pipeline.prefixes is not None:
                pipeline.prefixes.keeps_given_up = False
            service = _service(options, pipeline, meters)
            http = _http_server(job, service, listener)
            count = len(pipeline.hosts)
            say(
                f"serving {service.model_name} at {listener.url} ({listener.scope}{count} "
                f"stage{'s' if count > 1 else ''} ready after "
                f"{time.perf_counter() - begun_s:.1f} s)"
            )
            if job.diary.path is not None:
                say(f"bundle: {job.diary.path}")
            await Shift(service, http, listener, options.drain_s).work(interruption)


def _service(options: ServeOptions, pipeline: Pipeline, meters: Meters) -> Service:
    desk = Desk(options.max_concurrent, options.max_queue)
    meters.begin(options.model_name, desk)
    return Service(
        pipeline=pipeline,
        model_name=options.model_name,
        created_s=time.time_ns() // 10**9,
        desk=desk,
        limits=options.limits,
        meters=meters,
    )


def _http_server(job: Job, service: Service, listener: Listener) -> HttpServer:
    options = job.options
    rules = Rules(
        keys=job.keys,
        open_paths=OPEN_PATHS | {"/health"},
        local_names_only=listener.is_loopback and not job.keys,
        origins=tuple(options.allow_origin or ()),
    )
    log = say if options.access_log else None
    app = build_app(service, Health(service.pipeline.stages), rules, log=log)
    return HttpServer(app, service.limits, most_connections=options.max_connections)


def _note(text: str) -> None:
    say(f"note: {text}")
