"""Count what a test holds: child processes, threads, file descriptors, orphans."""

from __future__ import annotations

import gc
import os
import threading
import uuid
from dataclasses import dataclass
from pathlib import Path

import psutil

# A child that was told to end, or a thread that was told to stop, may need a moment.
GRACE_S = 3.0
MARK_NAME = "STAGELINE_TEST_RUN"
# _DummyThread is made by a C library and cannot be joined; tqdm keeps one TMonitor for ever.
LIBRARY_THREADS = ("_DummyThread", "TMonitor")
# Descriptors that libraries open once for the whole process.
SHARED_TARGETS = ("/dev/", "/proc/", "/sys/")


@dataclass(frozen=True, slots=True)
class Belongings:
    """What this process holds at one moment: child pids, threads, open descriptors."""

    children: frozenset[int]
    threads: frozenset[threading.Thread]
    descriptors: frozenset[tuple[int, str]]

    @classmethod
    def now(cls) -> Belongings:
        """Take stock."""
        return cls(child_pids(), frozenset(threading.enumerate()), open_descriptors())

    def left_behind(self, grace_s: float = GRACE_S) -> list[str]:
        """Name what is held now and was not held at this stock; waits a bounded time first."""
        left = [wait_for_child(pid, grace_s) for pid in child_pids() - self.children]
        left += [wait_for_thread(t, grace_s) for t in set(threading.enumerate()) - self.threads]
        if open_descriptors() - self.descriptors:
            gc.collect()  # transports and files in reference cycles close when collected
        left += [f"descriptor {fd} ({to})" for fd, to in open_descriptors() - self.descriptors]
        return sorted(text for text in left if text)


def child_pids() -> frozenset[int]:
    """Return the pids of the direct children, those that ended and wait to be reaped included."""
    pids: set[int] = set()
    for task in Path("/proc/self/task").iterdir():
        try:
            pids.update(map(int, (task / "children").read_text().split()))
        except OSError:
            continue  # the thread ended meanwhile
    return frozenset(pids)


def wait_for_child(pid: int, grace_s: float) -> str:
    """Give a child its moment to end and be reaped; return what it is if it still runs."""
    try:
        child = psutil.Process(pid)
        command = " ".join(child.cmdline())[:200]
        child.wait(grace_s)
    except psutil.NoSuchProcess:
        return ""
    except psutil.TimeoutExpired:
        child.kill()  # so that one leak does not slow every later test
        child.wait(GRACE_S)
        return f"process {pid} ({command})"
    return ""


def wait_for_thread(thread: threading.Thread, grace_s: float) -> str:
    """Give a thread its moment to end; return its name if it still runs."""
    if type(thread).__name__ in LIBRARY_THREADS:
        return ""
    thread.join(grace_s)
    return f"thread {thread.name}" if thread.is_alive() else ""


def open_descriptors() -> frozenset[tuple[int, str]]:
    """Return each open descriptor with what it refers to."""
    found = set()
    for entry in Path("/proc/self/fd").iterdir():
        try:
            target = str(entry.readlink())
        except OSError:
            continue  # the descriptor of this very listing
        if not target.startswith(SHARED_TARGETS):
            found.add((int(entry.name), target))
    return frozenset(found)


def mark_run() -> str:
    """Set a variable that every descendant of this process inherits; return its text."""
    value = uuid.uuid4().hex
    os.environ[MARK_NAME] = value
    return f"{MARK_NAME}={value}"


def descendants_of_run(mark: str) -> dict[int, str]:
    """Return the live processes that carry the mark, other than this one: pid to command line."""
    found: dict[int, str] = {}
    wanted = b"\0" + mark.encode() + b"\0"
    for pid in psutil.pids():
        try:
            environment = b"\0" + Path(f"/proc/{pid}/environ").read_bytes()
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            continue  # ended meanwhile, or another user's
        if pid != os.getpid() and wanted in environment:
            found[pid] = command.replace(b"\0", b" ").decode(errors="replace")[:200]
    return found
