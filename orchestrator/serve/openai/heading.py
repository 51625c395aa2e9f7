"""What stands at the head of every object of one response."""

from __future__ import annotations

import secrets
import time
from dataclasses import dataclass
from typing import Any

from orchestrator.serve.openai.fingerprint import fingerprint_of
from orchestrator.serve.service import Service

_NS = 1_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Heading:
    """Names one response.

    Attributes:
        id: of the response, and of what is asked of the stages for it.
        created_s: Unix time.
    """

    id: str
    created_s: int
    model: str
    fingerprint: str

    @staticmethod
    def new(prefix: str, service: Service) -> Heading:
        """Return one that nothing else has."""
        return Heading(
            id=f"{prefix}-{secrets.token_hex(14)}",
            created_s=time.time_ns() // _NS,
            model=service.model_name,
            fingerprint=fingerprint_of(service.pipeline.facts),
        )

    def of(self, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        """Return an object of the kind with these choices."""
        return {
            "id": self.id,
            "object": kind,
            "created": self.created_s,
            "model": self.model,
            "system_fingerprint": self.fingerprint,
            "choices": choices,
        }
