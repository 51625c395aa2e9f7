"""The first lines of a stage: noise, then lines with our nonce, then nothing but protocol."""

from __future__ import annotations

from dataclasses import dataclass, field

from orchestrator import __version__
from orchestrator.transport.shipping import BootLine, read_boot_line
from worker.protocol.codec import (
    PROTOCOL_VERSION,
    EventLine,
    Garbage,
    decode_worker_line,
    major,
)
from worker.protocol.events import Starting, UnknownEvent

MAX_NOISE_BYTES = 64 * 1024
_NOISE_LINES_KEPT = 20
_VERSION_CHARS = 40


class TooMuchNoise(Exception):
    """More than MAX_NOISE_BYTES came before the first protocol line."""


class OtherVersion(Exception):
    """The worker is of another version; the text says of which."""


@dataclass(slots=True)
class Handshake:
    """Tell a worker's first line from what login scripts print.

    Attributes:
        nonce: what the worker was given; another worker's output cannot have it.
        hello: the first protocol line, once it came.
        boot: what the start of shipped code said, once it did; the host has been reached then.
        noise: the last lines before it, as text.
    """

    nonce: str
    hello: Starting | None = None
    boot: BootLine | None = None
    noise: list[str] = field(default_factory=list)
    _noise_bytes: int = 0

    def take(self, line: bytes) -> Starting | None:
        """Read a line that came before hello; return hello, or None if the line is noise.

        Raises:
            TooMuchNoise: the bound is passed.
            OtherVersion: it is the hello of another version.
        """
        boot = read_boot_line(line, self.nonce)
        if boot is not None:
            self.boot = boot
            return None
        # A banner is no JSON and may be long: only what could be an event is parsed.
        read = decode_worker_line(line) if b'"starting"' in line else Garbage(line, "noise")
        if isinstance(read, EventLine) and self._is_ours(read):
            assert isinstance(read.event, Starting)
            self.hello = read.event
            return self.hello
        self._noise_bytes += len(line)
        text = line.decode("utf-8", "replace").strip()
        if text:
            self.noise = [*self.noise, text][-_NOISE_LINES_KEPT:]
        if self._noise_bytes > MAX_NOISE_BYTES:
            raise TooMuchNoise(f"{self._noise_bytes} bytes")
        return None

    def _is_ours(self, line: EventLine) -> bool:
        event = line.event
        if isinstance(event, UnknownEvent):
            # Another version's `starting` may have fields that this one cannot read.
            fields = event.fields
            ours = fields.get("event") == Starting.kind and fields.get("nonce") == self.nonce
            version = str(fields.get("protocol_version", "unknown"))[:_VERSION_CHARS]
            product = str(fields.get("version", "unknown"))[:_VERSION_CHARS]
        elif isinstance(event, Starting):
            ours = event.nonce == self.nonce
            version = event.protocol_version[:_VERSION_CHARS]
            product = event.version[:_VERSION_CHARS]
        else:
            return False
        if ours and (isinstance(event, UnknownEvent) or major(version) != major(PROTOCOL_VERSION)):
            raise OtherVersion(f"protocol {version} (stageline {product})")
        # The versions of one protocol may still differ in what they compute.
        if ours and product != __version__:
            raise OtherVersion(f"protocol {version} (stageline {product})")
        return ours
