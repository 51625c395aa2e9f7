"""A grammar that cannot be used."""

from __future__ import annotations

from orchestrator.request import RequestRefused


class GrammarRefused(RequestRefused):
    """What an answer must be cannot be promised, or not for this model. One sentence."""
