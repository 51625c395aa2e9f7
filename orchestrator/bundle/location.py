"""Where bundles are kept: a folder of the user's, the newest few of them."""

from __future__ import annotations

import re
import secrets
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path

KEPT = 20
UNFINISHED_KEPT_DAYS = 7

_NAME = re.compile(r"(\d{8}T\d{6})Z-[0-9a-f]{4}")
_STAMP = "%Y%m%dT%H%M%S"


def default_folder(state_dir: Path) -> Path:
    """Return the folder of all bundles, below what orchestrator.config.state_dir() gives."""
    return state_dir / "bundles"


def fresh_path(folder: Path, now_ns: int) -> Path:
    """Return a name of its own for a new bundle; names sort by time."""
    stamp = datetime.fromtimestamp(now_ns / 1e9, UTC).strftime(_STAMP)
    return folder / f"{stamp}Z-{secrets.token_hex(2)}"


def bundles_in(folder: Path) -> tuple[Path, ...]:
    """Return the bundles of a folder, oldest first; none where there is no folder."""
    try:
        found = [path for path in folder.iterdir() if _NAME.fullmatch(path.name)]
    except OSError:
        return ()
    return tuple(sorted(path for path in found if path.is_dir() and not path.is_symlink()))


def prune(folder: Path, now_ns: int, kept: int = KEPT) -> tuple[Path, ...]:
    """Remove all but the newest `kept` bundles and return the removed; never raises.

    A bundle without an end may be of a run that is still going on, or of one that was killed: it
    stays for a week.
    """
    horizon = datetime.fromtimestamp(now_ns / 1e9, UTC) - timedelta(days=UNFINISHED_KEPT_DAYS)
    removed = []
    for path in bundles_in(folder)[: -kept or None]:
        unfinished = not (path / "end.json").exists()
        if unfinished and path.name[:15] > horizon.strftime(_STAMP):
            continue
        shutil.rmtree(path, ignore_errors=True)
        removed.append(path)
    return tuple(removed)
