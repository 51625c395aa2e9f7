"""Watch the highest resident size of a process, as the kernel itself keeps it."""

from __future__ import annotations

from pathlib import Path

_RESET_PEAK = "5"


def reset_peak() -> int:
    """Set the kernel's record to the present resident size, and return it in bytes."""
    Path("/proc/self/clear_refs").write_text(_RESET_PEAK)
    return _status_bytes("VmRSS")


def peak_bytes(pid: int | None = None) -> int:
    """Return the highest resident size of a process, this one by default, since `reset_peak`.

    `ru_maxrss` would not do: a started program inherits it from its starter.
    """
    return _status_bytes("VmHWM", pid)


def _status_bytes(field: str, pid: int | None = None) -> int:
    for line in Path(f"/proc/{pid or 'self'}/status").read_text().splitlines():
        name, _, value = line.partition(":")
        if name == field:
            return int(value.split()[0]) * 1024
    raise RuntimeError(f"/proc/self/status has no {field}: this bench needs Linux")
