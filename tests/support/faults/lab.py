"""Run the real orchestrator until something known has gone wrong; what is left is its bundle."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from tests.support.cli import ROOT, environment

HERE = Path(__file__).resolve().parent
DEADLINE_S = 180.0
PYTHON = HERE / "python.sh"
FAKE_SSH = ROOT / "tests" / "bin" / "ssh"
PROMPT = "four words of prompt"
ENDLESS = ("--max-new-tokens", "10000000")

Act = Callable[["Run"], None]


class Run:
    """An orchestrator that runs."""

    def __init__(self, process: subprocess.Popen[bytes], bundles: Path) -> None:
        self.process = process
        self._bundles = bundles

    @property
    def bundle(self) -> Path:
        """Its bundle, once it is there."""
        found: Path = self.wait(
            lambda: next(iter(sorted(self._bundles.glob("*"))), None), "a bundle"
        )
        return found

    def pid(self, stage: int) -> int:
        """Return the process id of a stage's worker, once it has said hello."""
        return int(self.wait(lambda: self._hello(stage), f"hello of stage {stage}")["pid"])

    def ops(self, count: int) -> None:
        """Wait until so many ops were answered."""
        ops = self.bundle / "ops.jsonl"
        self.wait(lambda: ops.exists() and ops.read_bytes().count(b"\n") >= count, f"{count} ops")

    def wait(self, found: Callable[[], Any], what: str) -> Any:
        """Poll until something is there: files have no event to wait for."""
        deadline_s = time.monotonic() + DEADLINE_S
        while not (value := found()):
            assert self.process.poll() is None, f"the run ended before {what}"
            assert time.monotonic() < deadline_s, f"no {what} within {DEADLINE_S:g} s"
            time.sleep(0.02)
        return value

    def _hello(self, stage: int) -> dict[str, Any] | None:
        path = self.bundle / "events.jsonl"
        lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
        for line in map(json.loads, lines):
            said = line.get("line", {})
            if line["stage"] == stage and said.get("event") == "starting":
                return dict(said)
        return None


class Lab:
    """A folder to break things in.

    Attributes:
        folder: for files of the run.
        stack: what is to be undone afterwards.
    """

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.folder = folder
        self.stack = stack
        self._runs = 0

    def run(
        self,
        hosts: Sequence[str],
        *words: str,
        act: Act = lambda run: None,
        stub: bool = True,
        restarts: int | None = 0,
        deadlines_s: Mapping[str, float] | None = None,
        env: Mapping[str, str] | None = None,
        before: Sequence[str] = (),
        bundles: Path | None = None,
        ssh: str | Path = FAKE_SSH,
        cwd: Path | None = None,
    ) -> Path:
        """Run `orchestrator run` over lines of a hosts file, and return its bundle.

        Args:
            hosts: lines of the hosts file.
            words: more of the command line.
            act: does the harm while it runs.
            stub: whether the workers have no model.
            restarts: what --restarts says; None leaves it out.
            deadlines_s: of `Timeouts`, where the product's own would take too long.
            env: more variables for the orchestrator.
            before: words before the command, as `unshare -n`.
            bundles: where bundles go.
            ssh: what --ssh-command says.
            cwd: the folder to run in.
        """
        self._runs += 1
        bundles = bundles or self.folder / f"bundles{self._runs}"
        hosts_file = self.folder / f"hosts{self._runs}.txt"
        hosts_file.write_text("\n".join(hosts) + "\n")
        command = [
            *(*before, sys.executable, "-P", "-m", "tests.support.faults.orchestrate"),
            json.dumps({"exit_s": 2.0, "terminate_s": 1.0, **(deadlines_s or {})}),
            *("run", "--hosts", str(hosts_file), "--bundle-dir", str(bundles)),
            *("--ssh-command", str(ssh), "--prompt", PROMPT),
            *(("--stub",) if stub else ()),
            *(() if restarts is None else ("--restarts", str(restarts))),
            *(() if "--max-new-tokens" in words else ("--max-new-tokens", "6")),
            *words,
        ]
        log = self.folder / f"log{self._runs}.txt"
        with log.open("wb") as out:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                cwd=cwd,
                env=environment({"FAULT_PYTHON": sys.executable, **(env or {})}),
            )
        try:
            run = Run(process, bundles)
            act(run)
            process.wait(DEADLINE_S)
        finally:
            if process.poll() is None:
                process.terminate()
                process.wait(DEADLINE_S)
        found = sorted(bundles.glob("*"))
        assert found, f"no bundle; it said: {log.read_text()[-2000:]}"
        return found[-1]


def local(fault: str = "", /, **env: object) -> str:
    """Return the line of a local stage that misbehaves."""
    settings = [f"env.{name.upper()}={value}" for name, value in env.items()]
    return " ".join(["local", f"python={PYTHON}", f"env.FAULT={fault}", *settings])


def remote(host: str, words: str = "") -> str:
    """Return the line of a stage behind ssh."""
    return f"{host} python={sys.executable} env.PYTHONPATH={ROOT} {words}".strip()


def kill(stage: int, number: int = signal.SIGKILL, after_ops: int = 9) -> Act:
    """Return what signals a stage's worker once so many ops were answered."""

    def act(run: Run) -> None:
        pid = run.pid(stage)
        run.ops(after_ops)
        os.kill(pid, number)

    return act


def signal_run(number: int) -> Act:
    """Return what signals the orchestrator in the middle of its answer."""

    def act(run: Run) -> None:
        run.ops(9)
        run.process.send_signal(number)

    return act
