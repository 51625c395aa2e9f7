"""Ways to write hidden states as bytes of the wire: one that every worker knows, and others."""

from __future__ import annotations

from enum import StrEnum


class Encoding(StrEnum):
    """A name in `encodings` of the ready line, `hidden_encoding` and `reply_encoding`.

    All but the first are for stages whose `hidden_dtype` is bfloat16.
    """

    BF16 = "bf16"
    BF16_PLANES_ZSTD = "bf16-planes-zstd"
    INT8_ROW_TOP8 = "int8-row-top8"

    @property
    def meaning(self) -> str:
        """One line for the protocol document."""
        return _MEANINGS[self]

    @property
    def is_exact(self) -> bool:
        """Whether the receiver gets the very bits that the sender had."""
        return self is not Encoding.INT8_ROW_TOP8

    @property
    def is_by_row(self) -> bool:
        """Whether the rows of several messages, put one after another, are those of one."""
        return self is not Encoding.BF16_PLANES_ZSTD


_MEANINGS = {
    Encoding.BF16: "the elements as they are, whatever `hidden_dtype`; every worker knows it",
    Encoding.BF16_PLANES_ZSTD: (
        "exact: the low byte of each element, then the high bytes of all as one zstd frame that "
        "tells its content's size"
    ),
    Encoding.INT8_ROW_TOP8: (
        "lossy: for each row a float32 scale, the uint16 indices of its 8 largest elements (of "
        "all, where it has fewer) in rising order, these elements, and an int8 for every element; "
        "an element whose index is not named is scale × int8"
    ),
}
