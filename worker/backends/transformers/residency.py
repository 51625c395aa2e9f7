"""How much memory this process held at most."""

from __future__ import annotations

import resource
import sys
from pathlib import Path

_STATUS = Path("/proc/self/status")


def peak_resident_mb() -> float:
    """Return the highest resident set size so far in MB (10^6)."""
    try:
        lines = _STATUS.read_text().splitlines()
        kib = next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))
    except (OSError, StopIteration, ValueError):
        # Not Linux. There this one is no choice: it begins with the peak of the process that
        # started this one.
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        # macOS counts bytes, all others KiB
        kib = peak // (1024 if sys.platform == "darwin" else 1)
    return round(kib * 1024 / 1e6, 1)
