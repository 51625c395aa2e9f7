"""Bring tensors into the store: each once, whatever other processes do, from where it stopped."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice

from worker.failures import LoadFailed
from worker.protocol.events import Event
from worker.weights.claims import PATIENCE_S, Claims, Patience, most_claims
from worker.weights.disk import refusals_in_words, require_room
from worker.weights.filling import Filling, RangeSource
from worker.weights.header import TensorEntry
from worker.weights.hub_file import HubFile
from worker.weights.layout import PartLayout, part_key
from worker.weights.orphans import clean_orphans
from worker.weights.part import Part
from worker.weights.progress import DownloadMeter
from worker.weights.retry import FetchLimits
from worker.weights.store import Store


def fetch_tensors(
    source: RangeSource,
    store: Store,
    entries: Sequence[TensorEntry],
    files: Mapping[str, HubFile],
    *,
    meter: DownloadMeter,
    emit: Callable[[Event], None],
    limits: FetchLimits,
    patience_s: float = PATIENCE_S,
) -> None:
    """Fetch the tensors of `entries` that the store lacks, and publish them.

    Parts that another process is filling are waited for and then used; those of a process that
    died are taken over. `meter` runs for as long as this does.

    Args:
        files: the hub's version of each file that the entries name.
        patience_s: how long another process may write nothing before waiting is given up.

    Raises:
        LoadFailed: the hub or the disk refuses, or another process hangs; one sentence. What was
            received is kept, and the next try goes on from there.
    """
    with meter:
        store.expect(files)
        clean_orphans(store, emit)
        patience = Patience(store, patience_s)
        lacking = store.lacking(entries)
        _require_room(store, _parts(store, lacking, files))
        while lacking:
            with Claims(store) as claims:
                free = (key for key in _by_key(lacking) if claims.take(key))
                mine = set(islice(free, most_claims()))
                # Only now: who removes models leaves folders alone in which locks are held.
                with refusals_in_words(store.folder):
                    store.parts_folder.mkdir(parents=True, exist_ok=True)
                # Others may have published what was just unlocked.
                lacking = _count_brought(store, lacking, meter)
                own = [entry for entry in lacking if part_key(entry.name) in mine]
                if own:
                    parts = _parts(store, own, files)
                    _require_room(store, parts)
                    Filling(source, parts, files, claims, meter).run(limits.connections)
                    lacking = _after_filling(store, lacking, parts)
            if lacking and not own:
                patience.wait(list(_by_key(lacking)))
        clean_orphans(store, emit)


def _count_brought(
    store: Store, lacking: Sequence[TensorEntry], meter: DownloadMeter
) -> list[TensorEntry]:
    """Return what is still lacking; what other processes brought counts as here."""
    store.scan()
    left = store.lacking(lacking)
    meter.had(_size_bytes(lacking) - _size_bytes(left))
    return left


def _after_filling(
    store: Store, lacking: Sequence[TensorEntry], own: Sequence[Part]
) -> list[TensorEntry]:
    """Return what other processes have yet to bring."""
    store.scan()
    left = store.lacking(lacking)
    filled = {part.layout.key: part.path for part in own}
    for entry in left:
        path = filled.get(part_key(entry.name))
        if path is not None:  # Removed at once, or the disk does not give back what it took.
            why = store.refused.get(path, f"{path} was removed meanwhile")
            raise LoadFailed(
                f"tensor {entry.name} was fetched but cannot be used: {why}; start again, and "
                "check that disk if it happens again"
            )
    return left


def _size_bytes(entries: Iterable[TensorEntry]) -> int:
    return sum(entry.size_bytes for entry in entries)


def _by_key(entries: Iterable[TensorEntry]) -> dict[str, list[TensorEntry]]:
    keys: dict[str, list[TensorEntry]] = {}
    for entry in entries:
        keys.setdefault(part_key(entry.name), []).append(entry)
    return keys


def _parts(
    store: Store, entries: Iterable[TensorEntry], files: Mapping[str, HubFile]
) -> list[Part]:
    return [
        Part(store.parts_folder, PartLayout.of(store.origin, key, tensors, files))
        for key, tensors in _by_key(entries).items()
    ]


def _require_room(store: Store, parts: Iterable[Part]) -> None:
    need_bytes = sum(part.layout.size_bytes - part.allocated_bytes for part in parts)
    require_room(store.folder, need_bytes)
