"""Ways in which a hub misbehaves, each for the requests it is told to strike."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Asked:
    """One request that a hub got.

    Attributes:
        method: `GET` or `HEAD`.
        at: `hub` or `cdn`.
        file: the last part of the path.
        headers: as sent, names in lower case.
        path: with the query.
    """

    method: str
    at: str
    file: str
    headers: Mapping[str, str]
    path: str

    @property
    def range(self) -> str | None:
        """The `Range` header."""
        return self.headers.get("range")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One way to misbehave.

    Which requests: those that `method` (None: any), `at` and `file` match, the first `skip` of
    them left alone and then `times` of them struck (None: all that follow).

    Attributes:
        drop: close the connection without a word.
        mute: say nothing and keep the connection, until the client goes or the hub ends.
        status, code: answer with this status and `X-Error-Code`, and with no file.
        headers: set these headers in the answer; None leaves one out.
        whole: answer with the whole file whatever range was asked.
        shift_bytes: give (and name) a range that begins so many bytes later.
        chunked: send the body in chunks, without `Content-Length`.
        extra_bytes: add so many bytes to the body (and to `Content-Length`).
        cut_bytes: end the connection after so many bytes of the body.
        reset: end it with a reset.
        stall_bytes: after so many bytes of the body send no more, but keep the connection.
        trickle_s: send `trickle_bytes` of the body in so many seconds.
    """

    method: str | None = "GET"
    at: str | None = None
    file: str | None = None
    skip: int = 0
    times: int | None = 1
    drop: bool = False
    mute: bool = False
    status: int | None = None
    code: str = ""
    headers: Mapping[str, str | None] = field(default_factory=dict)
    whole: bool = False
    shift_bytes: int = 0
    chunked: bool = False
    extra_bytes: int = 0
    cut_bytes: int | None = None
    reset: bool = False
    stall_bytes: int | None = None
    trickle_s: float | None = None
    trickle_bytes: int = 1

    def matches(self, asked: Asked) -> bool:
        """Tell whether the request is of those that this fault is about."""
        wanted = ((self.method, asked.method), (self.at, asked.at), (self.file, asked.file))
        return all(want in (None, seen) for want, seen in wanted)


class Faults:
    """The faults of a hub, counted down as they strike; any thread may ask."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._planned: list[Fault] = []
        self._seen: list[int] = []

    def add(self, *faults: Fault) -> None:
        """Plan faults; of several that would strike one request the first does."""
        with self._lock:
            self._planned += faults
            self._seen += [0] * len(faults)

    def clear(self) -> None:
        """Behave well from now on."""
        with self._lock:
            self._planned.clear()
            self._seen.clear()

    def next(self, asked: Asked) -> Fault:
        """Return the fault that strikes this request; one that does nothing where none does."""
        struck: Fault | None = None
        with self._lock:
            for number, fault in enumerate(self._planned):
                if struck is not None or not fault.matches(asked):
                    continue
                seen = self._seen[number]
                self._seen[number] += 1
                if seen >= fault.skip and (fault.times is None or seen < fault.skip + fault.times):
                    struck = fault
        return struck or Fault()
