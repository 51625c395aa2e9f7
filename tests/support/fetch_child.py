"""Fetches tensors in processes of their own, which can be killed at any step.

Run as a program it is a nursery: it imports everything once, then forks a child for each case
that it reads, so that hundreds of kills take seconds.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tests.support.remote import COMMIT, MemorySource, Remote, quiet_meter
from worker.failures import LoadFailed
from worker.weights import part
from worker.weights.fetch import fetch_tensors
from worker.weights.filling import RangeSource
from worker.weights.hub_file import HubFile, HubSource
from worker.weights.retry import FetchLimits
from worker.weights.store import Store

# Every call by which a fetch changes the disk.
STEPS = (
    *("open", "mkdir", "posix_fallocate", "ftruncate", "pwrite"),
    *("fdatasync", "fsync", "rename", "replace", "unlink", "utime"),
)
FAILED = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """What one child does.

    Attributes:
        root, endpoint, repo_id, commit: of the store; the endpoint is asked unless `in_memory`.
        folder: holds the weight files of the hub.
        names: of the tensors to fetch.
        kill_at: at which step (call of `STEPS`) the child kills itself; None: never.
        torn: whether half of that step's bytes are written first.
        etag: of every file.
        gate: two named pipes: one is opened when the first byte has come, then the other waited
            for.
        report: where to write why it failed.
    """

    root: str
    folder: str
    names: list[str]
    endpoint: str = "http://hub.test"
    repo_id: str = "org/name"
    commit: str = COMMIT
    in_memory: bool = True
    kill_at: int | None = None
    torn: bool = False
    etag: str = "e1"
    gate: tuple[str, str] | None = None
    report: str | None = None
    connections: int = 2


class Nursery:
    """Starts children; all are ended with it."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.fetch_child"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[2],
        )
        self._started: set[int] = set()

    def start(self, case: Case) -> int:
        """Start a child; return its pid."""
        pid = int(self._ask({"start": asdict(case)}))
        self._started.add(pid)
        return pid

    def wait(self, pid: int) -> int:
        """Wait for a child; return its exit code, minus the signal where one ended it."""
        code = int(self._ask({"wait": pid}))
        self._started.discard(pid)
        return code

    def run(self, case: Case) -> int:
        """Start a child and wait for it."""
        return self.wait(self.start(case))

    def close(self) -> None:
        """End what still runs."""
        for pid in list(self._started):
            os.kill(pid, signal.SIGKILL)
            self.wait(pid)
        self._process.communicate(timeout=30)

    def _ask(self, question: dict[str, Any]) -> str:
        assert self._process.stdin and self._process.stdout
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()
        return self._process.stdout.readline()


@contextmanager
def nursery() -> Iterator[Nursery]:
    """Run a nursery for as long as the block."""
    running = Nursery()
    try:
        yield running
    finally:
        running.close()


def _serve() -> None:
    for line in sys.stdin:
        asked = json.loads(line)
        if "start" in asked:
            answer = os.fork()
            if answer == 0:
                os._exit(_child(Case(**asked["start"])))
        else:
            answer = os.waitstatus_to_exitcode(os.waitpid(asked["wait"], 0)[1])
        print(answer, flush=True)


def _child(case: Case) -> int:
    # Whatever has come is noted at once, so that there is something to go on from.
    part.SYNC_BYTES = 1
    remote = Remote()
    for path in sorted(Path(case.folder).glob("*.safetensors")):
        remote.put(path.name, path.read_bytes(), case.etag)
    source: RangeSource = MemorySource(remote.files, chunk_bytes=2 << 20)
    limits = FetchLimits(connections=case.connections)
    if not case.in_memory:
        source = HubSource(case.repo_id, case.commit, case.endpoint, limits=limits)
    if case.gate is not None:
        source = _Gated(source, *case.gate)
    if case.kill_at is not None:
        _kill_at_step(case.kill_at, torn=case.torn)
    try:
        fetch_tensors(
            source,
            Store.open(Path(case.root), case.endpoint, case.repo_id, case.commit),
            [remote.entries[name] for name in case.names],
            remote.hub_files,
            meter=quiet_meter(),
            emit=lambda _: None,
            limits=limits,
        )
    except LoadFailed as error:
        if case.report:
            Path(case.report).write_text(error.text)
        return FAILED
    return 0


class _Gated:
    """Waits for the test after the first byte."""

    def __init__(self, source: RangeSource, come: str, go: str) -> None:
        self._source = source
        self._come, self._go = come, go
        self._lock = threading.Lock()
        self._waited = False

    def stream(self, file: HubFile, start: int, end: int, stop: threading.Event) -> Iterator[bytes]:
        for chunk in self._source.stream(file, start, end, stop):
            with self._lock:
                if not self._waited:
                    Path(self._come).write_text("come")
                    Path(self._go).read_text()
                    self._waited = True
            yield chunk

    def interrupt(self) -> None:
        self._source.interrupt()


def _kill_at_step(kill_at: int, *, torn: bool) -> None:
    """Have this process kill itself at a step, counted over all threads."""
    lock, count = threading.Lock(), 0

    def counted(act: Callable[..., Any], name: str) -> Callable[..., Any]:
        def step(*args: Any, **kwargs: Any) -> Any:
            nonlocal count
            with lock:
                count += 1
                if count > kill_at:
                    if torn and name == "pwrite":
                        act(args[0], bytes(args[1])[: len(args[1]) // 2], args[2])
                    os.kill(os.getpid(), signal.SIGKILL)
                    signal.pause()
            return act(*args, **kwargs)

        return step

    for name in STEPS:
        setattr(os, name, counted(getattr(os, name), name))


if __name__ == "__main__":
    _serve()
