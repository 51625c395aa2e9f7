"""Numbers and foreign text as people read them; nothing here raises for an odd value."""

from __future__ import annotations

from datetime import UTC, datetime


def size(size_bytes: float) -> str:
    """Return `1.50 GB` (10^9), as vendors and `ls -h --si` count."""
    for unit, factor in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size_bytes >= factor:
            return f"{size_bytes / factor:.3g} {unit}"
    return f"{size_bytes:g} B"


def span(duration_ms: float | None) -> str:
    """Return `0.42 ms`, `120 ms`, `3.25 s` or `2 min 5 s`; `-` for None."""
    if duration_ms is None:
        return "-"
    if duration_ms < 9.95:
        return f"{duration_ms:.2f} ms"
    if duration_ms < 999.5:
        return f"{duration_ms:.0f} ms"
    if duration_ms < 119_500:
        return (
            f"{duration_ms / 1000:.2f} s" if duration_ms < 9_995 else f"{duration_ms / 1000:.1f} s"
        )
    minutes, seconds = divmod(duration_ms / 1000, 60)
    return f"{minutes:.0f} min {seconds:.0f} s"


def clock(wall_ms: float) -> str:
    """Return `12:34:56.789` in UTC; `-` where that is no time."""
    try:
        return datetime.fromtimestamp(wall_ms / 1000, UTC).strftime("%H:%M:%S.%f")[:-3]
    except (ValueError, OverflowError, OSError):
        return "-"


def printable(text: str, limit: int = 400) -> str:
    """Return foreign text on one line, without control characters and not too long."""
    flat = " ".join("".join(c if c.isprintable() else " " for c in text[: 4 * limit]).split())
    return flat if len(flat) <= limit else flat[: limit - 1] + "…"
