"""Read a bundle back, whatever became of it: cut lines, garbage, missing files, other versions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from orchestrator.bundle.lines import (
    BadLineError,
    StageLine,
    build,
    object_of,
    parser_of,
    stage_line,
)
from orchestrator.bundle.manifest import EndRecord, Manifest
from orchestrator.bundle.records import (
    ExitRecord,
    FailureRecord,
    OpRecord,
    RecoveryRecord,
    RequestRecord,
)
from orchestrator.bundle.segments import is_plain, segments_of
from orchestrator.bundle.writer import GAVE_UP

T = TypeVar("T")

PROBLEMS_SHOWN = 50
# The writer's files end at half of it; what is larger is none of its, or hostile.
MOST_FILE_BYTES = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Kept(Generic[T]):
    """A record and where it stands: `events.jsonl:12`."""

    value: T
    where: str
    after_gap: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Bundle:
    """Everything that could be read; `problems` says what could not."""

    path: Path
    manifest: Manifest
    end: EndRecord | None
    lines: tuple[Kept[StageLine], ...]
    ops: tuple[Kept[OpRecord], ...]
    exits: tuple[Kept[ExitRecord], ...]
    failures: tuple[Kept[FailureRecord], ...]
    requests: tuple[Kept[RequestRecord], ...]
    recoveries: tuple[Kept[RecoveryRecord], ...]
    stderr: Mapping[int, tuple[Kept[str], ...]]
    unwritable: Kept[str] | None = None
    problems: tuple[str, ...]


def is_bundle(path: Path) -> bool:
    """Tell whether the folder looks like a bundle."""
    return any((path / name).is_file() for name in ("manifest.json", "events.jsonl", "end.json"))


def read_bundle(path: Path) -> Bundle:
    """Read the bundle in `path`; never raises for what is or is not in it."""
    reader = _Reader(path)
    manifest = reader.whole("manifest.json", Manifest)
    return Bundle(
        path=path,
        manifest=manifest or Manifest(),
        end=reader.whole("end.json", EndRecord, required=False),
        lines=tuple(reader.records("events.jsonl", stage_line)),
        ops=tuple(reader.records("ops.jsonl", parser_of(OpRecord))),
        exits=tuple(reader.records("exits.jsonl", parser_of(ExitRecord))),
        failures=tuple(reader.records("failures.jsonl", parser_of(FailureRecord))),
        requests=tuple(reader.records("requests.jsonl", parser_of(RequestRecord))),
        recoveries=tuple(reader.records("recoveries.jsonl", parser_of(RecoveryRecord))),
        stderr=reader.stderr(),
        unwritable=reader.unwritable(),
        problems=tuple(reader.problems),
    )


class _Reader:
    def __init__(self, path: Path) -> None:
        self._path = path
        self.problems: list[str] = []

    def whole(self, name: str, message: type[T], *, required: bool = True) -> T | None:
        """Read a file that is one JSON object."""
        if not required and not (self._path / name).exists():
            return None
        try:
            return build(message, object_of(self._bytes(self._path / name)))
        except BadLineError as error:
            self._problem(f"{name}: {error}")
            return None

    def records(self, name: str, read: Callable[[dict[str, Any]], T]) -> Iterator[Kept[T]]:
        """Read a file of JSON lines, with all its segments."""
        for where, line, after_gap in self._lines(name):
            try:
                yield Kept(read(object_of(line)), where, after_gap)
            except BadLineError as error:
                self._problem(f"{where}: {error}")

    def stderr(self) -> dict[int, tuple[Kept[str], ...]]:
        """Read the logs of every stage."""
        stages = set()
        try:
            for file in (self._path / "stderr").iterdir():
                number = file.name.partition(".")[0].removeprefix("stage-")
                if number.isascii() and number.isdecimal() and len(number) < 7:
                    stages.add(int(number))
        except OSError:
            pass  # No stage wrote anything.
        return {
            stage: tuple(
                Kept(line.decode("utf-8", "replace"), where, after_gap)
                for where, line, after_gap in self._lines(f"stderr/stage-{stage}.log")
            )
            for stage in sorted(stages)
        }

    def unwritable(self) -> Kept[str] | None:
        """Return why the writer gave up, where it could leave a mark."""
        try:
            marks = sorted(file.name for file in self._path.glob(f"{GAVE_UP}*"))
        except OSError:
            return None
        reasons = {name: name.removeprefix(GAVE_UP).replace("_", " ") for name in marks}
        return next((Kept(reason, name) for name, reason in reasons.items()), None)

    def _lines(self, name: str) -> Iterator[tuple[str, bytes, bool]]:
        after_gap = False
        for segment in segments_of(self._path / name):
            if not segment.path.exists():
                continue
            shown = f"{name.rpartition('/')[0]}/{segment.path.name}".lstrip("/")
            if segment.gap_bytes:
                after_gap = True
                self._problem(f"{shown}: {segment.gap_bytes} bytes before it were dropped")
            try:
                lines = self._bytes(segment.path).split(b"\n")
            except BadLineError as error:
                self._problem(f"{shown}: {error}")
                continue
            for number, line in enumerate(lines, start=1):
                if line.strip():
                    yield f"{shown}:{number}", line.rstrip(b"\r"), after_gap

    def _bytes(self, path: Path) -> bytes:
        try:
            if path.exists() and not is_plain(path):
                raise BadLineError("not a plain file")
            with path.open("rb") as file:
                data = file.read(MOST_FILE_BYTES + 1)
        except OSError as error:
            raise BadLineError(error.strerror or str(error)) from None
        if len(data) > MOST_FILE_BYTES:
            self._problem(f"{path.name}: not read beyond {MOST_FILE_BYTES >> 20} MiB")
        return data[:MOST_FILE_BYTES]

    def _problem(self, text: str) -> None:
        if len(self.problems) < PROBLEMS_SHOWN:
            self.problems.append(text)
        elif len(self.problems) == PROBLEMS_SHOWN:
            self.problems.append("more of these are not listed")
