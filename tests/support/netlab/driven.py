"""The test's side of `drive`: start it on the first host of a lab, follow what it tells."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

import psutil

from tests.support.netlab.lab import Lab, child_of

Told = Mapping[str, Any]
# Lines are waited for, never slept for; this only ends a test that waits in vain.
PATIENCE_S = 45.0


class Driven:
    """A running orchestrator that tells what happens; use `with`.

    Args:
        lab: where.
        stages: for each stage `host` and `address`; see `drive.specs_of`.
        timeouts: fields of `Timeouts` that are not to be as usual.
        lease_s: of the workers.
        restarts: in a row, of a lost stage.
        spares: hosts kept aside, as `stages`.
        links: as `--links`.
    """

    def __init__(
        self,
        lab: Lab,
        stages: Sequence[Mapping[str, Any]],
        *,
        timeouts: Mapping[str, float] | None = None,
        lease_s: float = 60.0,
        restarts: int = 0,
        spares: Sequence[Mapping[str, Any]] = (),
        links: str = "star",
    ) -> None:
        task = {
            "stages": stages,
            "ssh_command": lab.ssh_command,
            "timeouts": timeouts or {},
            "lease_s": lease_s,
            "restarts": restarts,
            "spares": spares,
            "links": links,
        }
        words = (sys.executable, "-m", "tests.support.netlab.drive", json.dumps(task))
        self.process = lab.popen(*words, stderr=None)
        self.told: list[Told] = []
        self._num_read = 0
        self._half_line = b""

    def ask(self, prompt: str, new: int, **more: Any) -> None:
        """Send a request."""
        assert self.process.stdin is not None
        line = json.dumps({"prompt": prompt, "new": new, **more}) + "\n"
        self.process.stdin.write(line.encode())

    def until(self, kind: str, **facts: Any) -> Told:
        """Wait for the next line of a kind that has these facts; those before it are passed."""
        deadline_s = time.monotonic() + PATIENCE_S
        while True:
            while self._num_read < len(self.told):
                told = self.told[self._num_read]
                self._num_read += 1
                if told["is"] == kind and facts.items() <= told.items():
                    return told
            left_s = deadline_s - time.monotonic()
            assert left_s > 0, f"no {kind} {facts} in {PATIENCE_S:g} s; last: {self.told[-3:]}"
            assert self._read(left_s), f"ended without {kind} {facts}; last: {self.told[-3:]}"

    def all(self, kind: str) -> list[Told]:
        """Return every line of a kind so far."""
        return [told for told in self.told if told["is"] == kind]

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the orchestrator itself."""
        pid = child_of(self.process.pid)
        assert pid is not None, "the orchestrator has ended"
        os.kill(pid, number)

    def freeze(self) -> list[psutil.Process]:
        """Stop the orchestrator and what it has started, as a laptop does; return what to thaw."""
        pid = child_of(self.process.pid)
        assert pid is not None, "the orchestrator has ended"
        itself, nsenter = psutil.Process(pid), psutil.Process(self.process.pid)
        # nsenter would stop itself once more, for good, if it saw its child stopped: it is the
        # first to freeze, and surely does before its child, and the last to thaw.
        nsenter.suspend()
        deadline_s = time.monotonic() + PATIENCE_S
        while nsenter.status() != psutil.STATUS_STOPPED:
            assert time.monotonic() < deadline_s, "nsenter does not stop"
        frozen = [itself, *itself.children(recursive=True)]
        for process in frozen:
            process.suspend()
        return [*frozen, nsenter]

    def end(self) -> int:
        """End it in order and wait; return its exit code."""
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        deadline_s = time.monotonic() + PATIENCE_S
        while self._read(deadline_s - time.monotonic()):
            pass
        return self.process.wait(PATIENCE_S)

    def _read(self, limit_s: float) -> bool:
        """Take what comes next; return False at the end."""
        assert self.process.stdout is not None
        readable, _, _ = select.select([self.process.stdout], [], [], max(0.0, limit_s))
        assert readable or limit_s > 0, f"still running; last: {self.told[-3:]}"
        data = os.read(self.process.stdout.fileno(), 1 << 20) if readable else b""
        *lines, self._half_line = (self._half_line + data).split(b"\n")
        self.told += [json.loads(line) for line in lines]
        return bool(data) or not readable

    def __enter__(self) -> Driven:
        return self

    def __exit__(self, *_: object) -> None:
        # nsenter would leave it behind, so it gets its signal itself.
        pid = child_of(self.process.pid)
        if pid is not None:
            os.kill(pid, signal.SIGKILL)
        self.process.kill()
        with self.process:
            pass
