"""`orchestrator stage-http` as a user starts it, and curl as a user asks it."""

from __future__ import annotations

import base64
import contextlib
import json
import struct
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.serving import Server, started

TEXT = "text/plain"
JSON = "application/json"
BINARY = "application/octet-stream"
STUB_LAYERS = 128
_READY = r"^serving (.+) at (http://\S+) \("


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back; header names are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        """The decoded body."""
        return json.loads(self.body)

    @property
    def message(self) -> str:
        """The sentence of an error."""
        text: str = self.json["error"]["message"]
        return text

    @property
    def onward(self) -> dict[str, str]:
        """The headers that the next stage is to be sent."""
        return {name: text for name, text in self.headers.items() if name.startswith("x-meshnet")}


@contextlib.contextmanager
def served_stage(
    *words: str, model: Sequence[str] = ("--stub",), **kwargs: Any
) -> Iterator[Server]:
    """Serve one stage on a free port until the block ends.

    Args:
        words: of the command line, as `("--shard-start", "0", "--shard-end", "64")`.
        model: which model, as `("--model-id", path)`.
        kwargs: of `started`.
    """
    with starting_stage(*words, model=model, **kwargs) as server:
        wait_until_it_serves(server)
        yield server


def starting_stage(
    *words: str, model: Sequence[str] = ("--stub",), **kwargs: Any
) -> contextlib.AbstractContextManager[Server]:
    """Begin to serve one stage; see `served_stage`."""
    return started(*model, "--port", "0", *words, command="stage-http", **kwargs)


def wait_until_it_serves(server: Server) -> None:
    """Wait for the line that names its address."""
    found = server.wait_for(_READY, timeout_s=120)
    server.model, server.url = found[1], found[2]


def layers(start: int, end: int) -> tuple[str, ...]:
    """Return the flags of a range of layers."""
    return ("--shard-start", str(start), "--shard-end", str(end))


def curl(
    url: str,
    body: bytes | Any = None,
    headers: Mapping[str, str] | None = None,
    *,
    kind: str = JSON,
    words: Sequence[str] = (),
) -> Answer:
    """Ask with curl; a body that is no bytes is sent as JSON."""
    with tempfile.TemporaryDirectory() as folder:
        sent, came, heads = (Path(folder) / name for name in ("sent", "came", "heads"))
        command = ["curl", "-sS", "-m", "60", "-D", str(heads), "-o", str(came), *words]
        for name, text in (headers or {}).items():
            command += ["-H", f"{name}: {text}"]
        if body is not None:
            sent.write_bytes(body if isinstance(body, bytes) else json.dumps(body).encode())
            command += ["-H", f"Content-Type: {kind}", "--data-binary", f"@{sent}"]
        done = subprocess.run([*command, url], capture_output=True, text=True, timeout=90)
        assert done.returncode == 0, done.stderr
        first, *lines = heads.read_text().strip().rpartition("\n\n")[2].splitlines()
        pairs = (line.split(": ", 1) for line in lines)
        named = {name.lower(): text for name, text in pairs}
        return Answer(int(first.split()[1]), named, came.read_bytes() if came.exists() else b"")


def ids(text: str) -> list[int]:
    """Read ids as docs/stage-http.md says: base64 of little-endian int64."""
    data = base64.b64decode(text)
    return list(struct.unpack(f"<{len(data) // 8}q", data))


def ids_text(values: Sequence[int]) -> str:
    """Write ids as docs/stage-http.md says."""
    return base64.b64encode(struct.pack(f"<{len(values)}q", *values)).decode()


def mask_text(*values: int) -> str:
    """Write a mask as docs/stage-http.md says: base64 of uint8."""
    return base64.b64encode(bytes(values)).decode()
