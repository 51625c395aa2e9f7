"""What one stage is to be: where it runs, which layers it holds, with which options."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal

from orchestrator.errand_kind import ErrandKind
from orchestrator.line_words import LineWords
from orchestrator.transport.base import Launch
from orchestrator.transport.command import command_launch
from orchestrator.transport.local import INSTALLED, local_launch
from orchestrator.transport.shipping import boot_arguments
from orchestrator.transport.ssh import SshTarget, ssh_launch

_SECRET_NAME = re.compile(
    r"(TOKEN|KEYS?|SECRETS?|PASSWORDS?|PASSWD|PASSPHRASE|CREDENTIALS?|(^|_)PASS)$", re.IGNORECASE
)
# A proxy's or an index's address with a password in it.
_SECRET_VALUE = re.compile(r"://[^/@\s]*:[^/@\s]+@")


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOptions:
    """Options of a worker that are not its place in the pipeline; None leaves its default.

    Attributes:
        only: the errand to do in place of serving; the worker ends after it.
        cache_dir: folder that keeps fetched weights on the worker's host.
        repair: with the errand verify-cache, remove what is broken.
    """

    model_id: str | None = None
    revision: str | None = None
    quantization: str | None = None
    engine: str | None = None
    device: str | None = None
    threads: int | None = None
    max_context: int | None = None
    memory_limit_bytes: int | None = None
    prefill_chunk: int | None = None
    lease_s: float | None = None
    trust_remote_code: bool = False
    stub: bool = False
    only: ErrandKind | None = None
    cache_dir: str | None = None
    whole_files: bool = False
    fetch_connections: int | None = None
    download_progress_s: float | None = None
    repair: bool = False

    def arguments(self) -> list[str]:
        """Return them as the worker's command line flags."""
        words: list[str] = []
        for name in (
            "model_id",
            "revision",
            "quantization",
            "engine",
            "device",
            "threads",
            "max_context",
            "prefill_chunk",
            "lease_s",
            "only",
            "cache_dir",
            "fetch_connections",
            "download_progress_s",
        ):
            value = getattr(self, name)
            if value is not None:
                # One word, so that a value that begins with a dash stays a value.
                words.append(f"--{name.replace('_', '-')}={value}")
        if self.memory_limit_bytes is not None:
            words.append(f"--memory-limit={self.memory_limit_bytes}")
        for name in ("trust_remote_code", "stub", "whole_files", "repair"):
            if getattr(self, name):
                words.append(f"--{name.replace('_', '-')}")
        return words


@dataclass(frozen=True, slots=True, kw_only=True)
class StageSpec:
    """One stage of the plan.

    Attributes:
        stage: index, from 0.
        num_stages: stages in the pipeline.
        host: label for people and records, as the user wrote it.
        transport: how the worker is started; "ssh" needs `ssh`, "command" needs `command`.
        layers: half-open range of layers; None is the even split, made by the worker itself.
        python: interpreter there; None is this one (local), else that of `orchestrator setup` if
            it is there, else `python3`.
        code: whether a worker elsewhere runs the code that is sent to it, or what is installed
            there; a local one runs the code of this process.
        environment: variables set for the worker; on its command line, so no secrets.
        secrets: variables that it gets over stdin once it has spoken; on no command line.
        line: the line of the hosts file that it comes from.
        is_one_of_several: whether more workers of its kind run on that host, so that messages
            name the line too.

    Raises:
        ValueError: the parts do not fit together; one sentence.
    """

    stage: int
    num_stages: int
    host: str = "local"
    transport: Literal["local", "ssh", "command"] = "local"
    layers: tuple[int, int] | None = None
    python: str | None = None
    code: Literal["shipped", "installed"] = "shipped"
    environment: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    secrets: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}), repr=False)
    ssh: SshTarget | None = None
    command: tuple[str, ...] = ()
    options: WorkerOptions = WorkerOptions()
    line: LineWords = field(default=LineWords(), compare=False)
    is_one_of_several: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.stage < self.num_stages:
            raise ValueError(f"stage {self.stage} is not one of {self.num_stages} stages")
        if (self.transport == "ssh") != (self.ssh is not None) or (
            self.transport == "command"
        ) != bool(self.command):
            raise ValueError(f"transport {self.transport!r} and its target do not fit together")
        for name, value in self.environment.items():
            if _SECRET_NAME.search(name) or _SECRET_VALUE.search(value):
                raise ValueError(
                    f"env.{name}= would be readable in the process list; set {name} here and "
                    f"pass --forward {name}, or set it in the environment of {self.host} itself"
                )

    @property
    def ships_code(self) -> bool:
        """Whether the worker's code is sent to where it runs."""
        return self.transport != "local" and self.code == "shipped"

    @property
    def is_stage(self) -> bool:
        """Whether the worker has layers; one that does an errand for its host has none."""
        only = self.options.only
        return only is None or only.needs_layers

    @property
    def title(self) -> str:
        """What messages call the worker."""
        if self.is_stage:
            return f"stage {self.stage} on {self.host}"
        return f"the worker on {self.place}"

    @property
    def place(self) -> str:
        """Where it runs: the host, and the line where the host alone would not tell."""
        if self.is_one_of_several and self.line.name:
            return f"{self.host} (line {self.line.name.rpartition(':')[2]})"
        return self.host

    def launch(self, nonce: str) -> Launch:
        """Return the command that starts this stage's worker."""
        words = self._arguments(nonce)
        if self.ships_code:
            words = list(boot_arguments(nonce, words, self._process_title))
        elif self.transport != "local":
            words = [*INSTALLED, *words]
        if self.ssh is not None:
            return ssh_launch(self.host, self.ssh, self.python, self.environment, words)
        if self.command:
            return command_launch(self.host, self.command, self.python, self.environment, words)
        return local_launch(self.host, self.python, self.environment, words)

    @property
    def _process_title(self) -> str:
        if self.is_stage:
            return f"stageline worker, stage {self.stage} of {self.num_stages}"
        return "stageline worker"

    def _arguments(self, nonce: str) -> list[str]:
        if not self.is_stage:
            place = []
        elif self.layers is None:
            place = [f"--stage={self.stage}", f"--num-stages={self.num_stages}"]
        else:
            place = [f"--shard-start={self.layers[0]}", f"--shard-end={self.layers[1]}"]
        waits = ["--await-environment"] if self.secrets else []
        return [*place, f"--nonce={nonce}", *waits, *self.options.arguments()]
