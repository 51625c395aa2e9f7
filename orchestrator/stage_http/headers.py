"""The headers of `POST /forward`: what they are called, how they are read and written."""

from __future__ import annotations

import base64
import binascii
import re
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from http import HTTPStatus
from math import prod

from starlette.datastructures import Headers

from orchestrator.serve.errors import ApiError
from orchestrator.spelling import closest

SHAPE = "X-Meshnet-Shape"
DTYPE = "X-Meshnet-Dtype"
ATTN_MASK = "X-Meshnet-Attn-Mask"
POSITION_IDS = "X-Meshnet-Position-Ids"
TOKEN_IDS = "X-Meshnet-Token-Ids"
SESSION = "X-Meshnet-Session"
POSITION = "X-Meshnet-Position"
ALL_HEADERS = (SHAPE, DTYPE, ATTN_MASK, POSITION_IDS, TOKEN_IDS, SESSION, POSITION)
BYTES_PER_ELEMENT = {"bfloat16": 2, "float32": 4}
# A mask of 100 000 rows, or ids of 10 000.
MOST_HEAD_BYTES = 256 * 1024

_PREFIX = "x-meshnet-"
_MOST_POSITION = 2**31 - 1
_SESSION_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """The headers of one request, each checked by itself; None where it is absent.

    Attributes:
        shape: [1, rows, hidden], as sent; a few architectures have more axes.
        dtype: of the body's elements, "bfloat16" or "float32".
        mask: uint8 [1, rows] of 0 and 1, one byte for each row of the message.
        position_ids: int64 [1, rows].
        token_ids: int64 [1, rows].
        session: names a KV cache that is kept between requests.
        position: absolute index of the first row.
    """

    shape: tuple[int, ...] | None = None
    dtype: str | None = None
    mask: bytes | None = None
    position_ids: tuple[int, ...] | None = None
    token_ids: tuple[int, ...] | None = None
    session: str | None = None
    position: int | None = None


def read_headers(headers: Headers) -> Given:
    """Read the headers of a request.

    Raises:
        ApiError: 400 with what stands there and what is needed, naming the header.
    """
    _refuse_unknown(headers)
    shape, dtype, mask, positions, tokens, session, position = (
        _only(headers, name) for name in ALL_HEADERS
    )
    if session is not None and not _SESSION_NAME.fullmatch(session):
        raise bad_header(SESSION, f"is {session[:80]!r}, it needs 1 to 64 of A-Z a-z 0-9 . _ -")
    if dtype is not None and dtype not in BYTES_PER_ELEMENT:
        raise bad_header(DTYPE, f"is {dtype[:80]!r}, it needs to be bfloat16 or float32")
    return Given(
        shape=None if shape is None else _shape(shape),
        dtype=dtype,
        mask=None if mask is None else _mask(mask),
        position_ids=None if positions is None else decode_ids(POSITION_IDS, positions),
        token_ids=None if tokens is None else decode_ids(TOKEN_IDS, tokens),
        session=session,
        position=None if position is None else _position(position),
    )


def shape_bytes(shape: Sequence[int], dtype: str) -> int:
    """Return the length of a body of this shape."""
    return prod(shape) * BYTES_PER_ELEMENT[dtype]


def shape_text(shape: Sequence[int]) -> str:
    """Return a shape as its header has it."""
    return ",".join(map(str, shape))


def encode_mask(mask: bytes) -> str:
    """Return a mask as its header has it: base64 of uint8."""
    return base64.b64encode(mask).decode("ascii")


def encode_ids(ids: Sequence[int]) -> str:
    """Return position or token ids as their header has them: base64 of little-endian int64."""
    return base64.b64encode(struct.pack(f"<{len(ids)}q", *ids)).decode("ascii")


def decode_ids(name: str, text: str) -> tuple[int, ...]:
    """Read what `encode_ids` writes.

    Raises:
        ApiError: 400.
    """
    data = _base64(name, text)
    if not data or len(data) % 8:
        raise bad_header(
            name, f"holds {len(data)} bytes, it needs 8 for each row: base64 of little-endian int64"
        )
    ids: tuple[int, ...] = struct.unpack(f"<{len(data) // 8}q", data)
    if min(ids) < 0:
        raise bad_header(name, f"holds {min(ids)}, it needs ids from 0 on")
    return ids


def bad_header(name: str, what: str) -> ApiError:
    """Return the error of a header that cannot be served as it is."""
    return ApiError(HTTPStatus.BAD_REQUEST, f"the header {name} {what}", param=name)


def _refuse_unknown(headers: Headers) -> None:
    known = {name.lower() for name in ALL_HEADERS}
    for name in headers:
        if name.lower().startswith(_PREFIX) and name.lower() not in known:
            # What is like another only by what all have in common is not like it.
            meant = closest(name[len(_PREFIX) :], [one[len(_PREFIX) :] for one in ALL_HEADERS])
            hint = (
                f"known are {', '.join(ALL_HEADERS)}"
                if meant is None
                else f"did you mean X-Meshnet-{meant}?"
            )
            raise bad_header(name[:80], f"is not known here; {hint}")


def _only(headers: Headers, name: str) -> str | None:
    found = headers.getlist(name)
    if len(found) > 1:
        raise bad_header(name, f"is given {len(found)} times, it needs to be given once")
    return found[0].strip() if found else None


def _shape(text: str) -> tuple[int, ...]:
    words = [word.strip() for word in text.split(",")]
    if not 3 <= len(words) <= 8 or not all(re.fullmatch(r"[0-9]{1,9}", word) for word in words):
        raise bad_header(SHAPE, f"is {text[:80]!r}, it needs 1,rows,hidden as 1,7,576")
    shape = tuple(map(int, words))
    if shape[0] != 1:
        raise bad_header(
            SHAPE, f"is {text}, it needs to begin with 1: send each sequence as its own request"
        )
    if 0 in shape:
        raise bad_header(SHAPE, f"is {text}, it needs at least 1 on every axis")
    return shape


def _mask(text: str) -> bytes:
    mask = _base64(ATTN_MASK, text)
    if not mask or mask.strip(b"\0\1"):
        raise bad_header(ATTN_MASK, "needs to be base64 of one byte for each row, 0 or 1")
    return mask


def _position(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,10}", text) or int(text) > _MOST_POSITION:
        raise bad_header(
            POSITION, f"is {text[:80]!r}, it needs a whole number, 0 to {_MOST_POSITION}"
        )
    return int(text)


def _base64(name: str, text: str) -> bytes:
    try:
        return binascii.a2b_base64(text.encode("latin-1"), strict_mode=True)
    except (binascii.Error, ValueError) as error:
        raise bad_header(name, f"is no base64: {error}") from None
