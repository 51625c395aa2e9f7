"""Hidden states in half the bytes, nearly: int8 for each row, its largest elements kept apart.

A few channels of a row are hundreds of times larger than the others; a scale that holds them
leaves the others no bits. Kept as they are, they cost 2 % and the rest has an error of the size of
bfloat16's own.
"""

from __future__ import annotations

import torch

_KEPT = 8
_SCALE_BYTES = 4
_MOST = 127
WIDEST = 2**16


class RowInt8:
    """The coding `int8-row-top8`. A row's bytes depend on that row alone."""

    def encode(self, data: bytes, width: int) -> bytes:
        """Return for each row its scale, the kept indices and elements, and an int8 for each."""
        rows = torch.frombuffer(bytearray(data), dtype=torch.bfloat16).reshape(-1, width)
        kept = rows.abs().topk(min(_KEPT, width)).indices.sort().values
        # A padded row may hold what is no number; it is never looked at, and keeps no other out.
        rest = rows.float().nan_to_num().scatter(1, kept, 0)
        scale = rest.abs().amax(1, keepdim=True) / _MOST
        # A row of zeros has scale 0; one that is far below float32's usual range rounds up to 127.
        codes = (rest / scale.where(scale > 0, 1)).round().clamp(-_MOST, _MOST).to(torch.int8)
        parts = (scale, kept.to(torch.uint16), rows.gather(1, kept), codes)
        return _bytes(torch.cat([part.view(torch.uint8) for part in parts], 1))

    def decode(self, data: bytes, size_bytes: int, width: int) -> bytes:
        """Return the elements, rounded to bfloat16.

        Raises:
            ValueError: another length, an index outside the row, or a scale that is no number.
        """
        num_rows, count = size_bytes // (2 * width), min(_KEPT, width)
        row_bytes = _SCALE_BYTES + 4 * count + width
        if len(data) != num_rows * row_bytes:
            raise ValueError(f"{len(data)} bytes, needs {num_rows}*{row_bytes}")
        packed = torch.frombuffer(bytearray(data), dtype=torch.uint8).reshape(num_rows, row_bytes)
        pieces = packed.split((_SCALE_BYTES, 2 * count, 2 * count, width), 1)
        scale = pieces[0].contiguous().view(torch.float32)
        kept = pieces[1].contiguous().view(torch.uint16).long()
        top = pieces[2].contiguous().view(torch.bfloat16)
        if not bool(scale.isfinite().all()):
            raise ValueError("a scale is no finite number")
        if int(kept.max()) >= width:
            raise ValueError(f"names element {int(kept.max())} of rows of {width}")
        values = (pieces[3].view(torch.int8).float() * scale).to(torch.bfloat16)
        return _bytes(values.scatter(1, kept, top).view(torch.uint8))


def _bytes(octets: torch.Tensor) -> bytes:
    data: bytes = octets.numpy().tobytes()
    return data
