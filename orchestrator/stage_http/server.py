"""Start the worker, answer over HTTP until a signal comes or it is lost for good, end in order."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
import time
from dataclasses import replace

from orchestrator.config import Surroundings, surroundings
from orchestrator.hosts import HostEntry
from orchestrator.interruption import Interruption
from orchestrator.recovery.policy import RecoveryPolicy
from orchestrator.serve.desk import Desk
from orchestrator.serve.guard import Rules
from orchestrator.serve.http_server import HttpServer
from orchestrator.serve.keys import Keys, read_keys
from orchestrator.serve.listener import Listener, listen
from orchestrator.serve.openness import check_openness
from orchestrator.specs import StageSpec
from orchestrator.stage_http.app import HEALTH_PATH, StageService, build_app
from orchestrator.stage_http.forward import Forward
from orchestrator.stage_http.headers import MOST_HEAD_BYTES
from orchestrator.stage_http.one_stage import OneStage
from orchestrator.stage_http.options import StageHttpOptions
from orchestrator.stage_specs import Place, Ways, spec_of
from orchestrator.status import RunDisplay
from orchestrator.stderr import say
from orchestrator.timeouts import Timeouts
from worker.protocol.exits import ExitCode


async def serve_stage(options: StageHttpOptions) -> int:
    """Serve until a signal comes.

    Raises:
        KeysError, CannotListen: it cannot be served so; nothing was started.
        StageFailure: the worker cannot start, or is lost and the restarts are used up.
        Interrupted: a signal came, and all has ended.
    """
    around = surroundings()
    keys = Keys(read_keys(options.api_key_file, around.api_key, say))
    listener = listen(options.host, options.port)
    with contextlib.closing(listener.socket):
        check_openness(listener, keys, options.no_api_key_because, say)
        with Interruption(say) as interruption:
            await _run(options, around, listener, keys, interruption)
    return ExitCode.OK


async def _run(
    options: StageHttpOptions,
    around: Surroundings,
    listener: Listener,
    keys: Keys,
    interruption: Interruption,
) -> None:
    spec = _spec(options, around)
    display = RunDisplay([spec], sys.stderr, lambda: None)
    stage = OneStage(
        spec,
        timeouts=_timeouts(options.start_timeout_s),
        policy=RecoveryPolicy(most_attempts=options.restarts),
        on_status=display.update,
        on_notice=lambda text: say(f"note: {text}"),
    )
    interruption.harder = stage.kill
    begun_s = time.monotonic()
    try:
        with display:
            await stage.open()
        rules = Rules(
            keys=keys,
            open_paths=frozenset((HEALTH_PATH,)),
            local_names_only=listener.is_loopback and not keys,
            origins=tuple(options.allow_origin or ()),
        )
        service = StageService(
            stage=stage,
            forward=Forward(stage, options.max_rows, options.max_sessions),
            desk=Desk(options.max_concurrent, options.max_queue),
            limits=options.limits,
            model_name=options.model_name,
        )
        server = HttpServer(
            build_app(service, rules), options.limits, most_connections=options.max_connections
        )
        server.config.h11_max_incomplete_event_size = MOST_HEAD_BYTES
        layers, ready_s = stage.layers, time.monotonic() - begun_s
        say(
            f"serving layers {layers} of {layers.num_layers} of {options.model_name} at "
            f"{listener.url} ({listener.scope}ready after {ready_s:.1f} s)"
        )
        await _answer(server, listener, service, options.drain_s, interruption)
    finally:
        await stage.aclose()


async def _answer(
    server: HttpServer,
    listener: Listener,
    service: StageService,
    drain_s: float,
    interruption: Interruption,
) -> None:
    """Serve until a signal comes and the requests under way have ended, or the stage is lost."""
    asked_to_end = asyncio.Event()

    def drain(number: signal.Signals) -> None:
        if running := service.desk.running:
            say(
                f"{number.name}: ending once the {running} request{'' if running == 1 else 's'} "
                f"under way {'is' if running == 1 else 'are'} answered, after {drain_s:g} s at "
                "most; a second signal ends all at once"
            )
        service.desk.drain()
        asked_to_end.set()

    interruption.softer = drain
    serving = asyncio.create_task(server.serve(sockets=[listener.socket]))
    watching = asyncio.create_task(service.stage.watch())
    asked = asyncio.create_task(asked_to_end.wait())
    try:
        await asyncio.wait({serving, watching, asked}, return_when=asyncio.FIRST_COMPLETED)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(drain_s if asked.done() else 0):
                await service.desk.idle()
    finally:
        service.desk.drain()
        server.should_exit = True
        asked.cancel()
        watching.cancel()
        await asyncio.wait({serving, watching, asked})
    if not watching.cancelled():
        watching.result()
    serving.result()


def _spec(options: StageHttpOptions, around: Surroundings) -> StageSpec:
    layers = (options.shard_start, options.shard_end)
    ways = Ways(cores=around.cores, python_path=around.python_path)
    place = Place(HostEntry(line=0), stage=0, num_stages=1, layers=layers)
    return spec_of(place, options.worker, ways, local_workers=1)


def _timeouts(start_timeout_s: float | None) -> Timeouts:
    if start_timeout_s is None:
        return Timeouts()
    return replace(Timeouts(), hello_s=start_timeout_s, ready_s=start_timeout_s)
