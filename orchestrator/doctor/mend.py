"""The command that mends what was found, to be typed here."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from orchestrator.config import DEFAULT_SSH_COMMAND
from orchestrator.doctor.subject import Subject
from orchestrator.visit.check import Check
from orchestrator.visit.departure import VisitFailed
from orchestrator.visit.launch import command_there, line_there

# What `Ways` calls the hosts of an allocation; they are no file that setup could read.
SLURM = "slurm"


@dataclass(frozen=True, slots=True)
class Mend:
    """Commands for one host.

    Attributes:
        hosts_name: the hosts file, "" for --local.
        interpreter: path of the host's Python, once it is known.
        is_managed: whether that is the system's own, which lets pip install nothing (PEP 668).
    """

    subject: Subject
    hosts_name: str
    interpreter: str = "python3"
    is_managed: bool = False

    def there(self, *words: str) -> str:
        """Return a command that runs words on the host."""
        return command_there(self.subject.spec, words)

    def shell(self, line: str) -> str:
        """Return a command that has a shell of the host run a line."""
        return line_there(self.subject.spec, line)

    def install(self, requirements: Sequence[str]) -> str:
        """Return the command that installs distributions for the host's workers."""
        spec = self.subject.spec
        if spec.python is None and spec.transport != "local":
            return self.setup
        if self.is_managed:
            return self._other_python()
        return self.there(self.interpreter, "-m", "pip", "install", *requirements)

    def newer_python(self) -> str:
        """Return what gives the host a Python that is new enough."""
        if self.subject.spec.python is not None:
            return self._other_python()
        return f"{self.install(())}, which looks for python3.11 and newer there too"

    def visit(self, failed: VisitFailed) -> str:
        """Return what mends a host that could not be visited; "" where the cause says it."""
        if failed.check is Check.PYTHON and not failed.lost:
            if self.subject.spec.python is not None:
                return self._other_python()
            return self.shell("sudo apt-get install -y python3 python3-venv")
        return ""

    @property
    def setup(self) -> str:
        """The command that sets the hosts of the file up, reached as they are reached now."""
        words = ["orchestrator", "setup", "--hosts", self.hosts_name]
        ssh = self.subject.spec.ssh
        if ssh is not None and ssh.ssh_command != DEFAULT_SSH_COMMAND:
            words += ["--ssh-command", ssh.ssh_command]
        if ssh is not None and ssh.accept_new_host_key:
            words.append("--accept-new")
        return shlex.join(words)

    def _other_python(self) -> str:
        """Return what helps where the line's own Python is of no use."""
        name, spec = self.subject.name, self.subject.spec
        if self.hosts_name == SLURM or (spec.transport == "local" and spec.python is None):
            return "run orchestrator from a virtual environment that has what is needed"
        if spec.transport == "local":
            return f"give the python= of a virtual environment in {name}"
        return f"give another python= in {name}, or leave it out there and run {self.setup}"
