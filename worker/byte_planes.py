"""Hidden states in fewer bytes, exactly: the high bytes apart from the low ones, and packed.

A bfloat16's high byte is its sign and most of its exponent, of which few are in use (2.7 to 3
bits' worth); its low byte is mantissa, which no packing makes smaller.
"""

from __future__ import annotations

from importlib.util import find_spec

from worker.protocol.encodings import Encoding
from worker.protocol.payload import Coding

_LEVEL = 1  # higher ones take longer and gain nothing on so few different bytes


class BytePlanes:
    """The coding `bf16-planes-zstd`."""

    def encode(self, data: bytes, width: int) -> bytes:
        """Return the low bytes, then a zstd frame of the high ones."""
        import zstandard

        frame: bytes = zstandard.ZstdCompressor(level=_LEVEL).compress(data[1::2])
        return data[::2] + frame

    def decode(self, data: bytes, size_bytes: int, width: int) -> bytes:
        """Return the elements.

        Raises:
            ValueError: the bytes are cut, damaged or of other elements.
        """
        import zstandard

        count = size_bytes // 2
        frame = memoryview(data)[count:]
        try:
            # Looked at first: what a frame says of its size is what decompressing it allocates.
            held = zstandard.frame_content_size(frame)
            if held != count:
                told = "no size" if held < 0 else f"{held} bytes"
                raise ValueError(f"its zstd frame announces {told}, needs {count} high bytes")
            high = zstandard.ZstdDecompressor().decompress(frame, allow_extra_data=False)
        except zstandard.ZstdError as error:
            raise ValueError(f"its zstd frame cannot be read: {error}") from None
        elements = bytearray(size_bytes)
        elements[::2] = data[:count]
        elements[1::2] = high
        return bytes(elements)


def exact_codings() -> dict[str, Coding]:
    """Return the exact encodings beside `bf16` that this installation can do."""
    # Looked for, not imported: few runs use it.
    return {Encoding.BF16_PLANES_ZSTD.value: BytePlanes()} if find_spec("zstandard") else {}
