"""Fill parts from the hub over several connections."""

from __future__ import annotations

import hashlib
import threading
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Protocol

from worker.failures import LoadFailed
from worker.weights.claims import Claims
from worker.weights.hub_file import FetchStopped, HubFile
from worker.weights.part import Part
from worker.weights.progress import DownloadMeter
from worker.weights.ranges import Job, plan_jobs

# What a kill or a loss of power may cost of what was received, in time.
SYNC_S = 1.0


class RangeSource(Protocol):
    """Gives byte ranges of the hub's files; `HubSource` does."""

    def stream(self, file: HubFile, start: int, end: int, stop: threading.Event) -> Iterator[bytes]:
        """Yield exactly `end - start` bytes.

        Raises:
            LoadFailed: the hub does not give them; one sentence.
            FetchStopped: `stop` is set.
        """

    def interrupt(self) -> None:
        """End all streams now, those that wait for the hub included; none works afterwards."""


class Filling:
    """Fetches what parts lack and publishes each as soon as it is whole.

    Args:
        parts: locks of their keys are held as `claims`, and released as they are published.
        files: the hub's files by name.
    """

    def __init__(
        self,
        source: RangeSource,
        parts: Sequence[Part],
        files: Mapping[str, HubFile],
        claims: Claims,
        meter: DownloadMeter,
    ) -> None:
        self._source = source
        self._parts = parts
        self._files = files
        self._claims = claims
        self._meter = meter
        self._jobs: deque[Job] = deque()
        self._stop = threading.Event()
        self._errors: list[BaseException] = []

    def run(self, connections: int) -> None:
        """Fetch, over so many connections at once.

        Raises:
            LoadFailed: the hub or the disk refuses; what was received is kept.
            FetchStopped: the source was interrupted.
        """
        try:
            self._plan(connections)
            workers = min(max(1, connections), len(self._jobs))
            if workers:
                self._work(workers)
        finally:
            self._close()
        if self._errors:
            raise self._errors[0]
        if not all(part.published for part in self._parts):
            raise FetchStopped  # Somebody has interrupted the source.

    def _plan(self, connections: int) -> None:
        missing = []
        for number, part in enumerate(self._parts):
            part.check_taken_over()
            self._claims.renew()
            here = part.here
            pieces = list(part.layout.pieces(number))
            missing += [piece for piece in pieces if piece.index not in here]
            self._meter.had(sum(p.end - p.start for p in pieces if p.index in here))
            if part.publish_if_whole():
                self._claims.release(part.layout.key)
        self._jobs.extend(plan_jobs(missing, connections))

    def _work(self, workers: int) -> None:
        with ThreadPoolExecutor(workers, thread_name_prefix="fetch") as pool:
            running: set[Future[None]] = set()
            try:
                running |= {pool.submit(self._connection) for _ in range(workers)}
                while running:
                    _, running = wait(running, SYNC_S)
                    self._claims.renew()
                    for part in self._parts:
                        part.sync()
            finally:
                if running:  # The disk refused, or this thread was interrupted.
                    self._stop.set()
                    self._source.interrupt()

    def _connection(self) -> None:
        try:
            while not self._stop.is_set():
                try:
                    job = self._jobs.popleft()
                except IndexError:
                    return
                self._fetch(job)
        except FetchStopped:
            return  # Another connection's error, or this process is ending.
        except BaseException as error:  # noqa: BLE001 - raised by `run`
            self._errors.append(error)
            self._stop.set()
            self._source.interrupt()

    def _fetch(self, job: Job) -> None:
        """Stream one range and hand each piece's bytes to its part, checksums taken on the way."""
        at = job.start
        pieces = deque(job.pieces)
        digest = hashlib.sha256()
        for chunk in self._source.stream(self._files[job.file], job.start, job.end, self._stop):
            rest = memoryview(chunk)
            while rest and pieces:
                piece = pieces[0]
                if at < piece.start:  # A gap, fetched to save a request.
                    skipped = min(piece.start - at, len(rest))
                    at, rest = at + skipped, rest[skipped:]
                    continue
                taken = rest[: piece.end - at]
                part = self._parts[piece.part]
                part.write(piece.offset_bytes + at - piece.start, taken)
                digest.update(taken)
                self._meter.add(len(taken))
                at, rest = at + len(taken), rest[len(taken) :]
                if at == piece.end:
                    size_bytes = piece.end - piece.start
                    if part.finish(piece.index, digest.hexdigest(), size_bytes):
                        self._claims.release(part.layout.key)
                    pieces.popleft()
                    digest = hashlib.sha256()
        if pieces:
            raise LoadFailed(
                f"{job.file} ended at byte {at} of a range that goes to {job.end}; try again, "
                "what was fetched is kept"
            )

    def _close(self) -> None:
        for part in self._parts:
            try:
                if not part.published:
                    part.sync()
            except LoadFailed as error:
                self._errors.append(error)
            part.close()
