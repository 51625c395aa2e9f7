"""Turn hidden states and masks into bytes of the wire and back, with one copy each way."""

from __future__ import annotations

import sys

import torch

from worker.protocol.payload import Hidden
from worker.protocol.schema import ErrorCode, ProtocolError

_DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}

assert sys.byteorder == "little", "hidden states are little-endian on the wire, as in memory here"


def to_tensor(hidden: Hidden, width: int) -> torch.Tensor:
    """Return `[batch, seq_len, width]` in the dtype of the wire.

    Raises:
        ProtocolError: `bad_field`: another shape than this stage takes.
    """
    expected = (hidden.batch, hidden.seq_len, width)
    if hidden.shape != expected:
        raise ProtocolError(
            ErrorCode.BAD_FIELD,
            f"hidden_shape is {list(hidden.shape)}, this stage takes [batch, seq_len, width] = "
            f"{list(expected)}; pass on what the stage before replied",
        )
    # A bytearray, because the model may write into what it is given.
    flat = torch.frombuffer(bytearray(hidden.data), dtype=_DTYPES[hidden.dtype])
    return flat.reshape(expected)


def to_hidden(rows: torch.Tensor) -> Hidden:
    """Return the wire's form of rows `[batch, seq_len, width]`."""
    batch, seq_len, _ = rows.shape
    data = rows.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes()
    return Hidden(data, tuple(rows.shape), _NAMES[rows.dtype], batch, seq_len)


def to_mask(mask: bytes, batch: int) -> torch.Tensor | None:
    """Return an int64 mask `[batch, positions]`; None where nothing is padded, as in `generate`."""
    rows = torch.frombuffer(bytearray(mask), dtype=torch.uint8).reshape(batch, -1)
    return None if bool(rows.all()) else rows.long()


def to_position_ids(mask: torch.Tensor, seq_len: int) -> torch.Tensor:
    """Return the position ids `[batch, seq_len]` of the last columns, as `generate` counts them.

    Each sequence counts its own tokens from 0; padded places get 0.
    """
    counted = (mask.cumsum(-1) - 1).masked_fill(mask == 0, 0)
    return counted[:, -seq_len:]
