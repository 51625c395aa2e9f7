"""What `--links` may be."""

from __future__ import annotations

STAR, CHAIN, AUTO = "star", "chain", "auto"
