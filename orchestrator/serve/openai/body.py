"""The body of a request: one JSON object, no larger than is allowed."""

from __future__ import annotations

import json
import math
from http import HTTPStatus
from typing import Any, NoReturn

from starlette.requests import Request

from orchestrator.serve.errors import ApiError, refusal
from orchestrator.serve.limits import BODY_FLAG

_JSON_TYPE = "application/json"
# Whoever writes a part of the body out again has no room for any depth.
_MAX_DEPTH = 100


class _OddNumber(ValueError):
    """A number that JSON does not have, or that no float holds."""


async def read_object(request: Request, max_bytes: int) -> dict[str, Any]:
    """Return a request's body.

    Raises:
        ApiError: it is too large, not said to be JSON, or no JSON object.
        ClientDisconnect: the client went away.
    """
    _check_headers(request)
    return parse_object(await read_bytes(request, max_bytes))


def parse_object(data: bytes) -> dict[str, Any]:
    """Return the JSON object that the bytes are; every string in it is valid Unicode.

    Raises:
        ApiError: they are none; the message says where.
    """
    try:
        text = data.decode("utf-8")
        value = json.loads(text, parse_constant=_no_number, parse_float=_finite)
        if data.count(b"[") + data.count(b"{") > _MAX_DEPTH and _depth(value) > _MAX_DEPTH:
            raise RecursionError
        if b"\\u" in data:
            # Half a surrogate pair can only come from an escape; nothing could encode it later.
            json.dumps(value, ensure_ascii=False).encode("utf-8")
    except json.JSONDecodeError as error:
        raise refusal(
            None,
            f"the body is no JSON: {error.msg} at line {error.lineno}, column {error.colno}; "
            "send one JSON object",
        ) from None
    except UnicodeDecodeError as error:
        raise refusal(
            None, f"the body is no UTF-8: byte {error.start} does not fit; send JSON in UTF-8"
        ) from None
    except UnicodeEncodeError:
        raise refusal(
            None, "a string in the body has half of a surrogate pair; send valid Unicode"
        ) from None
    except RecursionError:
        raise refusal(
            None, f"the body is nested more than {_MAX_DEPTH} levels deep; send a flatter object"
        ) from None
    except _OddNumber as error:
        raise refusal(None, f"the body has {error}; send finite numbers of usual size") from None
    except ValueError:  # What Python says of it is about Python.
        raise refusal(
            None, "the body has a number of thousands of digits; send a shorter"
        ) from None
    if not isinstance(value, dict):
        raise refusal(None, f"the body is {_kind(value)}, it must be a JSON object")
    return value


def _check_headers(request: Request) -> None:
    sent = request.headers.get("content-type", "")
    if sent.partition(";")[0].strip().lower() != _JSON_TYPE:
        raise ApiError(
            HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
            f"the Content-Type is '{sent:.80}', it must be '{_JSON_TYPE}'; send the body as JSON "
            "and say so",
        )
    encoding = request.headers.get("content-encoding", "identity")
    if encoding.strip().lower() != "identity":
        raise ApiError(
            HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
            f"the Content-Encoding is '{encoding:.80}', only 'identity' is read; send the body "
            "uncompressed",
        )


async def read_bytes(request: Request, max_bytes: int) -> bytes:
    """Return a request's body as it came.

    Raises:
        ApiError: 413: it is too large.
        ClientDisconnect: the client went away.
    """
    length = request.headers.get("content-length", "")
    if length.isdecimal() and int(length[:20]) > max_bytes:
        raise _too_large(f"{length[:20]} bytes", max_bytes)
    data = bytearray()
    async for piece in request.stream():
        data += piece
        if len(data) > max_bytes:
            raise _too_large(f"more than {max_bytes} bytes", max_bytes)
    return bytes(data)


def _too_large(seen: str, max_bytes: int) -> ApiError:
    return ApiError(
        HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
        f"the body has {seen}, at most {max_bytes} are read here ({BODY_FLAG} of the server); send "
        "less",
        code="request_too_large",
    )


def _no_number(text: str) -> NoReturn:
    raise _OddNumber(f"the number {text}, which JSON does not have")


def _finite(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise _OddNumber(f"a number that is too large, {text[:40]}")
    return value


def _depth(value: object) -> int:
    depth, level = 0, [value]
    while level := [one for one in level if isinstance(one, dict | list)]:
        depth += 1
        level = [
            inner for one in level for inner in (one.values() if isinstance(one, dict) else one)
        ]
    return depth


def _kind(value: object) -> str:
    kinds = {list: "a list", str: "a string", bool: "a boolean", type(None): "null"}
    return kinds.get(type(value), "a number")
