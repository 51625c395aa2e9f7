"""One stage as seen from here: its process, its handshake, its ops, its end."""

from orchestrator.stage.client import StageClient
from orchestrator.stage.notes import Phase, StageStatus

__all__ = ["Phase", "StageClient", "StageStatus"]
