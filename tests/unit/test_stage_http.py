"""Sessions over HTTP: one request at a time, a bounded number, nothing kept of what failed."""

from __future__ import annotations

import contextlib

import pytest

from orchestrator.serve.errors import ApiError
from orchestrator.stage_http.sessions import SessionBook


class Failed(Exception):
    """A request that did not end well."""


def use(book: SessionBook, name: str) -> None:
    with book.taken(name):
        pass


def test_the_least_recently_used_session_goes_when_there_are_too_many() -> None:
    dropped: list[str] = []
    book = SessionBook(2, dropped.append)
    for name in ("a", "b", "a", "c", "d"):
        use(book, name)
    assert (dropped, len(book)) == (["b", "a"], 2)


def test_a_session_at_work_is_neither_shared_nor_dropped() -> None:
    dropped: list[str] = []
    book = SessionBook(1, dropped.append)
    with book.taken("a"):
        use(book, "b")
        with pytest.raises(ApiError, match="session 'a' is at work") as refused, book.taken("a"):
            pass
    assert (refused.value.status, dropped, len(book)) == (409, ["b"], 1)


def test_a_new_session_whose_first_request_fails_is_not_kept() -> None:
    book = SessionBook(2, lambda name: None)
    use(book, "old")
    for name in ("old", "new"):
        with contextlib.suppress(Failed), book.taken(name):
            raise Failed
    assert len(book) == 1
