"""What an op did, for its event: times of its parts, rows, and failures within it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from worker.protocol.events import OpTraceback


@dataclass(slots=True)
class Stopwatch:
    """Milliseconds of each primitive of one op, and what else only its handler knows.

    Attributes:
        compute_ms: by the primitive's name.
        requests: how many requests were worked on together; None: the op is one.
        rows: rows of all of them.
        waited_ms: of the op's time, for hidden states to come over a link: no work.
        tracebacks: of requests among them that failed in a way nobody foresaw.
    """

    compute_ms: dict[str, float] = field(default_factory=dict)
    requests: int | None = None
    rows: int | None = None
    waited_ms: float = 0.0
    tracebacks: list[OpTraceback] = field(default_factory=list)

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        """Time one primitive."""
        start_s = time.perf_counter()
        try:
            yield
        finally:
            took_ms = (time.perf_counter() - start_s) * 1000
            self.compute_ms[name] = round(self.compute_ms.get(name, 0) + took_ms, 3)
