"""Variables that come over stdin, before anything that reads them is imported."""

from __future__ import annotations

import sys
import time

from worker.channel import End
from worker.config import adopt_environment
from worker.lifecycle import Lifecycle
from worker.protocol.codec import decode_request, encode_error, encode_reply
from worker.protocol.exits import ExitCode
from worker.protocol.ops import Environment, EnvironmentReply
from worker.protocol.schema import ErrorCode, ProtocolError

# From `starting` on; whoever starts workers sends the line as soon as it has read that.
ENVIRONMENT_S = 60.0


def take_environment(life: Lifecycle, limit_s: float = ENVIRONMENT_S) -> None:
    """Wait for the op `environment` and set its variables; end the process if it does not come.

    Every other line is answered with an error. No text of this file holds a value.
    """
    deadline_s = time.monotonic() + limit_s
    while True:
        try:
            taken = life.channel.take(max(0.0, deadline_s - time.monotonic()))
        except TimeoutError:
            text = f"the op 'environment' did not come within {limit_s:g} s"
            print(f"worker: {text}", file=sys.stderr, flush=True)
            life.leave(End("no_environment", ExitCode.PEER_GONE))
        if isinstance(taken, End):
            life.leave(taken)
        try:
            request = _read(taken)
        except ProtocolError as error:
            life.channel.send(encode_error(error))
            continue
        adopt_environment(request.variables)
        reply = EnvironmentReply(variables=len(request.variables))
        life.channel.send(encode_reply(request.request_id, reply))
        return


def _read(taken: bytes | ProtocolError) -> Environment:
    if isinstance(taken, ProtocolError):
        raise taken
    request = decode_request(taken, None)
    if not isinstance(request, Environment):
        raise ProtocolError(
            ErrorCode.UNKNOWN_OP,
            f"op '{request.op}' came before 'environment', which --await-environment waits for",
            request.request_id,
        )
    return request
