"""What a stage's lines mean: each goes to the op that waits for it, to the notes, or is wrong."""

from __future__ import annotations

from collections.abc import Callable

from orchestrator import __version__
from orchestrator.failures import (
    NotReady,
    OpRejected,
    ProtocolViolation,
    StageFailure,
    VersionMismatch,
)
from orchestrator.specs import StageSpec
from orchestrator.stage.handshake import MAX_NOISE_BYTES, Handshake, OtherVersion, TooMuchNoise
from orchestrator.stage.libraries import other_library
from orchestrator.stage.notes import StageNotes
from orchestrator.stage.op_events import OpEvents
from orchestrator.stage.pending import PendingOps
from orchestrator.stage.scribe import Scribe
from orchestrator.transport.shipping import BootLine
from worker.protocol.codec import (
    OP_EVENT_HEAD,
    PROTOCOL_VERSION,
    ErrorReply,
    EventLine,
    Garbage,
    ReplyLine,
    decode_worker_line,
    parse_reply,
)
from worker.protocol.events import Starting
from worker.protocol.ready import Ready
from worker.protocol.schema import REQUEST_ID, ProtocolError

_SHOWN_CHARS = 80
_ECHO = (
    "repeats what is sent to it, as a terminal does; leave the option for a terminal out of its "
    "command (-t of docker and kubectl, --pty of srun)"
)


class BrokenRule(Exception):
    """A line that ends the stage.

    Args:
        cause: verb phrase for the failure's sentence.
        kind: class of the failure.
        may_pass: whether another try may go better; None is what the class says.
    """

    def __init__(
        self,
        cause: str,
        kind: type[StageFailure] = ProtocolViolation,
        *,
        may_pass: bool | None = None,
    ) -> None:
        super().__init__(cause)
        self.cause = cause
        self.kind = kind
        self.may_pass = may_pass


class Inbox:
    """Take the lines of one stage in order.

    Args:
        on_first: told of each line that is from the stage and comes before any answer; it may
            send what the stage waits for then.
        on_broken: told of what the protocol does not allow and was noticed late.

    Attributes:
        handshake: tells noise from the first line.
        ready: the ready line, once it came.
        op_events: those that were read and are not written down yet.
    """

    def __init__(
        self,
        spec: StageSpec,
        nonce: str,
        notes: StageNotes,
        pending: PendingOps,
        scribe: Scribe,
        on_first: Callable[[BootLine | Starting], None],
        on_broken: Callable[[BrokenRule], None],
    ) -> None:
        self.handshake = Handshake(nonce)
        self.ready: Ready | None = None
        self._spec = spec
        self._notes = notes
        self._pending = pending
        self._scribe = scribe
        self._on_first = on_first
        self._on_broken = on_broken
        self.op_events = OpEvents(scribe.line, self._garbled)

    def take(self, line: bytes) -> None:
        """Take a line of stdout.

        Raises:
            BrokenRule: the protocol does not allow it.
        """
        if not line.endswith(b"\n"):
            self.op_events.hand_on()
            self._scribe.line(line)  # Cut by the end of the process, which says more than this.
            return
        if self.handshake.hello is None:
            self._scribe.line(line)
            self._first(line)
            return
        if line.startswith(OP_EVENT_HEAD) and not self._notes.wants_op:
            self.op_events.hold(line)
            self._notes.op_event()
            return
        read = decode_worker_line(line)
        if isinstance(read, ReplyLine):
            self._reply(read, len(line))
            return
        if isinstance(read, ErrorReply):
            self._error(read, len(line))
            return
        self.op_events.hand_on()
        self._scribe.line(line)
        if isinstance(read, EventLine):
            self._notes.event(read.event)
        elif isinstance(read, Garbage):
            raise _no_message(read)
        else:
            self._ready(read)

    def _garbled(self, line: bytes) -> None:
        reason = "it begins as an op event and is no JSON"
        self._scribe.line(line.rstrip(b"\n"))  # As no whole line: it must not be kept as JSON.
        self._on_broken(_no_message(Garbage(line, reason)))

    def _first(self, line: bytes) -> None:
        boot = self.handshake.boot
        try:
            hello = self.handshake.take(line)
        except TooMuchNoise:
            if boot is not None:  # Its code has been sent.
                raise BrokenRule(_ECHO, may_pass=False) from None
            raise BrokenRule(
                f"wrote more than {MAX_NOISE_BYTES} bytes before its first message; make the "
                "login scripts there silent for commands that are not interactive",
                may_pass=False,
            ) from None
        except OtherVersion as error:
            raise BrokenRule(
                f"speaks {error}, this orchestrator speaks protocol {PROTOCOL_VERSION} (stageline "
                f"{__version__}); leave code=installed away for that host, or install stageline "
                f"{__version__} there",
                VersionMismatch,
            ) from None
        if hello is not None:
            if (other := other_library(hello)) is not None:
                raise BrokenRule(other, NotReady)
            self._notes.enter("loading")
            self._notes.event(hello)
            self._on_first(hello)
        elif self.handshake.boot is not None and self.handshake.boot is not boot:
            self._on_first(self.handshake.boot)

    def _ready(self, ready: Ready) -> None:
        spec = self._spec
        if spec.options.only is not None:
            raise BrokenRule(f"says that it serves, but was started to {spec.options.only.verb}")
        if self.ready is not None:
            raise BrokenRule("said twice that it is ready")
        if spec.layers is not None and ready.layer_range != spec.layers:
            held = ":".join(map(str, ready.layer_range))
            raise BrokenRule(
                f"holds layers {held}, but was started for {spec.layers[0]}:{spec.layers[1]}"
            )
        if len(ready.layer_range) != 2:
            raise BrokenRule(f"says that its layer_range is {list(ready.layer_range)}")
        place = (spec.stage, spec.num_stages)
        if spec.layers is None and (ready.stage, ready.num_stages) != place:
            raise BrokenRule(
                f"says that it is stage {ready.stage} of {ready.num_stages}, but was started as "
                f"stage {spec.stage} of {spec.num_stages}"
            )
        self.ready = ready
        self._notes.enter("ready")

    def _reply(self, line: ReplyLine, received_bytes: int) -> None:
        if "op" in line.fields:
            raise BrokenRule(_ECHO, may_pass=False)
        op = self._pending.take(line.request_id)
        if op is None:
            raise BrokenRule(f"answered request {line.request_id!r}, which was not asked")
        try:
            reply = parse_reply(op.request.reply, line)
        except ProtocolError as error:
            self._pending.put_back(op)  # so that its caller hears of the failure
            raise BrokenRule(f"answered {op.request.op} wrongly: {error.text}") from None
        self._scribe.op(op, received_bytes)
        if not op.future.done():
            op.future.set_result(reply)

    def _error(self, line: ErrorReply, received_bytes: int) -> None:
        known = REQUEST_ID.accepts(line.request_id)
        op = self._pending.take(line.request_id) if known else None
        if op is None:
            raise BrokenRule(f"refused what was not asked: {line.error[:200]}")
        self._scribe.op(op, received_bytes, line.code, line.error)
        if not op.future.done():
            rejected = OpRejected(
                self._spec.stage, self._spec.host, op.request.op, line.code, line.error
            )
            op.future.set_exception(rejected)


def _no_message(read: Garbage) -> BrokenRule:
    shown = read.line[:_SHOWN_CHARS].decode("utf-8", "replace").strip()
    return BrokenRule(f"wrote a line that is no message ({read.reason}): {shown!r}")
