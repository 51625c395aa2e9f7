"""Write a bundle as the run goes: every fact is in a file before the call returns."""

from __future__ import annotations

import contextlib
import json
import re
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from orchestrator.bundle.manifest import EndRecord, Manifest
from orchestrator.bundle.mask import Masker
from orchestrator.bundle.op_line import op_line
from orchestrator.bundle.records import (
    ExitRecord,
    FailureRecord,
    OpRecord,
    RecoveryRecord,
    RequestRecord,
)
from orchestrator.bundle.segments import SegmentedLog
from orchestrator.stderr import say
from worker.protocol.codec import OP_EVENT_HEAD
from worker.protocol.schema import to_fields

# Begins the name of the empty file that a writer leaves when it cannot write any more.
GAVE_UP = "gave_up_"


# Made once: json.dumps makes one for each call that wants other separators than its own.
_ENCODER = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False)


@dataclass(frozen=True, slots=True)
class Bounds:
    """How large the files of a bundle may grow; the beginning and the end are kept."""

    records_bytes: int = 32 * 1024 * 1024
    stderr_bytes: int = 1024 * 1024
    line_bytes: int = 256 * 1024


class BundleWriter:
    """The `Recorder` that writes files; for one thread, that of the event loop.

    A write goes straight to the operating system's cache: some microseconds, and it survives a
    kill of this process. The first error ends the bundle with one warning; the run goes on.

    Args:
        path: the folder to make; its parents are made too. Mode 0700, files 0600.
        manifest: `command`, `config`, `hosts` and `stages` of the run; the rest is filled in
            where it is not stamped yet.
        secrets: values that must not stand in any file, for instance that of HF_TOKEN.
        warn: takes the one warning.
        bounds: sizes at which files stop to grow.
    """

    def __init__(
        self,
        path: Path,
        manifest: Manifest | None = None,
        *,
        secrets: Iterable[str] = (),
        warn: Callable[[str], None] = say,
        bounds: Bounds | None = None,
    ) -> None:
        self.path = path
        self._masker = Masker(secrets)
        self._warn = warn
        self._bounds = bounds or Bounds()
        self._logs: dict[str, SegmentedLog] = {}
        self._unended: dict[int, bytes] = {}  # Of each stage's stderr, the line not ended yet.
        self._open = True
        try:
            path.mkdir(mode=0o700, parents=True)
            (path / "stderr").mkdir(mode=0o700)
        except OSError as error:
            self._give_up(error)
        manifest = manifest or Manifest()
        if not manifest.started:
            manifest = manifest.stamped(time.time_ns())
        self._whole("manifest.json", manifest)

    @property
    def is_open(self) -> bool:
        """Whether facts are still written."""
        return self._open

    def line(self, stage: int, host: str, line: bytes, wall_ms: float) -> None:
        """Keep an event line, the ready line or a line that is none of the protocol."""
        raw = self._masker.raw(line.strip())
        head = b'%b,"wall_ms":%r' % (_place(stage, host), wall_ms)
        if len(raw) <= self._bounds.line_bytes and (_was_read(line) or _is_object(raw)):
            rest = b',"line":' + raw + b"}"
        else:
            cut = raw[: self._bounds.line_bytes].decode("utf-8", "backslashreplace")
            rest = b"," + _json({"garbage": cut, "bytes": len(line)})[1:]
        self._append("events.jsonl", head + rest + b"\n")

    def stderr(self, stage: int, host: str, text: bytes) -> None:
        """Keep what a stage wrote to stderr; whole lines, so that no secret is cut in two."""
        text = self._unended.pop(stage, b"") + text
        end = max(text.rfind(b"\n"), text.rfind(b"\r")) + 1
        if len(text) - end > self._bounds.line_bytes:
            end = len(text)
        if end < len(text):
            self._unended[stage] = text[end:]
        if end:
            self._append(f"stderr/stage-{stage}.log", self._masker.raw(text[:end]))

    def op(self, record: OpRecord) -> None:
        """Keep one op; nothing in it is named like a secret, so this common call stays cheap."""
        line = op_line(record).encode("utf-8", "replace")
        self._append("ops.jsonl", self._masker.raw(line) + b"\n")

    def exit(self, record: ExitRecord) -> None:
        """Keep the end of a process."""
        self._flush_stderr(record.stage)
        self._record("exits.jsonl", record)

    def failure(self, record: FailureRecord) -> None:
        """Keep a failure."""
        self._flush_stderr(record.stage)
        self._record("failures.jsonl", record)

    def request(self, record: RequestRecord) -> None:
        """Keep a finished request."""
        self._record("requests.jsonl", record)

    def recovery(self, record: RecoveryRecord) -> None:
        """Keep an attempt to bring a stage back."""
        self._record("recoveries.jsonl", record)

    def close(self, exit_code: int | None = None, error: str | None = None) -> None:
        """Note how the run ended and close the files; a second call does nothing."""
        for stage in tuple(self._unended):
            self._flush_stderr(stage)
        dropped_bytes = sum(log.dropped_bytes for log in self._logs.values())
        wall_ms = time.time_ns() / 1e6
        end = EndRecord(
            wall_ms=wall_ms, exit_code=exit_code, error=error, dropped_bytes=dropped_bytes
        )
        self._whole("end.json", end)
        self._close_files()

    def _flush_stderr(self, stage: int) -> None:
        if text := self._unended.pop(stage, b""):
            self._append(f"stderr/stage-{stage}.log", self._masker.raw(text))

    def _record(self, name: str, record: Any) -> None:
        if self._open:
            self._append(name, _json(self._masker.value(to_fields(record))) + b"\n")

    def _whole(self, name: str, message: Any) -> None:
        if not self._open:
            return
        fields = to_fields(message)
        values = self._masker.value(fields)
        if "command" in fields:
            values["command"] = self._masker.command(fields["command"])
        text = json.dumps(values, indent=1, ensure_ascii=False).encode("utf-8", "replace")
        self._append(name, text + b"\n")

    def _append(self, name: str, data: bytes) -> None:
        if not self._open:
            return
        try:
            (self._logs.get(name) or self._begin(name)).append(data)
        except OSError as error:
            self._give_up(error)

    def _begin(self, name: str) -> SegmentedLog:
        is_stderr = name.startswith("stderr/")
        size_bytes = self._bounds.stderr_bytes if is_stderr else self._bounds.records_bytes
        log = self._logs[name] = SegmentedLog(self.path / name, size_bytes)
        return log

    def _give_up(self, error: OSError) -> None:
        self._close_files()
        # The name says it, for an empty file can be made on most disks that are full.
        reason = re.sub(r"[^a-zA-Z0-9]+", "_", error.strerror or type(error).__name__)
        with contextlib.suppress(OSError):
            (self.path / f"{GAVE_UP}{reason}").touch()
        self._warn(
            f"warning: the bundle {self.path} cannot be written ({error.strerror or error}); "
            "the run goes on without it; choose another place with --bundle-dir"
        )

    def _close_files(self) -> None:
        self._open = False
        for log in self._logs.values():
            log.close()
        self._logs.clear()


def _json(values: dict[str, Any]) -> bytes:
    return _ENCODER.encode(values).encode("utf-8", "replace")


@lru_cache(maxsize=256)
def _place(stage: int, host: str) -> bytes:
    return _json({"stage": stage, "host": host})[:-1]


def _was_read(line: bytes) -> bool:
    """Tell whether it is a whole `op` event: every op has one, and a stage's inbox has read it."""
    return line.startswith(OP_EVENT_HEAD) and line.endswith(b"}\n")


def _is_object(raw: bytes) -> bool:
    """Tell whether `raw` can stand as it is as a value within a JSON line."""
    if b"\n" in raw or not raw.startswith(b"{"):
        return False
    try:
        json.loads(raw.decode("utf-8"))
    except (ValueError, RecursionError):
        return False
    return True
