"""Keep the KV caches of answered requests, so that a chat's next turn computes its news alone."""

from orchestrator.prefixes.lease import Lease
from orchestrator.prefixes.prefixes import Prefixes
from orchestrator.prefixes.reuse import Reuse

__all__ = ["Lease", "Prefixes", "Reuse"]
