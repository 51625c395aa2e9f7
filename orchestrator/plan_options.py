"""Options of every command that plans: which hosts, which model, how its weights come there."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, TypeVar

from orchestrator import option_types
from orchestrator.config import DEFAULT_SSH_COMMAND
from orchestrator.worker_flags import add_worker_flags
from worker.protocol import schema

DEFAULT_SLURM_WAIT_S = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ReachOptions:
    """Which hosts, how they are reached, and where they keep weights.

    Attributes:
        hosts: the path of a hosts file, or its lines.
        slurm: options of salloc, "" for the allocation that this program runs in; None for hosts
            that Slurm does not hold.
    """

    hosts: Path | tuple[str, ...] | None
    local: int | None
    accept_new: bool
    ssh_command: str
    start_timeout_s: float | None
    cache_dir: str | None
    forward: Sequence[str] | None = None
    slurm: str | None = None
    slurm_wait_s: float = DEFAULT_SLURM_WAIT_S


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanOptions(ReachOptions):
    """What a plan is made from; see `add_plan_options` for the meaning of each."""

    model_id: str | None
    revision: str | None
    quantization: str | None
    engine: str | None
    device: str | None
    threads: int | None
    max_context: int | None
    prefill_chunk: int
    trust_remote_code: bool
    whole_files: bool
    fetch_connections: int | None
    even_split: bool
    json: bool


Options = TypeVar("Options", bound=ReachOptions)


def options_from(kind: type[Options], parsed: argparse.Namespace) -> Options:
    """Return the options of a parsed command line."""
    values: dict[str, Any] = {field.name: getattr(parsed, field.name) for field in fields(kind)}
    return kind(**values)


def add_plan_options(
    parser: argparse.ArgumentParser, *, needs_model: bool = True
) -> argparse._ArgumentGroup:
    """Declare the flags of `PlanOptions`, but for --json; return the group of the model."""
    group = parser.add_argument_group("model and hosts")
    hosts = group.add_mutually_exclusive_group(required=True)
    add_hosts_flag(hosts)
    hosts.add_argument(
        "--local", type=option_types.slots, metavar="N", help="N stages on this machine"
    )
    add_model_flags(group, needs_model=needs_model)
    group.add_argument(
        "--even-split",
        action="store_true",
        help="split the layers evenly, without asking the hosts what they can hold",
    )
    add_reach_flags(group)
    add_worker_flags(parser.add_argument_group("workers (a key in the hosts file wins)"))
    weights = parser.add_argument_group("weights from a hub")
    add_cache_flag(weights)
    weights.add_argument(
        "--fetch-connections",
        type=option_types.connections,
        metavar="N",
        help="connections of each stage to the hub (default: 4)",
    )
    weights.add_argument(
        "--whole-files",
        action="store_true",
        help="fetch whole weight files, as from a hub that serves no ranges",
    )
    return group


def add_hosts_file_flag(group: argparse._ActionsContainer, *, required: bool = False) -> None:
    """Declare --hosts."""
    group.add_argument(
        "--hosts",
        type=Path,
        metavar="FILE",
        required=required,
        help="hosts file, one stage a line; see docs/hosts.md",
    )


def add_hosts_flag(group: argparse._ActionsContainer) -> None:
    """Declare --hosts and --slurm, which take the place of one another."""
    add_hosts_file_flag(group)
    group.add_argument(
        "--slurm",
        nargs="?",
        const="",
        type=option_types.salloc_options,
        metavar="OPTIONS",
        help="one stage for each task of the Slurm allocation that this runs in, or of one got "
        'with these options of salloc: --slurm="-N 2 -t 30"; see docs/slurm.md',
    )


def add_model_flags(group: argparse._ArgumentGroup, *, needs_model: bool) -> None:
    """Declare the flags that name a model."""
    group.add_argument(
        "--model-id", metavar="ID", required=needs_model, help="folder with SafeTensors, or hub id"
    )
    group.add_argument("--revision", metavar="REV", help="branch, tag or commit on the hub")


def add_reach_flags(group: argparse._ArgumentGroup, *, with_slurm: bool = True) -> None:
    """Declare how hosts are reached."""
    group.add_argument(
        "--accept-new", action="store_true", help="accept SSH host keys that are not known yet"
    )
    group.add_argument(
        "--ssh-command",
        type=option_types.words,
        default=DEFAULT_SSH_COMMAND,
        metavar="CMD",
        help="ssh client with options of your own (default: %(default)s)",
    )
    group.add_argument(
        "--start-timeout-s",
        type=option_types.number(schema.POSITIVE_NUMBER),
        metavar="S",
        help="seconds a worker may take to connect, and then for its work, downloads aside "
        "(default: 60, then 600 for a survey, 3600 for anything else)",
    )
    group.add_argument(
        "--forward",
        action="append",
        type=option_types.variable,
        metavar="NAME",
        help="give workers elsewhere this variable of the environment here, over stdin; HF_TOKEN, "
        "HF_ENDPOINT and the proxies go without asking; may be given several times",
    )
    if with_slurm:
        group.add_argument(
            "--slurm-wait-s",
            type=option_types.number(schema.POSITIVE_NUMBER),
            default=DEFAULT_SLURM_WAIT_S,
            metavar="S",
            help="seconds that an allocation may wait in Slurm's queue (default: %(default)g)",
        )


def add_cache_flag(group: argparse._ArgumentGroup) -> None:
    """Declare --cache-dir."""
    group.add_argument(
        "--cache-dir",
        type=option_types.folder,
        metavar="DIR",
        help="folder on each host that keeps fetched weights (default: $HF_HOME/stageline there)",
    )


def add_json_flag(group: argparse._ActionsContainer) -> None:
    """Declare --json."""
    group.add_argument("--json", action="store_true", help="print one JSON object")
