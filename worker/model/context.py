"""How many positions one request may use."""

from __future__ import annotations

from worker.failures import LoadFailed
from worker.model.architecture import Architecture
from worker.protocol.exits import ExitCode

# Memory for the KV cache is counted before loading; a model made for a million positions must
# not be refused on a small machine whose user never asked for that many.
DEFAULT_MAX_CONTEXT = 8192


def context_limit(architecture: Architecture, wanted: int | None) -> int:
    """Return `wanted`, or the smaller of the model's own limit and 8192.

    Raises:
        LoadFailed: more is wanted than the model was made for; exit code 2.
    """
    own = architecture.max_context
    if wanted is None:
        return DEFAULT_MAX_CONTEXT if own is None else min(own, DEFAULT_MAX_CONTEXT)
    if own is not None and wanted > own:
        raise LoadFailed(
            f"--max-context {wanted} is more than the {own} positions this model was made for; "
            f"give at most {own}",
            ExitCode.USAGE,
        )
    return wanted
