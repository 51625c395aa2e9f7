"""Whether the kernel killed a process for want of memory: its log, and its counter of such kills.

Both are text, so that the shell of another host can give the same (`kernel_lines` here, `dmesg`
and `/proc/vmstat` there).
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable
from contextlib import closing, suppress
from pathlib import Path

_KILLED = re.compile(r"[Kk]illed process (\d+)")
_COUNTER = re.compile(r"^(?:kernel: )?oom_kill (\d+)\s*$")
_MOST_RECORDS = 50_000
_RECORD_BYTES = 8192
_RECENT_S = 60.0


def kernel_lines(pid: int, kills_before: int | None) -> list[str]:
    """Return what this machine's kernel says of a process that was killed; empty elsewhere.

    Args:
        pid: of the process.
        kills_before: the counter when the process was last heard of; told if it has risen since.
    """
    said = [line for line in _kernel_log() if (found := _KILLED.search(line)) and _is(found, pid)]
    with suppress(OSError):
        for line in Path("/proc/vmstat").read_text().splitlines():
            counter = _COUNTER.match(line)
            if counter and kills_before is not None and int(counter[1]) > kills_before:
                said.append(line)
    return said


def oom_evidence(
    lines: Iterable[str], pid: int | None, kills_before: int | None
) -> tuple[int, str] | None:
    """Return which of the lines shows that the kernel killed it for memory, and what it shows.

    Args:
        lines: last lines of stderr, with `kernel_lines` among them.
        pid: of the process, on its own host.
        kills_before: the counter of that host when the process was last heard of.
    """
    found = None
    for number, line in enumerate(lines):
        killed, counter = _KILLED.search(line), _COUNTER.search(line)
        if killed and pid is not None and _is(killed, pid):
            return number, f"the kernel's log says '{line.strip()[:200]}'"
        if counter and kills_before is not None and int(counter[1]) > kills_before:
            times = int(counter[1]) - kills_before
            found = number, f"the kernel there killed {times} for want of memory meanwhile"
    return found


def _is(found: re.Match[str], pid: int) -> bool:
    return int(found[1]) == pid


def _kernel_log() -> list[str]:
    """Read the kernel's ring buffer, as far as this user may."""
    lines: list[str] = []
    try:
        fd = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return lines  # Not Linux, or only root may.
    with closing(os.fdopen(fd, "rb", buffering=0)) as log:
        for _ in range(_MOST_RECORDS):
            try:
                record = log.read(_RECORD_BYTES)
            except BrokenPipeError:
                continue  # Records were overwritten meanwhile; the next read goes on after them.
            except OSError:
                break
            if not record:
                break
            head, _, text = record.partition(b";")
            if _is_recent(head):
                lines.append(text.partition(b"\n")[0].decode("utf-8", "replace"))
    return lines


def _is_recent(head: bytes) -> bool:
    """Tell by its head (`priority,number,microseconds,flags`): a pid comes again some day."""
    try:
        age_s = time.monotonic() - int(head.split(b",")[2]) / 1e6
    except (IndexError, ValueError):
        return False
    return age_s < _RECENT_S
