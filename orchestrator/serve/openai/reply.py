"""What every response to one request has in common, and how its pieces are laid out."""

from __future__ import annotations

from typing import Any, Protocol

from orchestrator.serve.openai.delta import Delta


class Reply(Protocol):
    """Lays out the pieces of the answers to one request, one by one or all together."""

    def chunks(self, delta: Delta) -> list[dict[str, Any]]:
        """Return what a stream sends for a piece."""

    def usage_chunk(self, usage: dict[str, Any]) -> dict[str, Any]:
        """Return what a stream sends last where the counts are asked for."""

    def take(self, delta: Delta) -> None:
        """Add a piece to the whole."""

    def body(self, usage: dict[str, Any]) -> dict[str, Any]:
        """Return the whole."""
