"""What was asked of `orchestrator cache`."""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.errand_kind import ErrandKind
from orchestrator.plan_options import ReachOptions

ERRANDS = {
    "ls": ErrandKind.LIST_CACHE,
    "verify": ErrandKind.VERIFY_CACHE,
    "rm": ErrandKind.REMOVE_CACHE,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheOptions(ReachOptions):
    """What the command line asked for."""

    cache_action: str
    model_id: str | None
    revision: str | None
    json: bool
    repair: bool
    all: bool

    @property
    def commit(self) -> str | None:
        """The commit that was asked for, or its beginning, also as ID@COMMIT."""
        _, at, named = (self.model_id or "").partition("@")
        return self.revision if self.revision is not None else (named if at else None)

    @property
    def errand(self) -> ErrandKind:
        """What the worker on each host is started for."""
        return ERRANDS[self.cache_action]
