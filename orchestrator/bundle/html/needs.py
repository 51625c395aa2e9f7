"""What each stage was predicted to need, as parts of a bar beside what was free."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from orchestrator.bundle.html.axis import Bar
from orchestrator.bundle.processes import Process
from orchestrator.bundle.words import printable, size
from worker.protocol.events import MemoryCheck


@dataclass(frozen=True, slots=True)
class Need:
    """The memory check of a stage; `free_x` is in percent, on the scale of all stages."""

    stage: int
    host: str
    parts: tuple[Bar, ...]
    free_x: float
    fits: bool
    summary: str


def needs_of(processes: Iterable[Process]) -> tuple[Need, ...]:
    """Return the newest memory check of each stage."""
    checks: dict[int, tuple[str, MemoryCheck]] = {}
    for process in processes:
        for seen in process.seen:
            if isinstance(seen.event, MemoryCheck):
                checks[process.stage] = (process.host, seen.event)
    most = max((max(c.need_bytes, c.free_bytes) for _, c in checks.values()), default=0) or 1
    return tuple(
        Need(
            stage,
            host,
            tuple(_parts(check, 97 / most)),
            round(check.free_bytes * 97 / most, 2),
            check.fits,
            f"{size(check.need_bytes)} needed on {printable(check.device, 20)}, "
            f"{size(check.free_bytes)} free ({printable(check.limit, 40)})"
            + ("" if check.fits else ": does not fit"),
        )
        for stage, (host, check) in sorted(checks.items())
    )


def _parts(check: MemoryCheck, scale: float) -> Iterator[Bar]:
    parts = {
        "weights": check.weights_bytes,
        "KV": check.kv_bytes,
        "scratch": check.scratch_bytes,
        "libraries": check.process_bytes,
    }
    x = 0.0
    for name, size_bytes in parts.items():
        width = size_bytes * scale
        yield Bar(round(x, 2), round(width, 2), name.lower(), f"{name}: {size(size_bytes)}")
        x += width
