"""What an error reply says: a code for programs, a sentence for people."""

from __future__ import annotations

from enum import StrEnum


class ErrorCode(StrEnum):
    """Stable codes of error replies."""

    BAD_JSON = "bad_json"
    BAD_FIELD = "bad_field"
    MISSING_FIELD = "missing_field"
    UNKNOWN_OP = "unknown_op"
    WRONG_ROLE = "wrong_role"
    NO_SESSION = "no_session"
    BAD_POSITION = "bad_position"
    CONTEXT_FULL = "context_full"
    OUT_OF_MEMORY = "out_of_memory"
    LINK_LOST = "link_lost"
    INTERNAL = "internal"

    @property
    def meaning(self) -> str:
        """One line for the protocol document."""
        return _MEANINGS[self]


_MEANINGS = {
    ErrorCode.BAD_JSON: "the line is no JSON object, or too long; the reply has no `request_id`",
    ErrorCode.BAD_FIELD: "a field has the wrong type, value or length",
    ErrorCode.MISSING_FIELD: "a required field is absent",
    ErrorCode.UNKNOWN_OP: "no such op, or this worker has not what it needs, as a tokenizer",
    ErrorCode.WRONG_ROLE: "another stage serves this op; the text names its role",
    ErrorCode.NO_SESSION: "`position` is above 0 and there is no KV cache for the request here",
    ErrorCode.BAD_POSITION: "`position` is past the cached length, or the cache cannot go back",
    ErrorCode.CONTEXT_FULL: "`position` + `seq_len` is past `max_context`",
    ErrorCode.OUT_OF_MEMORY: "no memory for the op; the request's KV cache was freed",
    ErrorCode.LINK_LOST: (
        "the link to the next stage or from the one before cannot be made, is lost, or the stage "
        "before had nothing to hand on; send the op again with its hidden states"
    ),
    ErrorCode.INTERNAL: "an unforeseen error; an `op_traceback` event has the details",
}


class ProtocolError(Exception):
    """A request that cannot be served; the worker answers with the code and serves on.

    `request_id` and `op` are set where they could be read.
    """

    def __init__(self, code: ErrorCode, text: str, request_id: int | str | None = None) -> None:
        super().__init__(text)
        self.code = code
        self.text = text
        self.request_id = request_id
        self.op: str | None = None
