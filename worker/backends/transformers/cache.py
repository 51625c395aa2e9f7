"""One request's cache, in the terms of the backend interface."""

from __future__ import annotations

from worker.backends.base import CannotCrop
from worker.model import errors
from worker.model.kv import CacheSnapshot, StageCache


class RequestCache:
    """A `StageCache` behind `KVCache`."""

    def __init__(self, cache: StageCache) -> None:
        self.cache = cache

    @property
    def length(self) -> int:
        """Positions held."""
        return self.cache.seen

    @property
    def size_bytes(self) -> int:
        """Memory held."""
        return self.cache.size_bytes

    def snapshot(self, floor: int) -> CacheSnapshot:
        """Remember the present state; it survives a crop to `floor` and appends after it."""
        return self.cache.snapshot(floor)

    def restore(self, snapshot: CacheSnapshot) -> None:
        """Bring back the state of `snapshot`."""
        self.cache.restore(snapshot)

    def crop(self, length: int) -> None:
        """Forget the positions from `length` on.

        Raises:
            CannotCrop: this model's state cannot go back that far; nothing changed.
        """
        try:
            self.cache.crop_to(length)
        except errors.CannotCrop as error:
            raise CannotCrop(str(error)) from error
