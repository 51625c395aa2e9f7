"""How much memory this process held at most."""

from __future__ import annotations

import resource
import sys


def peak_resident_mb() -> float:
    """Return the highest resident set size so far in MB (10^6)."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    # macOS counts bytes, all others KiB
    return round(peak * (1 if sys.platform == "darwin" else 1024) / 1e6, 1)
