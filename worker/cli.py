"""The worker from its command line to its last line."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn

from worker import __version__
from worker.backends.base import StageBackend
from worker.channel import End, take_stdio
from worker.config import WorkerConfig, read_config, wait_passively
from worker.environment import take_environment
from worker.errands import errand_of
from worker.failures import LoadFailed, UsageError
from worker.handlers import Handlers
from worker.lifecycle import Lifecycle
from worker.links import Links
from worker.protocol.codec import PROTOCOL_VERSION, encode_ready
from worker.protocol.encodings import Encoding
from worker.protocol.events import Event, ModelLoadFailed, SessionEvicted, WorkerReady
from worker.protocol.exits import ExitCode
from worker.protocol.ready import Ready
from worker.protocol.roles import StageIdentity
from worker.serve import Server
from worker.sessions import Sessions

Opened = tuple[StageIdentity, StageBackend[Any]]
Opener = Callable[[WorkerConfig, Callable[[Event], None]], Opened]


def main(argv: Sequence[str] | None = None) -> int:
    """Run a worker; returns only for wrong usage, with its exit code."""
    try:
        config = read_config(sys.argv[1:] if argv is None else argv)
    except UsageError as error:
        print(f"worker: {error}", file=sys.stderr)
        return ExitCode.USAGE
    if config.only is not None:
        return do_errand(config)
    return run(config, open_stub if config.stub else open_model)


def do_errand(config: WorkerConfig) -> NoReturn:
    """Do the one thing that `--only` names, and end the process; nothing is served."""
    life = Lifecycle(config, *take_stdio())
    life.start()
    if config.await_environment:
        take_environment(life)
    with _failures(life):
        errand_of(config)(config, life.emit)
    life.finish_boot()
    life.leave(End("errand_done", ExitCode.OK))


def run(config: WorkerConfig, opener: Opener) -> NoReturn:
    """Open a stage, serve it, and end the process."""
    life = Lifecycle(config, *take_stdio())
    life.start()
    if config.await_environment:
        take_environment(life)
    identity, backend = _open(life, config, opener)
    facts = backend.facts
    budget_bytes = config.kv_budget_bytes or facts.kv_budget_bytes
    sessions = Sessions(
        backend.new_cache,
        config.max_sessions,
        budget_bytes,
        lambda rid, freed: life.emit(SessionEvicted(rid=rid, bytes_freed=freed)),
    )
    handlers = Handlers(identity.slice, backend, sessions)
    links = Links()
    server = Server(life.channel, identity, handlers, life.emit, links)
    life.requests_served = lambda: server.requests_served
    life.kv_held = lambda: sessions.held
    life.channel.send(encode_ready(ready_line(config, identity, backend, links)))
    life.emit(WorkerReady(layer_range=str(identity.slice)))
    life.finish_boot()
    life.leave(server.run())


def open_stub(config: WorkerConfig, emit: Callable[[Event], None]) -> Opened:
    """Open a stage of the stub."""
    from worker.backends.stub import NUM_LAYERS, StubBackend

    identity = config.identity(NUM_LAYERS)
    return identity, StubBackend(identity.slice)


def open_model(config: WorkerConfig, emit: Callable[[Event], None]) -> Opened:
    """Open a stage of a real model; torch is imported here and not before."""
    from worker.backends.transformers import open_stage

    wait_passively()
    return open_stage(config, emit)


def ready_line(
    config: WorkerConfig, identity: StageIdentity, backend: StageBackend[Any], links: Links
) -> Ready:
    """Return what the stage is and can."""
    facts, own = backend.facts, identity.slice
    return Ready(
        pid=os.getpid(),
        stage=identity.stage,
        num_stages=identity.num_stages,
        protocol_version=PROTOCOL_VERSION,
        version=__version__,
        layer_range=(own.shard_start, own.shard_end),
        total_blocks=own.num_layers,
        hidden_dim=facts.hidden_dim,
        hidden_dtype=facts.hidden_dtype,
        vocab_size=facts.vocab_size,
        eos_token_ids=facts.eos_token_ids,
        max_context=facts.max_context,
        needs_tokens=facts.needs_tokens,
        model_type=facts.model_type,
        model_id=config.model_id,
        commit=facts.commit,
        quantization=facts.quantization,
        device=facts.device,
        capabilities=(*facts.capabilities, *links.capabilities),
        max_rows=facts.max_rows,
        encodings=(Encoding.BF16.value, *facts.codings),
        numerics=dict(facts.numerics) or None,
    )


def _open(life: Lifecycle, config: WorkerConfig, opener: Opener) -> Opened:
    """Open the stage, or end the process with one sentence on stderr and in an event."""
    with _failures(life):
        return opener(config, life.emit)
    raise AssertionError("a failure ends the process")


@contextmanager
def _failures(life: Lifecycle) -> Iterator[None]:
    """End the process with one sentence on stderr and in an event when the block fails."""
    trace = None
    try:
        yield
        return
    except LoadFailed as error:
        text, kind, code = error.text, type(error.__cause__ or error).__name__, error.code
    except MemoryError as error:
        text, kind = f"no memory to load the stage: {error}", type(error).__name__
        code = ExitCode.OUT_OF_MEMORY
    except (Exception, SystemExit) as error:  # noqa: BLE001 - a model's own code may do anything.
        kind = type(error).__name__
        text = f"loading failed: {kind}: {error}"
        code = ExitCode.LOAD_FAILED
        trace = traceback.format_exc()
    print(f"worker: {trace or text}", file=sys.stderr, flush=True)
    life.emit(ModelLoadFailed(error=text, error_type=kind, traceback=trace))
    life.leave(End("load_failed", code))
