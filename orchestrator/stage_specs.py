"""A slot of the hosts file -> the worker to start there, with which options."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from orchestrator.config import DEFAULT_SSH_COMMAND
from orchestrator.hosts import HostEntry
from orchestrator.layer_plan import PlanError
from orchestrator.line_words import LineWords
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
        is_file: whether that is the path of a file.
        cores: processors here, shared evenly by the local workers.
        python_path: PYTHONPATH of this process, which local workers keep.
        connect_timeout_s: for the first answer of a host to ssh.
        forwarded: variables that workers elsewhere get over stdin.
    """

    hosts_name: str = ""
    is_file: bool = False
    ssh_command: str = DEFAULT_SSH_COMMAND
    accept_new_host_key: bool = False
    cores: int = 1
    python_path: str = ""
    connect_timeout_s: int = 10
    forwarded: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}), repr=False)

    def name_of(self, entry: HostEntry) -> str:
        """Return what messages call a line of the hosts file."""
        return f"{self.hosts_name}:{entry.line}" if self.hosts_name else "--local"


@dataclass(frozen=True, slots=True)
class Place:
    """One stage to start: on which entry, at which index, with which layers.

    Attributes:
        threads: its share of the processors of a host elsewhere; None where they are not known.
    """

    entry: HostEntry
    stage: int
    num_stages: int
    layers: tuple[int, int] | None = None
    threads: int | None = None


def spec_of(place: Place, options: WorkerOptions, ways: Ways, *, local_workers: int) -> StageSpec:
    """Return what to start; a key of the host's line wins over the options.

    Args:
        place: where.
        options: what the command line says.
        ways: how hosts are reached.
        local_workers: how many workers share the processors here.

    Raises:
        PlanError: the line asks for what cannot be; it is named.
    """
    entry = place.entry
    try:
        return _spec(place, _options(place, options, ways, local_workers), ways)
    except ValueError as error:
        raise PlanError(f"{ways.name_of(entry)}: {error}") from None


def _options(place: Place, options: WorkerOptions, ways: Ways, local_workers: int) -> WorkerOptions:
    entry = place.entry
    own = replace(
        options,
        device=entry.device or options.device,
        quantization=entry.quantization or options.quantization,
        engine=entry.engine or options.engine,
        memory_limit_bytes=entry.memory_bytes or options.memory_limit_bytes,
    )
    if entry.is_local:
        return replace(own, threads=options.threads or max(1, ways.cores // max(1, local_workers)))
    return replace(own, lease_s=REMOTE_LEASE_S, threads=options.threads or place.threads)


def _line_words(entry: HostEntry, ways: Ways) -> LineWords:
    if not ways.hosts_name:
        return LineWords()
    given = {"device": entry.device, "quantization": entry.quantization, "engine": entry.engine}
    keys = {key: f"{key}={value}" for key, value in given.items() if value is not None}
    if entry.memory_bytes is not None:
        keys["memory"] = "memory="
    keys.update((f"env.{name}", f"env.{name}=") for name, _ in entry.env)
    return LineWords(ways.name_of(entry), keys)


def _spec(place: Place, options: WorkerOptions, ways: Ways) -> StageSpec:
    entry = place.entry
    # Workers that share processors must not spin while they wait: with the default policy two of
    # them on two cores were 4 to 6 times slower than with this one.
    environment = {"OMP_WAIT_POLICY": "passive"}
    if options.threads is not None:
        environment["OMP_NUM_THREADS"] = str(options.threads)
    if entry.is_local and ways.python_path:
        environment["PYTHONPATH"] = ways.python_path
    common = StageSpec(
        stage=place.stage,
        num_stages=place.num_stages,
        host=entry.label,
        layers=place.layers,
        python=entry.python,
        environment={**environment, **dict(entry.env)},
        options=options,
        line=_line_words(entry, ways),
    )
    if entry.is_local:
        return common
    given = {name for name, _ in entry.env}
    # What the host's own line says wins, also where it says nothing (`env.HTTPS_PROXY=`).
    secrets = {name: text for name, text in ways.forwarded.items() if name not in given}
    common = replace(common, code=entry.code, secrets=secrets)
    if entry.command is not None:
        return replace(common, transport="command", command=tuple(shlex.split(entry.command)))
    assert entry.address is not None
    target = SshTarget(
        host=entry.address.host,
        user=entry.address.user,
        port=entry.address.port,
        accept_new_host_key=ways.accept_new_host_key,
        ssh_command=ways.ssh_command,
        connect_timeout_s=ways.connect_timeout_s,
    )
    return replace(common, transport="ssh", ssh=target)
