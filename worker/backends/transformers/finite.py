"""Find broken numbers where they arise, not as odd text after the last stage."""

from __future__ import annotations

import torch

from worker.backends.base import Placement
from worker.protocol.schema import ErrorCode, ProtocolError
from worker.protocol.stage import StageSlice


def require_finite(
    values: torch.Tensor, mask: torch.Tensor | None, placement: Placement, stage: StageSlice
) -> None:
    """Look at what layers `stage` gave, `[batch, seq, ...]`.

    Raises:
        ProtocolError: `internal`: some of it is nan or inf, and not padding by `mask`.
    """
    if bool(torch.isfinite(values).all()):
        return
    if mask is not None:
        # rows of padding attend to nothing, and may hold anything
        values = values[mask[:, -values.shape[1] :].bool().to(values.device)]
    bad = int(values.numel() - torch.isfinite(values).sum())
    if bad:
        raise ProtocolError(
            ErrorCode.INTERNAL,
            f"layers {stage} gave {bad} values of {values.numel()} that are nan "
            f"or inf at positions {placement.position}:"
            f"{placement.position + placement.seq_len}; check the stages before this one and "
            "the model's files, or run it at --quantization bfloat16",
        )
