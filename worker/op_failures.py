"""What a request is told when it fails."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import Any

from worker.backends.base import OutOfDeviceMemory
from worker.protocol.events import OpTraceback
from worker.protocol.ops import Request, RequestId
from worker.protocol.schema import ErrorCode, ProtocolError


class OpFailures:
    """Turns whatever an op raises into the error that is replied.

    Args:
        drop: frees the session of a request that ran out of memory.
    """

    def __init__(self, drop: Callable[[RequestId], object]) -> None:
        self._drop = drop

    def told(
        self, request: Request[Any], error: Exception
    ) -> tuple[ProtocolError, OpTraceback | None]:
        """Return the error to reply, and the event of one that nobody foresaw."""
        if isinstance(error, ProtocolError):
            return error, None
        if isinstance(error, (OutOfDeviceMemory, MemoryError)):
            self._drop(request.request_id)
            return _out_of_memory(request, error), None
        text = "".join(traceback.format_exception(error))
        event = OpTraceback(op=request.op, rid=request.request_id, traceback=text)
        told = f"op '{request.op}' failed: {type(error).__name__}: {error}"
        return ProtocolError(ErrorCode.INTERNAL, told), event


def _out_of_memory(request: Request[Any], error: Exception) -> ProtocolError:
    return ProtocolError(
        ErrorCode.OUT_OF_MEMORY,
        f"no memory for op '{request.op}', its KV cache was freed ({error}): start again at "
        "position 0 with less at once, or with --max-context lower",
    )
