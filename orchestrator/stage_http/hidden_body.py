"""Hidden states as a body: of a request to a later stage, and of the response of an earlier one."""

from __future__ import annotations

import base64

from starlette.responses import Response

from orchestrator.serve.errors import refusal
from orchestrator.stage_http.headers import (
    ATTN_MASK,
    DTYPE,
    POSITION,
    POSITION_IDS,
    SESSION,
    SHAPE,
    TOKEN_IDS,
    Given,
    bad_header,
    encode_ids,
    encode_mask,
    shape_bytes,
    shape_text,
)
from orchestrator.stage_http.prompt_body import BINARY, wrong_type
from orchestrator.stage_http.rows import Rows
from worker.protocol.ops import HiddenReply
from worker.protocol.ready import Ready

# Ids of more rows make a header line that clients refuse; 64 KiB is what Python's reads.
MOST_ROWS_WITH_IDS = 4096


def hidden_response(given: Given, rows: Rows, hidden: HiddenReply, ready: Ready) -> Response:
    """Return hidden states with every header that the next stage is to be sent.

    Position ids and token ids are left out where there are too many for a header; the next stage
    counts positions itself, and needs token ids only where `needs_tokens` says so.
    """
    shape = hidden.hidden_shape or (1, hidden.seq_len, ready.hidden_dim)
    headers = {
        SHAPE: shape_text(shape),
        DTYPE: hidden.hidden_dtype,
        ATTN_MASK: encode_mask(rows.mask or b"\1" * rows.count),
    }
    if rows.count <= MOST_ROWS_WITH_IDS:
        headers[POSITION_IDS] = encode_ids(rows.position_ids)
        if rows.token_ids is not None:
            headers[TOKEN_IDS] = encode_ids(rows.token_ids)
    if given.session is not None:
        headers[SESSION] = given.session
        headers[POSITION] = str(rows.position)
    return Response(base64.b64decode(hidden.hidden_b64), headers=headers, media_type=BINARY)


def read_hidden(given: Given, kind: str, body: bytes, ready: Ready) -> HiddenReply:
    """Take hidden states in, as the reply of the stage before would have them.

    Raises:
        ApiError: 400: shape, dtype and body do not fit together or to this stage; 415: it is
            another kind of body.
    """
    if kind != BINARY:
        start, end = ready.layer_range
        raise wrong_type(
            kind,
            f"{BINARY}: it holds layers {start}:{end}, a prompt goes to the stage that begins with "
            "layer 0",
        )
    if given.shape is None:
        raise bad_header(SHAPE, f"is missing, it needs to be 1,rows,{ready.hidden_dim}")
    dtype = given.dtype or "bfloat16"
    if dtype != ready.hidden_dtype:
        raise bad_header(DTYPE, f"is {dtype}, this stage takes {ready.hidden_dtype}")
    if len(given.shape) == 3 and given.shape[2] != ready.hidden_dim:
        raise bad_header(
            SHAPE, f"is {shape_text(given.shape)}, this stage takes 1,rows,{ready.hidden_dim}"
        )
    needed_bytes = shape_bytes(given.shape, dtype)
    if len(body) != needed_bytes:
        raise refusal(
            None,
            f"the body has {len(body)} bytes, {SHAPE} {shape_text(given.shape)} of {dtype} needs "
            f"{needed_bytes}",
        )
    return HiddenReply(
        seq_len=given.shape[1],
        hidden_shape=None if len(given.shape) == 3 else given.shape,
        hidden_dtype=dtype,
        hidden_b64=base64.b64encode(body),
    )
