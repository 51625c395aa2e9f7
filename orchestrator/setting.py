"""What the command line settles before any process is started: hosts, options, deadlines."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from orchestrator.config import Surroundings
from orchestrator.hosts import HostEntry, parse_hosts, read_hosts
from orchestrator.plan_options import PlanOptions, ReachOptions
from orchestrator.specs import WorkerOptions
from orchestrator.stage_specs import Ways
from orchestrator.stderr import say
from orchestrator.timeouts import Timeouts

# A person looks on: each second there is news of a download. Logs get it less often.
WATCHED_PROGRESS_S = 1.0
# Blackholes are told soon; no network takes this long to answer.
CONNECT_TIMEOUT_S = 10


@dataclass(frozen=True, slots=True)
class Setting:
    """Hosts, options of the workers, ways to reach them, deadlines.

    Attributes:
        even_split: whether the user wants no survey.
    """

    entries: Sequence[HostEntry]
    worker: WorkerOptions
    ways: Ways
    timeouts: Timeouts
    even_split: bool = False


def plan_setting(
    options: PlanOptions,
    around: Surroundings,
    hold: ExitStack,
    *,
    stub: bool = False,
    is_watched: bool = False,
) -> Setting:
    """Settle what a plan needs.

    Args:
        options: what the command line says.
        around: what it was started in.
        hold: keeps an allocation of Slurm until it is closed.
        stub: workers without a model.
        is_watched: whether the progress of downloads goes to a terminal.

    Raises:
        HostsError: the hosts file cannot be used.
    """
    setting = reach_setting(options, around, hold)
    worker = replace(
        setting.worker,
        model_id=options.model_id,
        revision=options.revision,
        quantization=options.quantization,
        engine=options.engine,
        device=options.device,
        threads=options.threads,
        max_context=options.max_context,
        prefill_chunk=options.prefill_chunk,
        trust_remote_code=options.trust_remote_code,
        stub=stub,
        whole_files=options.whole_files,
        fetch_connections=options.fetch_connections,
        download_progress_s=WATCHED_PROGRESS_S if is_watched and not stub else None,
    )
    return replace(setting, worker=worker, even_split=options.even_split)


def reach_setting(options: ReachOptions, around: Surroundings, hold: ExitStack) -> Setting:
    """Settle which hosts, and how they are reached; `hold` keeps an allocation of Slurm.

    Raises:
        HostsError: the hosts file cannot be used.
        SlurmError: there is no allocation.
        NotForwarded: a variable to forward is not set here.
    """
    limit_s = options.start_timeout_s
    hosts_name = "" if options.hosts is None else str(options.hosts)
    if isinstance(options.hosts, tuple):
        hosts_name = "hosts"
        entries = parse_hosts("\n".join(options.hosts).encode(), hosts_name)
    elif options.hosts is not None:
        entries = read_hosts(options.hosts)
    elif options.slurm is not None:
        # Imported here, for those who have no Slurm.
        from orchestrator.slurm.entries import slurm_entries

        hosts_name = "slurm"
        held = slurm_entries(options.slurm, around.variables, options.slurm_wait_s, say)
        entries = hold.enter_context(held)
    else:
        entries = [HostEntry(line=0, slots=options.local or 1)]
    ways = Ways(
        hosts_name=hosts_name,
        is_file=isinstance(options.hosts, Path),
        ssh_command=options.ssh_command,
        accept_new_host_key=options.accept_new,
        python_path=around.python_path,
        # A host that is known to be slow may be slow to answer the first call already.
        connect_timeout_s=CONNECT_TIMEOUT_S if limit_s is None else math.ceil(limit_s),
        forwarded=around.forwarded(options.forward or ()),
        cores=around.cores,
    )
    timeouts = Timeouts()
    if limit_s is not None:
        timeouts = replace(
            timeouts, hello_s=limit_s, ready_s=limit_s, survey_s=limit_s, errand_s=limit_s
        )
    return Setting(entries, WorkerOptions(cache_dir=options.cache_dir), ways, timeouts)
