"""Bring a lost stage back with the KV caches it had, so that every answer goes on unchanged."""

from orchestrator.recovery.policy import RecoveryPolicy
from orchestrator.recovery.spares import SpareSlot

__all__ = ["RecoveryPolicy", "SpareSlot"]
