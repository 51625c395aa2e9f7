"""Who a worker is, and which ops it may serve."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from worker.protocol.ops import OPS, Request
from worker.protocol.schema import ErrorCode, ProtocolError
from worker.protocol.stage import Role, StageSlice

_SERVED_BY = {
    Role.FIRST: "on stage 0",
    Role.MIDDLE: "on a middle stage",
    Role.LAST: "on the final stage",
    Role.WHOLE: "on a worker that holds the whole model",
}


@dataclass(frozen=True, slots=True)
class StageIdentity:
    """A worker's slice and, where it was started with STAGE/NUM_STAGES, its index."""

    slice: StageSlice
    stage: int | None = None
    num_stages: int | None = None

    def __str__(self) -> str:
        if self.stage is not None and self.num_stages is not None:
            return f"stage {self.stage} of {self.num_stages}"
        return f"layers {self.slice} of {self.slice.num_layers}"

    def require_role(self, request: type[Request[Any]]) -> None:
        """Refuse an op that another stage serves.

        Raises:
            ProtocolError: `wrong_role`, naming the role that serves the op.
        """
        if self.slice.roles & request.roles:
            return
        served_by = " or ".join(_SERVED_BY[role] for role in Role if role in request.roles)
        raise ProtocolError(
            ErrorCode.WRONG_ROLE,
            f"op '{request.op}' is only valid {served_by} (this worker is {self})",
        )

    def ops(self) -> tuple[str, ...]:
        """Names of the ops this stage serves."""
        return tuple(name for name, op in OPS.items() if self.slice.roles & op.roles)
