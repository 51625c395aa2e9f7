"""A throw-away Slurm of two nodes on this machine: real munged, slurmctld and slurmd, as root.

Everything they write is below one folder, and they speak over ports of loopback alone.
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.support.sshd import free_port

START_S = 30.0
END_S = 20.0
NODES = ("n1", "n2")
_PROGRAMS = ("munged", "slurmctld", "slurmd", "salloc", "srun", "scancel", "squeue", "sinfo")
_PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin"
# Accounting and control groups are left out; the select plugin is the usual one. Slurm's own
# KillWait would let a cancelled step live on for 30 s.
_CONFIG = """\
ClusterName=throwaway
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
SlurmctldPort={controller_port}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=sched_interval=1
JobAcctGatherType=jobacct_gather/none
StateSaveLocation={folder}/state
SlurmctldPidFile={folder}/slurmctld.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdSpoolDir={folder}/spool-%n
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmdLogFile={folder}/slurmd-%n.log
ReturnToService=2
KillWait=2
InactiveLimit=0
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={node_ports[0]} CPUs={cpus} State=UNKNOWN
NodeName=n2 NodeHostname={host} NodeAddr=127.0.0.1 Port={node_ports[1]} CPUs={cpus} State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE OverSubscribe=NO State=UP
"""


@dataclass(frozen=True, slots=True)
class Slurm:
    """A running cluster.

    Attributes:
        folder: configuration, state and logs.
        environment: variables with which its commands find it.
    """

    folder: Path
    environment: Mapping[str, str]

    def ask(self, *words: str, check: bool = True) -> str:
        """Run one of Slurm's commands to its end and return its stdout."""
        done = subprocess.run(
            words, env=self.environment, capture_output=True, text=True, timeout=START_S
        )
        assert done.returncode == 0 or not check, f"{words}: {done.stderr}{self.logs()}"
        return done.stdout

    def jobs(self) -> list[str]:
        """Return the ids of all jobs that wait or run, or are just ending."""
        return self.ask("squeue", "--noheader", "--format=%i").split()

    def wait_until_empty(self) -> None:
        """Wait until no job is left and each node can be used again."""
        _until(self._is_quiet, lambda: f"jobs {self.jobs()} are left: {self.logs()}", END_S)

    def logs(self) -> str:
        """Return the ends of the logs."""
        return "".join(
            f"\n{path.name}: {path.read_text(errors='replace')[-1500:]}"
            for path in sorted(self.folder.glob("*.log"))
        )

    def _is_quiet(self) -> bool:
        states = self.ask("sinfo", "--noheader", "--Node", "--format=%T").split()
        return not self.jobs() and states == ["idle"] * len(NODES)


def missing_slurm() -> str:
    """Return what a throw-away Slurm lacks here, "" for nothing."""
    lacking = [name for name in _PROGRAMS if shutil.which(name, path=_PATH) is None]
    if lacking:
        return f"no {', '.join(lacking)} here (apt-get install slurm-wlm munge)"
    return "" if os.geteuid() == 0 else "slurmd needs root"


@contextmanager
def running_slurm(folder: Path) -> Iterator[Slurm]:
    """Run a cluster in `folder`, an absolute path that is short enough for a socket."""
    host = socket.gethostname().partition(".")[0]
    _write_files(folder, host)
    environment = {**os.environ, "PATH": _PATH, "SLURM_CONF": str(folder / "slurm.conf")}
    slurm = Slurm(folder, environment)
    with ExitStack() as daemons:
        daemons.enter_context(_running(slurm, "munged", "-F", *_munge_options(folder)))
        _until((folder / "munge.socket").exists, lambda: f"no munged: {slurm.logs()}", START_S)
        daemons.enter_context(_running(slurm, "slurmctld", "-D"))
        for node in NODES:
            daemons.enter_context(_running(slurm, "slurmd", "-D", "-N", node))
        _until(
            lambda: slurm.ask("sinfo", "-h", "-t", "idle", "-o", "%D", check=False).strip() == "2",
            lambda: f"the nodes do not come up: {slurm.logs()}",
            START_S,
        )
        try:
            yield slurm
        finally:
            for job in slurm.jobs():
                slurm.ask("scancel", job, check=False)
            slurm.wait_until_empty()


def _write_files(folder: Path, host: str) -> None:
    (folder / "state").mkdir()
    for node in NODES:
        (folder / f"spool-{node}").mkdir()
    key = folder / "munge.key"
    key.write_bytes(secrets.token_bytes(64))
    key.chmod(0o400)
    ports = [free_port() for _ in NODES]
    (folder / "slurm.conf").write_text(
        _CONFIG.format(
            host=host,
            folder=folder,
            controller_port=free_port(),
            node_ports=ports,
            cpus=os.cpu_count(),
        )
    )


def _munge_options(folder: Path) -> list[str]:
    # --force: the folders above may be anyone's, which munged minds.
    files = {
        "key-file": "munge.key",
        "socket": "munge.socket",
        "pid-file": "munge.pid",
        "log-file": "munge.log",
        "seed-file": "munge.seed",
    }
    return ["--force", *(f"--{option}={folder / name}" for option, name in files.items())]


@contextmanager
def _running(slurm: Slurm, name: str, *options: str) -> Iterator[None]:
    program = shutil.which(name, path=_PATH)
    assert program is not None
    with (slurm.folder / f"{name}-start.log").open("ab") as output:
        daemon = subprocess.Popen(
            [program, *options],
            env=slurm.environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    try:
        yield
    finally:
        daemon.terminate()
        try:
            daemon.wait(END_S)
        except subprocess.TimeoutExpired:
            os.killpg(daemon.pid, signal.SIGKILL)
            daemon.wait()


def _until(reached: Callable[[], bool], otherwise: Callable[[], str], limit_s: float) -> None:
    deadline_s = time.monotonic() + limit_s
    while not reached():
        assert time.monotonic() < deadline_s, otherwise()
        time.sleep(0.1)  # a daemon has no event that another process can wait for
