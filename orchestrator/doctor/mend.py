"""The command that mends what was found, to be typed here."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from orchestrator.doctor.subject import Subject
from orchestrator.visit.check import Check
from orchestrator.visit.departure import VisitFailed
from orchestrator.visit.launch import command_there, line_there

# What `Ways` calls the hosts of an allocation.
SLURM = "slurm"


@dataclass(frozen=True, slots=True)
class Mend:
    """Commands for one host.

    Attributes:
        hosts_name: the hosts file, "" for --local.
        interpreter: path of the host's Python, once it is known.
    """

    subject: Subject
    hosts_name: str
    interpreter: str = "python3"

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
            return f"orchestrator setup {self._hosts_flag()}"
        return self.there(self.interpreter, "-m", "pip", "install", *requirements)

    def newer_python(self) -> str:
        """Return what gives the host a Python that is new enough."""
        if self.subject.spec.python is not None:
            return f"give another python= in {self.subject.name}"
        return f"{self.install(())}, which looks for python3.11 and newer there too"

    def visit(self, failed: VisitFailed) -> str:
        """Return what mends a host that could not be visited; "" where the cause says it."""
        if failed.check is Check.PYTHON and not failed.lost:
            if self.subject.spec.python is not None:
                return f"give another python= in {self.subject.name}"
            return self.shell("sudo apt-get install -y python3 python3-venv")
        return ""

    def _hosts_flag(self) -> str:
        if self.hosts_name == SLURM:
            return "--slurm"
        return f"--hosts {shlex.quote(self.hosts_name)}"
