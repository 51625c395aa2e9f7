"""Base64 payloads: hidden states and padding masks, checked against their announced sizes."""

from __future__ import annotations

import binascii
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Protocol

from worker.protocol.encodings import Encoding
from worker.protocol.ops import ForwardAndSample, ForwardRange
from worker.protocol.schema import ErrorCode, ProtocolError

BYTES_PER_ELEMENT = {"bfloat16": 2, "float32": 4}


@dataclass(frozen=True, slots=True)
class Hidden:
    """Hidden states as they cross the wire.

    Attributes:
        data: little-endian, row-major elements of `dtype`.
        shape: usually [batch, seq_len, hidden_dim]; a few architectures carry more axes.
        dtype: "bfloat16" or "float32".
        batch: sequences.
        seq_len: rows per sequence.
    """

    data: bytes
    shape: tuple[int, ...]
    dtype: str
    batch: int
    seq_len: int


class Coding(Protocol):
    """One encoding of bfloat16 elements; see `Encoding`."""

    def encode(self, data: bytes, width: int) -> bytes:
        """Return the encoded form of rows of `width` elements."""

    def decode(self, data: bytes, size_bytes: int, width: int) -> bytes:
        """Return the elements, `size_bytes` in all.

        Raises:
            ValueError: they cannot be read; the text completes "hidden_b64 is no … of N bytes: ".
        """


Codings = Mapping[str, Coding]


def decode_hidden(
    request: ForwardRange | ForwardAndSample,
    hidden_dim: int,
    hidden_dtype: str,
    codings: Codings,
) -> Hidden:
    """Return the hidden states of a request.

    Args:
        request: with the hidden states.
        hidden_dim: width of one row on this stage's wire.
        hidden_dtype: of this stage's wire.
        codings: the encodings that this stage knows beside `bf16`.

    Raises:
        ProtocolError: `bad_field`: not base64, another dtype than the stage's, an encoding that it
            does not know, or a length that does not match; the message has the expected number
            of bytes.
    """
    if request.hidden_dtype != hidden_dtype:
        raise ProtocolError(
            ErrorCode.BAD_FIELD,
            f"hidden_dtype is {request.hidden_dtype!r}, this stage takes {hidden_dtype!r}",
        )
    data = decode_base64("hidden_b64", request.hidden_b64)
    size = BYTES_PER_ELEMENT[hidden_dtype]
    shape = request.hidden_shape or (request.batch, request.seq_len, hidden_dim)
    expected = prod(shape) * size
    if (name := request.hidden_encoding) != Encoding.BF16:
        coding = coding_of("hidden_encoding", name, codings)
        try:
            data = coding.decode(data, expected, hidden_dim)
        except ValueError as error:
            raise ProtocolError(
                ErrorCode.BAD_FIELD, f"hidden_b64 is no {name} of {expected} bytes: {error}"
            ) from None
    elif len(data) != expected:
        if request.hidden_shape is None and request.batch == 1:
            sum_text = f"seq_len*hidden_dim*{size} ({request.seq_len}*{hidden_dim}*{size}"
        else:
            sum_text = f"its shape {list(shape)} ({'*'.join(map(str, shape))}*{size}"
        raise ProtocolError(
            ErrorCode.BAD_FIELD,
            f"hidden length {len(data)} does not match {sum_text} = {expected})",
        )
    return Hidden(data, shape, hidden_dtype, request.batch, request.seq_len)


def encode_hidden(hidden: Hidden, encoding: str, hidden_dim: int, codings: Codings) -> bytes:
    """Return base64 of hidden states in an encoding.

    Raises:
        ProtocolError: `bad_field`: this stage does not know the encoding.
    """
    if encoding == Encoding.BF16:
        return encode_base64(hidden.data)
    coding = coding_of("reply_encoding", encoding, codings)
    return encode_base64(coding.encode(hidden.data, hidden_dim))


def coding_of(field: str, name: str, codings: Codings) -> Coding:
    """Return the coding that a field asks for.

    Raises:
        ProtocolError: `bad_field`: this stage does not know it.
    """
    coding = codings.get(name)
    if coding is None:
        known = ", ".join((Encoding.BF16, *codings))
        raise ProtocolError(
            ErrorCode.BAD_FIELD,
            f"{field} is {name!r}, this stage knows {known}: use one of the `encodings` of its "
            "ready line",
        )
    return coding


def decode_mask(mask_b64: bytes | None, batch: int, seq_len: int) -> bytes | None:
    """Return a padding mask's bytes, uint8 [batch, seq_len] of 0 and 1, or None.

    Raises:
        ProtocolError: `bad_field`: not base64, another length, or another value than 0 and 1.
    """
    if mask_b64 is None:
        return None
    mask = decode_base64("attention_mask_b64", mask_b64)
    if len(mask) != batch * seq_len:
        raise ProtocolError(
            ErrorCode.BAD_FIELD,
            f"attention mask has {len(mask)} bytes, batch*seq_len needs "
            f"{batch}*{seq_len} = {batch * seq_len}",
        )
    if mask.strip(b"\0\1"):
        raise ProtocolError(ErrorCode.BAD_FIELD, "attention mask bytes must be 0 or 1")
    return mask


def decode_base64(name: str, text: bytes) -> bytes:
    """Decode strictly: foreign characters and missing padding are errors, never dropped.

    Raises:
        ProtocolError: `bad_field`.
    """
    try:
        return binascii.a2b_base64(text, strict_mode=True)
    except (binascii.Error, ValueError) as error:
        raise ProtocolError(ErrorCode.BAD_FIELD, f"invalid base64 in {name}: {error}") from None


def encode_base64(data: bytes | memoryview) -> bytes:
    """Return base64 without line breaks."""
    return binascii.b2a_base64(data, newline=False)
