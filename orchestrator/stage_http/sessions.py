"""The KV caches that clients have named: how far each goes, what is padded in it, who uses it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from http import HTTPStatus

from orchestrator.serve.errors import ApiError
from orchestrator.stage_http.headers import SESSION


@dataclass(slots=True)
class Session:
    """One client's cache.

    Attributes:
        mask: uint8 of every position so far, where one of them is padded.
        is_busy: whether a request is working on it.
    """

    mask: bytes | None = None
    is_busy: bool = False


class SessionBook:
    """Every session that this program knows, least recently used first.

    The worker has the last word on positions; what is kept here is what it does not tell.

    Args:
        most: how many there may be.
        on_dropped: told of each that has to go, so that its cache is freed.
    """

    def __init__(self, most: int, on_dropped: Callable[[str], None]) -> None:
        self._most = most
        self._on_dropped = on_dropped
        self._by_name: dict[str, Session] = {}

    def __len__(self) -> int:
        return len(self._by_name)

    @contextlib.contextmanager
    def taken(self, name: str) -> Iterator[Session]:
        """Hold a session for the block; no other request may use it meanwhile.

        Raises:
            ApiError: 409 where another request does.
        """
        known = self._by_name.pop(name, None)
        session = self._by_name[name] = known or Session()
        if session.is_busy:
            raise ApiError(
                HTTPStatus.CONFLICT,
                f"session {name!r} is at work on another request: wait for its answer, or give "
                f"another name in {SESSION}",
                code="session_busy",
                param=SESSION,
            )
        session.is_busy = True
        try:
            yield session
        except BaseException:
            if known is None:
                del self._by_name[name]
            raise
        finally:
            session.is_busy = False
            self._shrink()

    def forget(self, name: str) -> None:
        """Forget a session that is freed."""
        self._by_name.pop(name, None)

    def _shrink(self) -> None:
        idle = (name for name, session in self._by_name.items() if not session.is_busy)
        for name in list(idle)[: max(0, len(self._by_name) - self._most)]:
            del self._by_name[name]
            self._on_dropped(name)
