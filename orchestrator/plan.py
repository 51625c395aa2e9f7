"""Hosts and a model -> the stages to start, and what the user should hear about it."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from orchestrator.config import DEFAULT_SSH_COMMAND
from orchestrator.hosts import HostEntry
from orchestrator.layer_count import STUB_LAYERS, count_layers
from orchestrator.layer_plan import PlanError, Wish, plan_layers
from orchestrator.specs import StageSpec, WorkerOptions
from orchestrator.transport.ssh import SshTarget

# A worker that hears nothing for this long ends itself: the link is cut and nobody can tell it
# so. Idle stages are pinged every few seconds. A local worker sees its parent end.
REMOTE_LEASE_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Ways:
    """How hosts are reached and local processors are shared.

    Attributes:
        hosts_name: the hosts file in messages, "" for --local.
        cores: processors here, shared evenly by the local workers.
        python_path: PYTHONPATH of this process, which local workers keep.
    """

    hosts_name: str = ""
    ssh_command: str = DEFAULT_SSH_COMMAND
    accept_new_host_key: bool = False
    cores: int = 1
    python_path: str = ""


@dataclass(frozen=True, slots=True)
class Plan:
    """The stages in order, and notes for the user: one sentence each."""

    specs: tuple[StageSpec, ...]
    notes: tuple[str, ...]


def make_plan(entries: Sequence[HostEntry], options: WorkerOptions, ways: Ways) -> Plan:
    """Plan one stage for each slot of the hosts that are no spares.

    Where no host asks for layers of its own, each worker splits the layers itself, evenly.

    Raises:
        PlanError: layers and hosts do not fit together.
    """
    slots = [entry for entry in entries if not entry.spare for _ in range(entry.slots)]
    notes = [
        f"spare host {entry.label} is kept aside and not used yet"
        for entry in entries
        if entry.spare
    ]
    if any(entry.layers for entry in slots):
        placed = _wished(slots, options, ways)
    else:
        placed = [(entry, None) for entry in slots[: _known_layers(options)]]
    used = [entry for entry, _ in placed]
    notes += [
        f"{left} of {entry.slots} stages of {_name(entry, ways)} ({entry.label}) left out: there "
        f"are more stages than layers for them"
        for entry in dict.fromkeys(slots)
        if (left := entry.slots - used.count(entry))
    ]
    local_workers = sum(entry.is_local for entry in used)
    specs = []
    for stage, (entry, layers) in enumerate(placed):
        worker = _options(entry, options, max(1, ways.cores // max(1, local_workers)))
        try:
            specs.append(_spec(stage, len(placed), entry, layers, worker, ways))
        except ValueError as error:
            raise PlanError(f"{_name(entry, ways)}: {error}") from None
    return Plan(tuple(specs), tuple(notes))


def _wished(
    slots: Sequence[HostEntry], options: WorkerOptions, ways: Ways
) -> list[tuple[HostEntry, tuple[int, int] | None]]:
    """Return the slots in layer order, each with its layers."""
    assert options.model_id is not None or options.stub
    layers = STUB_LAYERS if options.stub else count_layers(options.model_id or "", options.revision)
    planned = plan_layers([Wish(_name(entry, ways), entry.layers) for entry in slots], layers)
    return [(slots[index], (s.shard_start, s.shard_end)) for index, s in planned.items()]


def _known_layers(options: WorkerOptions) -> int | None:
    """Return the number of layers where it can be told at once; None leaves it to the workers."""
    if options.stub:
        return STUB_LAYERS
    if options.model_id is None or not Path(options.model_id).expanduser().is_dir():
        return None
    try:
        return count_layers(options.model_id, options.revision)
    except PlanError:
        return None  # The worker looks at the folder more closely and says what is wrong.


def _name(entry: HostEntry, ways: Ways) -> str:
    return f"{ways.hosts_name}:{entry.line}" if ways.hosts_name else "--local"


def _options(entry: HostEntry, options: WorkerOptions, local_threads: int) -> WorkerOptions:
    """Return the worker's options: a key of the host's line wins over the command line."""
    own = replace(
        options,
        device=entry.device or options.device,
        quantization=entry.quantization or options.quantization,
        memory_limit_bytes=entry.memory_bytes or options.memory_limit_bytes,
    )
    if entry.is_local:
        return replace(own, threads=options.threads or local_threads)
    return replace(own, lease_s=REMOTE_LEASE_S)


def _spec(
    stage: int,
    num_stages: int,
    entry: HostEntry,
    layers: tuple[int, int] | None,
    options: WorkerOptions,
    ways: Ways,
) -> StageSpec:
    # Workers that share processors must not spin while they wait: with the default policy two of
    # them on two cores were 4 to 6 times slower than with this one.
    environment = {"OMP_WAIT_POLICY": "passive"}
    if options.threads is not None:
        environment["OMP_NUM_THREADS"] = str(options.threads)
    if entry.is_local and ways.python_path:
        environment["PYTHONPATH"] = ways.python_path
    common = StageSpec(
        stage=stage,
        num_stages=num_stages,
        host=entry.label,
        layers=layers,
        python=entry.python,
        environment={**environment, **dict(entry.env)},
        options=options,
    )
    if entry.command is not None:
        return replace(common, transport="command", command=tuple(shlex.split(entry.command)))
    if entry.address is None:
        return common
    target = SshTarget(
        host=entry.address.host,
        user=entry.address.user,
        port=entry.address.port,
        accept_new_host_key=ways.accept_new_host_key,
        ssh_command=ways.ssh_command,
    )
    return replace(common, transport="ssh", ssh=target)
