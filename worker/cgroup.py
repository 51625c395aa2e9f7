"""Find out how much memory the control groups around this process leave."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

_ROOT = Path("/sys/fs/cgroup")
_MEMBERSHIP = Path("/proc/self/cgroup")
# cgroup v1 says "no limit" with a number near 2^63
_NO_LIMIT_BYTES = 1 << 60


def cgroup_free_bytes(root: Path = _ROOT, membership: Path = _MEMBERSHIP) -> list[int]:
    """List what each limited cgroup around this process leaves, versions 1 and 2.

    File pages that the kernel would drop first (`inactive_file`) count as free: a model folder
    that was just downloaded must not be in the way of loading it.
    """
    try:
        lines = membership.read_text().splitlines()
    except OSError:
        return []
    free: list[int] = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            files = ("memory.max", "memory.current", "inactive_file")
            start = root
        elif "memory" in controllers.split(","):
            files = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
            start = root / "memory"
        else:
            continue
        for folder in _folders(start, path):
            limit, used = _number(folder / files[0]), _number(folder / files[1])
            if limit is not None and used is not None and limit < _NO_LIMIT_BYTES:
                free.append(limit - used + _statistic(folder / "memory.stat", files[2]))
    return free


def _folders(start: Path, path: str) -> Iterator[Path]:
    """The cgroup's folder and those around it; inside a container the path may not exist."""
    folder = start / path.strip("/")
    while folder != start:
        yield folder
        folder = folder.parent
    yield start


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        # not there, or the word `max`
        return None


def _statistic(path: Path, name: str) -> int:
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return 0
    found = (line.split() for line in lines)
    return next((int(words[1]) for words in found if len(words) == 2 and words[0] == name), 0)
