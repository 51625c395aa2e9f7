"""Remove what interrupted downloads left and no later one can use."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from worker.protocol.events import CacheOrphanCleaned, CacheVerified, Event
from worker.weights import journal, part
from worker.weights.claims import Claims
from worker.weights.disk import TMP_SUFFIX
from worker.weights.header import CheckpointError
from worker.weights.published import PublishedPart
from worker.weights.store import Store

Emit = Callable[[Event], None]
# A small file is written in milliseconds; one this old belongs to a process that was killed.
STALE_S = 3600


def key_of(path: Path) -> str:
    """Return the key of a file in the folder of parts, from its name."""
    return path.name.rpartition("-")[0] or path.name


def clean_orphans(store: Store, emit: Emit) -> None:
    """Remove refused parts, unusable partials and stale temporary files that nobody works on.

    What cannot be removed (a read-only cache) stays.
    """
    for path in list(store.refused):
        _unless_filled(_remove_refused, store, path, emit)
    for path in sorted(store.parts_folder.glob(f"*{part.SUFFIX}")):
        _unless_filled(_remove_partial, store, path, emit)
    for path in sorted(store.parts_folder.glob(f"*{journal.SUFFIX}")):
        if not path.with_suffix(part.SUFFIX).exists():
            _unless_filled(_remove_journal, store, path, emit)
    for path in sorted(store.headers_folder.glob(f"*{TMP_SUFFIX}")):
        with suppress(OSError):  # Renamed to its place just now.
            if time.time_ns() - path.stat().st_mtime_ns > STALE_S * 1e9:
                _remove(emit, path)


def _unless_filled(
    act: Callable[[Store, Path, Emit], None], store: Store, path: Path, emit: Emit
) -> None:
    """Do it while nobody fills parts of that key; not at all where somebody does."""
    with Claims(store) as claims:
        if claims.take(key_of(path)):
            with suppress(OSError):
                act(store, path, emit)


def _remove_partial(store: Store, path: Path, emit: Emit) -> None:
    notes = path.with_suffix(journal.SUFFIX)
    if path.exists() and not _is_usable(store, notes):
        _remove(emit, path, notes)


def _remove_journal(_store: Store, path: Path, emit: Emit) -> None:
    if not path.with_suffix(part.SUFFIX).exists():
        _remove(emit, path)


def _is_usable(store: Store, notes: Path) -> bool:
    """Whether a download can go on from a partial: it lacks something, and is of these files."""
    try:
        described: dict[str, Any] = json.loads(journal.description_in(notes))
        origin = store.origin
        if described["origin"] != [origin.endpoint, origin.repo_id, origin.commit]:
            return False
        for name, etag in described["etags"].items():
            file = store.file(name)
            if file is not None and file.etag != etag:
                return False
        return any(store.find(name) is None for name in described["tensors"])
    except (ValueError, KeyError, TypeError, AttributeError):
        return False


def _remove_refused(store: Store, path: Path, emit: Emit) -> None:
    """Remove a part that cannot be used, unless another process has put a good one there."""
    try:
        if PublishedPart.read(path).origin == store.origin:
            return
    except CheckpointError:
        pass
    emit(
        CacheVerified(
            model_id=store.origin.repo_id,
            commit=store.origin.commit,
            file=path.name,
            size_bytes=path.stat().st_size,
            ok=False,
            reason=store.refused[path],
        )
    )
    _remove(emit, path)


def _remove(emit: Emit, *paths: Path) -> None:
    freed_bytes = 0
    for path in paths:
        with suppress(FileNotFoundError):
            freed_bytes += path.stat().st_blocks * 512
            path.unlink()
    emit(CacheOrphanCleaned(file=paths[0].name, bytes_freed=freed_bytes))
