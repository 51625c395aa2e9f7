"""What is kept on this host, of every model: list it, check every byte, remove it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from worker.protocol.events import CacheEntry, CacheRemoved, CacheVerified, Event
from worker.weights.claims import SUFFIX as LOCK_SUFFIX
from worker.weights.claims import Claims, holder_of
from worker.weights.disk import refusals_in_words
from worker.weights.group import group_of, layer_of
from worker.weights.kept import KeptModel, kept_models, on_disk_bytes
from worker.weights.orphans import key_of
from worker.weights.published import PublishedPart
from worker.weights.store import Store

Emit = Callable[[Event], None]


def list_models(root: Path, emit: Emit, *, model_id: str | None = None) -> None:
    """Tell what is kept of each model at each commit, as `cache_entry` events."""
    for model in kept_models(root, model_id):
        store = model.store()
        groups = {group_of(name) for part in store.parts for name in part.entries}
        layers = sorted({n for n in map(layer_of, groups) if n is not None})
        whole = {part.path for part in store.parts}
        unfinished = set(store.parts_folder.glob("*")) - whole
        emit(
            CacheEntry(
                model_id=model.repo_id,
                commit=model.commit,
                endpoint=store.origin.endpoint,
                path=str(model.folder),
                layers=" ".join(f"{start}:{end}" for start, end in _runs(layers)),
                groups=tuple(sorted(group for group in groups if layer_of(group) is None)),
                size_bytes=sum(map(on_disk_bytes, {*whole, *store.headers_folder.glob("*")})),
                partial_bytes=sum(map(on_disk_bytes, unfinished)),
                used_ms=model.folder.stat().st_mtime_ns / 1e6,
            )
        )


def verify_models(
    root: Path,
    emit: Emit,
    *,
    model_id: str | None = None,
    commit: str | None = None,
    repair: bool = False,
) -> None:
    """Read every byte that is kept and compare it with its checksum: `cache_verified` events.

    With `repair`, parts that differ are removed, so that the next start fetches them again.
    """
    for model in kept_models(root, model_id, commit):
        store = model.store()
        for path in model.parts():
            try:
                size_bytes = path.stat().st_size
                reason = _flaw(store, path)
            except FileNotFoundError:
                continue  # Removed meanwhile.
            if reason is not None and repair:
                with refusals_in_words(path.parent):
                    path.unlink(missing_ok=True)
                reason = f"{reason}; it was removed and will be fetched again when it is needed"
            elif reason is not None:
                reason = f"{reason}; repeat the command with --repair to remove it"
            emit(
                CacheVerified(
                    model_id=model.repo_id,
                    commit=model.commit,
                    file=path.name,
                    size_bytes=size_bytes,
                    ok=reason is None,
                    reason=reason,
                )
            )


def remove_models(
    root: Path, emit: Emit, *, model_id: str | None = None, commit: str | None = None
) -> None:
    """Remove what is kept, but for what is being fetched right now: `cache_removed` events."""
    for model in kept_models(root, model_id, commit):
        with refusals_in_words(model.folder):
            freed_bytes, kept = _remove(model)
        emit(
            CacheRemoved(
                model_id=model.repo_id, commit=model.commit, bytes_freed=freed_bytes, kept=kept
            )
        )


def _remove(model: KeptModel) -> tuple[int, str | None]:
    store = Store.at(model.folder, model.folder.parent.parent.name, model.repo_id, model.commit)
    by_key: dict[str, list[Path]] = {
        path.name.removesuffix(LOCK_SUFFIX): [] for path in store.locks_folder.glob("*")
    }
    for path in store.parts_folder.glob("*"):
        by_key.setdefault(key_of(path), []).append(path)
    freed_bytes = 0
    busy: list[str] = []
    for key, paths in sorted(by_key.items()):
        with Claims(store) as claims:
            if not claims.take(key):
                busy.append(key)
                continue
            # The lock goes while it is held: who waits for it sees that, and makes a new one.
            freed_bytes += _unlink([*paths, store.locks_folder / f"{key}{LOCK_SUFFIX}"])
    if busy:
        holder = holder_of(store.locks_folder / f"{busy[0]}{LOCK_SUFFIX}")
        return freed_bytes, (
            f"{', '.join(busy)} of {model.repo_id} is being fetched by {holder}; end it, then "
            "remove the model again"
        )
    # Headers only with everything else: who fetches may need them.
    freed_bytes += _unlink(store.headers_folder.glob("*"))
    for folder in (*model.folder.glob("*"), model.folder, *list(model.folder.parents)[:2]):
        with suppress(OSError):  # Another model beside it, or a fetch that has just begun.
            folder.rmdir()
    return freed_bytes, None


def _unlink(paths: Iterable[Path]) -> int:
    """Remove files; return how much of the disk they took."""
    freed_bytes = 0
    for path in paths:
        freed_bytes += on_disk_bytes(path)
        path.unlink(missing_ok=True)
    return freed_bytes


def _flaw(store: Store, path: Path) -> str | None:
    if path in store.refused:
        return store.refused[path].removesuffix("; fetch it again")
    try:
        found = next(PublishedPart.read(path).flaws(), None)
    except FileNotFoundError:
        raise
    except OSError as error:
        return f"{path} cannot be read ({error.strerror})"
    return f"in {path} {found}" if found else None


def _runs(numbers: list[int]) -> Iterator[tuple[int, int]]:
    """Yield the half-open ranges that sorted numbers make up."""
    start = end = None
    for number in numbers:
        if start is None or end is None or number != end:
            if start is not None and end is not None:
                yield start, end
            start = number
        end = number + 1
    if start is not None and end is not None:
        yield start, end
