"""What the operating system knows about this process: its parent, its age, its memory."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import sys
import time
from pathlib import Path

from worker.protocol.exits import ExitCode

_PR_SET_PDEATHSIG = 1
_MAX_AGE_MS = 60_000.0


def bind_to_parent() -> None:
    """Let the kernel end this process when its parent ends; Linux only, elsewhere nothing.

    SIGKILL, because at that point nobody is left to read an answer and no library may be able to
    delay it. The kernel looks at the parent's *thread*: a program that starts workers must do so
    from a thread that lives as long as they should.
    """
    if not sys.platform.startswith("linux"):
        return
    parent = os.getppid()
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(ExitCode.PEER_GONE)  # It ended between the two calls, so no signal will come.


def process_age_ms() -> float:
    """Return for how long this process has existed, within the kernel's 10 ms ticks.

    0 where the system does not tell.
    """
    try:
        after_name = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        started_s = int(after_name[19]) / os.sysconf("SC_CLK_TCK")  # Field 22, proc(5).
        age_ms = (time.clock_gettime(time.CLOCK_BOOTTIME) - started_s) * 1000
    except (OSError, ValueError, IndexError, AttributeError):
        return 0.0
    return age_ms if 0 <= age_ms < _MAX_AGE_MS else 0.0


def resident_mb() -> float:
    """Return the resident set size in MB (10^6 bytes); its peak where only that is known."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return round(pages * os.sysconf("SC_PAGE_SIZE") / 1e6, 1)
    except (OSError, ValueError, IndexError):
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return round(peak * (1 if sys.platform == "darwin" else 1024) / 1e6, 1)


def oom_kills() -> int | None:
    """Return how many processes the kernel has killed for want of memory; None if it is silent."""
    try:
        lines = Path("/proc/vmstat").read_text().splitlines()
    except OSError:
        return None
    found = (line.split() for line in lines if line.startswith("oom_kill "))
    return next((int(words[1]) for words in found), None)
