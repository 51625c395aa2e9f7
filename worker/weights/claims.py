"""Who fills which part: one process at a time, and what happens when it does not get on."""

from __future__ import annotations

import os
import resource
import threading
from contextlib import suppress
from pathlib import Path
from time import monotonic, sleep
from types import TracebackType

from filelock import FileLock, Timeout

from worker.failures import LoadFailed
from worker.weights.disk import refusals_in_words
from worker.weights.store import Store

SUFFIX = ".lock"
# A process that fetches renews its locks each second, also while the hub keeps it waiting.
PATIENCE_S = 120.0
POLL_S = 0.2
MOST_CLAIMS = 256
# A lock, an unfinished part and its journal, and one to spare; what else this process has open.
_FILES_PER_CLAIM = 4
_OTHER_FILES = 64


class Claims:
    """Locks of keys (see `part_key`) held by this process; the kernel frees those of a dead one.

    A process never waits while it holds one, so two cannot wait for each other.
    """

    def __init__(self, store: Store) -> None:
        self._folder = store.locks_folder
        self._held: dict[str, FileLock] = {}
        self._lock = threading.Lock()

    def __enter__(self) -> Claims:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for key in list(self._held):
            self.release(key)

    def take(self, key: str) -> bool:
        """Take the lock of `key`, without waiting; tell whether it was free.

        Raises:
            LoadFailed: the folder of locks cannot be written.
        """
        with refusals_in_words(self._folder):
            self._folder.mkdir(parents=True, exist_ok=True)
            # Any thread may release it: the one that publishes the part.
            lock = FileLock(self._folder / f"{key}{SUFFIX}", thread_local=False, on_acquired=_sign)
            try:
                lock.acquire(blocking=False)
            except Timeout:
                return False
        with self._lock:
            self._held[key] = lock
        return True

    def renew(self) -> None:
        """Show those who wait that this process is alive."""
        with self._lock:
            held = list(self._held)
        for key in held:
            with suppress(OSError):  # Removed with the model; the lock itself holds.
                os.utime(self._folder / f"{key}{SUFFIX}")

    def release(self, key: str) -> None:
        """Let others have `key`; any thread may call."""
        with self._lock:
            lock = self._held.pop(key, None)
        if lock is not None:
            lock.release()


class Patience:
    """Waits for another process to fill a part, as long as that process shows that it is alive.

    Args:
        patience_s: seconds without a sign of life after which waiting is given up.
    """

    def __init__(self, store: Store, patience_s: float) -> None:
        self._store = store
        self._patience_s = patience_s
        self._seen: object = None
        self._moved_s = monotonic()

    def wait(self, keys: list[str]) -> None:
        """Wait a moment for parts of `keys`, which other processes hold.

        Raises:
            LoadFailed: their holders are silent for too long; names one.
        """
        now_seen = [_renewed_ns(self._store.locks_folder / f"{key}{SUFFIX}") for key in keys]
        if now_seen != self._seen:
            self._seen, self._moved_s = now_seen, monotonic()
        elif monotonic() - self._moved_s > self._patience_s:
            holder = holder_of(self._store.locks_folder / f"{keys[0]}{SUFFIX}")
            raise LoadFailed(
                f"{holder} is fetching {keys[0]} of {self._store.origin.repo_id} into "
                f"{self._store.folder} but has shown no sign of life for {self._patience_s:g} s; "
                "end that process and start again"
            )
        sleep(POLL_S)


def most_claims() -> int:
    """Return how many locks to hold at once, which leaves this process files to open."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files == resource.RLIM_INFINITY:
        return MOST_CLAIMS
    return min(MOST_CLAIMS, max(1, (files - _OTHER_FILES) // _FILES_PER_CLAIM))


def holder_of(lock_file: Path) -> str:
    """Name the process that last took a lock."""
    try:
        pid, host = lock_file.read_text().split()
    except (OSError, ValueError):
        return "another process"
    return f"process {pid}" + ("" if host == os.uname().nodename else f" on {host}")


def _sign(fd: int) -> None:
    os.ftruncate(fd, 0)
    os.pwrite(fd, f"{os.getpid()} {os.uname().nodename}\n".encode(), 0)


def _renewed_ns(lock_file: Path) -> int:
    try:
        return lock_file.stat().st_mtime_ns
    except OSError:
        return 0  # Removed with the model.
