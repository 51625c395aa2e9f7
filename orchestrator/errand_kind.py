"""What a worker can be started for besides serving: one thing, and then it ends by itself."""

from __future__ import annotations

from enum import StrEnum


class ErrandKind(StrEnum):
    """An errand; the value is what the worker's flag `--only` takes."""

    SURVEY = "survey"
    SURVEY_HOST = "survey-host"
    FETCH = "fetch"
    LIST_CACHE = "list-cache"
    VERIFY_CACHE = "verify-cache"
    REMOVE_CACHE = "remove-cache"

    @property
    def verb(self) -> str:
        """What it is to do, for "cannot …"."""
        return _WORDS[self][0]

    @property
    def doing(self) -> str:
        """What it does, for "while …" and the display."""
        return _WORDS[self][1]

    @property
    def is_survey(self) -> bool:
        """Whether it only looks."""
        return self in (ErrandKind.SURVEY, ErrandKind.SURVEY_HOST)

    @property
    def needs_layers(self) -> bool:
        """Whether it is done for one stage and not for a whole host."""
        return self is ErrandKind.FETCH


_WORDS = {
    ErrandKind.SURVEY: ("survey the model", "surveying"),
    ErrandKind.SURVEY_HOST: ("survey its host", "surveying"),
    ErrandKind.FETCH: ("fetch its weights", "fetching"),
    ErrandKind.LIST_CACHE: ("list its cache", "listing the cache"),
    ErrandKind.VERIFY_CACHE: ("check its cache", "checking the cache"),
    ErrandKind.REMOVE_CACHE: ("free its cache", "freeing the cache"),
}
