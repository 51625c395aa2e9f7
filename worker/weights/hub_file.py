"""Read ranges of a hub's files, whatever happens on the way, or say in one sentence why not."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from worker.failures import LoadFailed
from worker.weights.hub_answer import body, check_range, plain_etag
from worker.weights.hub_errors import (
    PassingTrouble,
    gave_up,
    passing,
    refusal,
    too_patient,
    where_of,
)
from worker.weights.hub_requests import HubRequests
from worker.weights.retry import Attempts, FetchLimits

T = TypeVar("T")


class FetchStopped(Exception):
    """A stream was ended by its `stop` event or by `HubSource.interrupt`."""


@dataclass(frozen=True)
class HubFile:
    """A file of one commit: its size, and what identifies its content where the hub says so."""

    name: str
    size_bytes: int
    etag: str | None


class HubSource:
    """The files of one commit of a repository; any thread may use it.

    What may pass is tried again, with growing waits, until `limits.attempts` requests in a row
    brought nothing. Everything raises `LoadFailed` with one sentence when it fails for good, and
    `FetchStopped` after `interrupt`.
    """

    def __init__(
        self, repo_id: str, commit: str, endpoint: str | None = None, *, limits: FetchLimits
    ) -> None:
        self._repo_id = repo_id
        self._commit = commit
        self._limits = limits
        self._requests = HubRequests(repo_id, commit, endpoint, limits)
        self._interrupted = threading.Event()

    def describe(self, name: str) -> HubFile:
        """Ask for size and etag of a file.

        Raises:
            LoadFailed: there is none, the hub refuses or cannot be reached.
        """
        found = self._ask(name, lambda: self._requests.metadata(name))
        size_bytes = found.size if found else None
        etag = found.etag if found else None
        if size_bytes is None or (etag or "").endswith("-gzip"):
            # not told, or told of the file as a proxy packs it
            size_bytes = self._ask(name, lambda: self._probe(name))
        return HubFile(name, size_bytes, plain_etag(etag))

    def read(self, file: HubFile, start: int, end: int) -> bytes:
        """Return bytes [start, end); for small ranges such as headers.

        Raises:
            LoadFailed: see `stream`.
        """
        return b"".join(self.stream(file, start, end, self._interrupted))

    def stream(self, file: HubFile, start: int, end: int, stop: threading.Event) -> Iterator[bytes]:
        """Yield exactly the bytes [start, end), over as many requests as that takes.

        A body that ends early is gone on with from the byte that was reached. `stop` is looked
        at between chunks and during waits; to end a blocked read too, set it and call
        `interrupt`.

        Raises:
            LoadFailed: the hub refuses, cannot be reached or does not send what was asked for.
            FetchStopped: `stop` was set before the end.
        """
        if not 0 <= start <= end <= file.size_bytes:
            raise ValueError(f"bytes {start} to {end} are not in {file}")
        attempts = Attempts(self._limits)
        reached = start
        while reached < end:
            self._check_stop(stop)
            try:
                for chunk in self._one_request(file, reached, end):
                    reached += len(chunk)
                    attempts.gained(len(chunk))
                    yield chunk
                    self._check_stop(stop)
            except Exception as error:  # noqa: BLE001 - sorted into those that may pass and others
                self._wait(error, file.name, attempts, stop)

    def interrupt(self) -> None:
        """End everything that this source is doing, for good.

        Reads that wait for the hub end too. The exception: one that waits for the beginning of
        an answer on a connection that another part of huggingface_hub opened and that brought
        this source nothing yet goes on for up to `stall_s`.
        """
        self._interrupted.set()
        self._requests.connections.shut()

    def _one_request(self, file: HubFile, start: int, end: int) -> Iterator[bytes]:
        """Yield what one request brings of [start, end); raises if that is not all of it."""
        reached = start
        with self._requests.open(file.name, start, end, file.size_bytes, file.etag) as response:
            check_range(response, start, end, file.size_bytes, self._what(file.name))
            # An answer that does not tell its length may go on, or not end, after the range:
            # what follows is not ours. Else it is read to its end, which keeps the connection.
            endless = "content-length" not in response.headers
            for chunk in body(response, self._limits):
                kept = chunk[: end - reached]
                reached += len(kept)
                yield kept
                if endless and reached == end:
                    return
        if reached < end:
            raise PassingTrouble(f"the answer ended after {reached - start} of {end - start} bytes")

    def _probe(self, name: str) -> int:
        """Ask for one byte to learn the size."""
        with self._requests.open(name, 0, 1, None, None) as response:
            return check_range(response, 0, 1, None, self._what(name))

    def _ask(self, name: str, act: Callable[[], T]) -> T:
        attempts = Attempts(self._limits)
        while True:
            self._check_stop(self._interrupted)
            try:
                return act()
            except Exception as error:  # noqa: BLE001 - as in `stream`
                self._wait(error, name, attempts, self._interrupted)

    def _wait(self, error: Exception, name: str, attempts: Attempts, stop: threading.Event) -> None:
        """Wait before the next attempt; raise if there is to be none."""
        if isinstance(error, FetchStopped | LoadFailed):
            raise error
        self._check_stop(stop)  # the error may be of a connection that `interrupt` shut
        trouble = passing(error)
        if trouble is None:
            raise refusal(error, self._repo_id, name, self._commit) from error
        self._requests.forget_address(name)
        where, limit_s = where_of(self._repo_id, self._commit), self._limits.longest_retry_after_s
        if trouble.asked_s is not None and trouble.asked_s > limit_s:
            raise too_patient(trouble.asked_s, limit_s, name, where) from error
        delay_s = attempts.failed(trouble.asked_s)
        if delay_s is None:
            raise gave_up(trouble, attempts.failures, name, where) from error
        stop.wait(delay_s)

    def _check_stop(self, stop: threading.Event) -> None:
        if stop.is_set() or self._interrupted.is_set():
            raise FetchStopped

    def _what(self, name: str) -> str:
        return f"{name} of {where_of(self._repo_id, self._commit)}"
