"""The options of `orchestrator stage-http`."""

from __future__ import annotations

import argparse
from dataclasses import dataclass, fields

from orchestrator import option_types
from orchestrator.host_keys import ENGINES
from orchestrator.pipeline_options import DEFAULT_RESTARTS
from orchestrator.plan_options import add_cache_flag, add_model_flags
from orchestrator.serve import limits
from orchestrator.serve.http_options import (
    DEFAULT_CONNECTIONS,
    DEFAULT_PLACES,
    DEFAULT_QUEUE,
    HttpOptions,
    add_access_flags,
    add_address_flags,
    add_count_flags,
    add_time_flags,
    told_name,
)
from orchestrator.specs import WorkerOptions
from orchestrator.worker_flags import add_device_flag, add_quantization_flag, add_trust_flag
from worker.protocol import schema

DEFAULT_ROWS = 2048
# Hidden states are large: 2048 rows of a 70B model are 32 MiB.
DEFAULT_BODY_BYTES = 64 * limits.MIB
# What a worker holds; requests without a session need one each while they run.
_WORKER_SESSIONS = 64
_MOST_PLACES = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class StageHttpOptions(HttpOptions):
    """What the command line asked for; see `add_options` for the meaning of each."""

    model_id: str | None
    revision: str | None
    stub: bool
    shard_start: int
    shard_end: int
    device: str | None
    quantization: str | None
    engine: str | None
    threads: int | None
    max_context: int | None
    trust_remote_code: bool
    cache_dir: str | None
    start_timeout_s: float | None
    restarts: int
    max_rows: int

    @property
    def model_name(self) -> str:
        """What clients are told of the model; of a folder its name alone."""
        return told_name(self.model_id)

    @property
    def max_sessions(self) -> int:
        """KV caches that are kept for clients."""
        return _WORKER_SESSIONS - self.max_concurrent

    @property
    def worker(self) -> WorkerOptions:
        """How the worker is started; what one message may have is the memory check's business."""
        return WorkerOptions(
            model_id=self.model_id,
            revision=self.revision,
            quantization=self.quantization,
            engine=self.engine,
            device=self.device,
            threads=self.threads,
            max_context=self.max_context,
            prefill_chunk=self.max_rows,
            trust_remote_code=self.trust_remote_code,
            stub=self.stub,
            cache_dir=self.cache_dir,
        )

    @property
    def limits(self) -> limits.Limits:
        """What one request may cost."""
        return limits.Limits(
            max_body_bytes=self.max_body_bytes,
            receive_timeout_s=self.receive_timeout_s,
            send_timeout_s=self.send_timeout_s,
        )

    def complaint(self) -> str | None:
        """Tell which options cannot be, in one sentence."""
        if self.model_id is None and not self.stub:
            return "give --model-id (a folder or a hub id), or --stub for a worker without a model"
        if self.shard_start >= self.shard_end:
            return (
                f"layers {self.shard_start}:{self.shard_end} are no range; --shard-start must be "
                "below --shard-end, which is not included"
            )
        if self.max_concurrent > _MOST_PLACES:
            return f"--max-concurrent {self.max_concurrent} is too many; give 1 to {_MOST_PLACES}"
        return None


def read_options(parser: argparse.ArgumentParser, parsed: argparse.Namespace) -> StageHttpOptions:
    """Return the options; ends the program with a usage error where they contradict."""
    values = {field.name: getattr(parsed, field.name) for field in fields(StageHttpOptions)}
    options = StageHttpOptions(**values)
    if (complaint := options.complaint()) is not None:
        parser.error(complaint)
    return options


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the flags."""
    model = parser.add_argument_group("model and layers")
    add_model_flags(model, needs_model=False)
    model.add_argument("--stub", action="store_true", help="no model, for trying out")
    for flag, kind, letter, text in (
        ("--shard-start", option_types.whole, "A", "the first layer; 0 takes prompts"),
        ("--shard-end", option_types.count, "B", "one past the last layer; the end gives tokens"),
    ):
        model.add_argument(flag, type=kind, required=True, metavar=letter, help=text)
    address = parser.add_argument_group("where it is served, and to whom")
    add_address_flags(address)
    add_access_flags(
        address,
        reason_goes_to="stderr",
        origin="let requests of pages of this origin pass",
    )
    _add_worker(parser.add_argument_group("worker"))
    _add_bounds(parser.add_argument_group("bounds"))


def _add_worker(group: argparse._ArgumentGroup) -> None:
    add_device_flag(group)
    add_quantization_flag(group)
    group.add_argument("--engine", choices=ENGINES, help="fast (default), stock, graphs")
    group.add_argument(
        "--threads", type=option_types.count, metavar="N", help="compute threads (default: cores)"
    )
    group.add_argument(
        "--max-context", type=option_types.count, metavar="N", help="most positions of a session"
    )
    add_trust_flag(group)
    add_cache_flag(group)
    group.add_argument(
        "--start-timeout-s",
        type=option_types.number(schema.POSITIVE_NUMBER),
        metavar="S",
        help="seconds that the worker may take to load, downloads aside (default: 3600)",
    )
    group.add_argument(
        "--restarts",
        type=option_types.whole,
        default=DEFAULT_RESTARTS,
        metavar="N",
        help="times in a row that a lost worker is started again; then this ends with its exit "
        "code (default: %(default)s)",
    )


def _add_bounds(group: argparse._ArgumentGroup) -> None:
    count, whole = option_types.count, option_types.whole
    add_count_flags(
        group,
        ("--max-rows", count, DEFAULT_ROWS, "rows of one message; 400 above"),
        ("--max-body-bytes", count, DEFAULT_BODY_BYTES, "size of a body; 413 above"),
        ("--max-concurrent", count, DEFAULT_PLACES, "requests at work at once"),
        ("--max-queue", whole, DEFAULT_QUEUE, "requests that wait; 429 above"),
        ("--max-connections", count, DEFAULT_CONNECTIONS, "at once; 503 above"),
    )
    add_time_flags(
        group,
        receive="for a head, and for a body",
        send="that a reply may be left unread",
        drain="that requests may take to end after SIGTERM or Ctrl-C",
    )
