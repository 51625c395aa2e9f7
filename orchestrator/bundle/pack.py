"""Make one archive of a bundle, with what its reader has no need of taken out.

The same bundle gives the same bytes: names in order, no times, no owners.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import re
import tarfile
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from orchestrator import __version__
from orchestrator.bundle.lookup import events, marks, stages_of
from orchestrator.bundle.output import OutputError
from orchestrator.bundle.reader import Bundle
from orchestrator.bundle.redact import Redactor, user_names
from orchestrator.bundle.segments import is_plain, segments_of
from orchestrator.bundle.words import size
from worker.protocol.events import HostSurveyed, Starting

FORMAT_VERSION = 1
ABOUT = "pack.json"
_ZIP_EPOCH = (1980, 1, 1, 0, 0, 0)
_NAME = re.compile(r"(?:[a-z]{1,32}(?:\.\d+)?\.jsonl?|stderr/stage-\d+(?:\.\d+)?\.log)")

_OFFSET = re.compile(r"\.\d+(?=\.\w+$)")
_LOGIN = re.compile(r"([\w.-]+)@[\w\[]")
_PORT = re.compile(r"(?<=[\w\]]):\d+$|^\[|\](?=:\d+$|$)")


@dataclass(frozen=True, slots=True)
class Packed:
    """What was made.

    Attributes:
        path: the archive.
        size_bytes: its size.
        counts: how often each kind of thing was taken out.
        left_out: files of the folder that are no part of a bundle.
    """

    path: Path
    size_bytes: int
    counts: dict[str, int]
    left_out: tuple[str, ...]


def pack(folder: Path, bundle: Bundle, target: Path, *, hide_hosts: bool = False) -> Packed:
    """Write the archive; `.zip` makes a zip file, every other name a tar.gz.

    Args:
        folder: where the bundle's files are.
        bundle: the same, read.
        target: the archive to make.
        hide_hosts: whether names and addresses of hosts become `host1`, `host2`, ….

    Raises:
        OutputError: the target exists, or a file cannot be read or written.
    """
    redactor = Redactor(_users(folder, bundle), _hosts(bundle), hide_hosts=hide_hosts)
    every = sorted(p for p in folder.rglob("*") if not p.is_dir())
    found = [p.relative_to(folder).as_posix() for p in every if is_plain(p)]
    names = [name for name in found if _NAME.fullmatch(name) and name != ABOUT]
    part = target.with_name(f".{target.name}.{os.getpid()}.part")
    if target.exists():
        raise OutputError(f"{target} exists; remove it or give another name with -o")
    try:
        members = _members(folder, names, redactor, hide_hosts)
        root = re.sub(r"\.(?:zip|tar|tar\.gz|tgz)$", "", target.name)
        with _private(part) as file:
            write = _write_zip if target.suffix == ".zip" else _write_tar
            write(file, ((f"{root}/{name}", data) for name, data in members))
        os.link(part, target)  # Fails where the target has come up meanwhile.
        size_bytes = target.stat().st_size
    except OSError as error:
        raise OutputError(f"{target} cannot be written: {error.strerror or error}") from None
    finally:
        part.unlink(missing_ok=True)
    counts = {what: count for what, count in sorted(redactor.counts.items()) if count}
    every_name = (p.relative_to(folder).as_posix() for p in every)
    left_out = tuple(name for name in every_name if name not in names and name != ABOUT)
    return Packed(target, size_bytes, counts, left_out)


def _members(
    folder: Path, names: Iterable[str], redactor: Redactor, hide_hosts: bool
) -> Iterator[tuple[str, bytes]]:
    """Yield name and content of each file. A file that goes on in another keeps what is missing."""
    streams = sorted({_OFFSET.sub("", name) for name in names})
    for stream in streams:
        offset_bytes = 0
        for segment in segments_of(folder / stream):
            if not is_plain(segment.path):
                continue
            offset_bytes += segment.gap_bytes
            stem, _, suffix = stream.rpartition(".")
            is_first = segment.path == folder / stream
            data = redacted(stream, segment.path.read_bytes(), redactor)
            yield stream if is_first else f"{stem}.{offset_bytes}.{suffix}", data
            offset_bytes += len(data)
    about = {
        "format": FORMAT_VERSION,
        "version": __version__,
        "hosts_hidden": hide_hosts,
        "redacted": dict(sorted(redactor.counts.items())),
    }
    yield ABOUT, json.dumps(about, indent=1).encode("ascii") + b"\n"


def packed_sentence(packed: Packed) -> str:
    """Say what was made and what was taken out of it."""
    taken = ", ".join(f"{count} x {what}" for what, count in packed.counts.items()) or "nothing"
    left_out = f"; left out: {', '.join(packed.left_out[:5])}" if packed.left_out else ""
    made = size(packed.size_bytes)
    return f"{made}; replaced: {taken}{left_out}; look into it before you pass it on"


def redacted(name: str, data: bytes, redactor: Redactor) -> bytes:
    """Return a file of a bundle redacted; lines stay lines, so places in it stay right."""
    text = data.decode("utf-8", "replace")
    if name.endswith(".json"):
        try:
            values = json.loads(text)
        except (ValueError, RecursionError):
            return redactor.text(text).encode("utf-8", "replace")
        text = json.dumps(redactor.value(values), indent=1, ensure_ascii=False) + "\n"
        return text.encode("utf-8", "replace")
    each = redactor.line if name.endswith(".jsonl") else redactor.text
    lines = (each(line) if line.strip() else line for line in text.split("\n"))
    return "\n".join(lines).encode("utf-8", "replace")


def _users(folder: Path, bundle: Bundle) -> set[str]:
    """Return the users whose home folders are named, and those who log in somewhere."""
    users: set[str] = set()
    for path in folder.rglob("*"):
        if is_plain(path):
            users |= user_names(path.read_bytes().decode("utf-8", "replace"))
    labels = [*stages_of(bundle).values(), *bundle.manifest.hosts]
    return users | {match[1] for label in labels for match in _LOGIN.finditer(label)}


def _hosts(bundle: Bundle) -> set[str]:
    """Return the names of hosts, as the user gave them and as they call themselves."""
    labels = {host for _, host, _ in marks(bundle)} | set(stages_of(bundle).values())
    labels |= {recovery.value.new_host for recovery in bundle.recoveries}
    labels |= {
        place for line in bundle.manifest.hosts if "=" not in (place := _place_of(line.split()))
    }
    names = {_PORT.sub("", label.rpartition("@")[2]) for label in labels}
    names |= {seen.event.host for seen in events(bundle, Starting)}
    names |= {seen.event.host for seen in events(bundle, HostSurveyed)}
    return names | {bundle.manifest.host}


def _place_of(words: Sequence[str]) -> str:
    """Return the place that a line of a hosts file names, or what begins its command."""
    named = [word for number, word in enumerate(words) if number or word != "spare"]
    return named[0] if named else ""


@contextmanager
def _private(path: Path) -> Iterator[IO[bytes]]:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "wb") as file:
        yield file


def _write_tar(file: IO[bytes], members: Iterable[tuple[str, bytes]]) -> None:
    with gzip.GzipFile(filename="", mode="wb", fileobj=file, mtime=0) as zipped:
        with tarfile.open(fileobj=zipped, mode="w", format=tarfile.PAX_FORMAT) as tar:
            for name, data in members:
                member = tarfile.TarInfo(name)
                member.size, member.mode = len(data), 0o600
                tar.addfile(member, io.BytesIO(data))


def _write_zip(file: IO[bytes], members: Iterable[tuple[str, bytes]]) -> None:
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as zipped:
        for name, data in members:
            member = zipfile.ZipInfo(name, _ZIP_EPOCH)
            member.external_attr = 0o600 << 16
            member.create_system = 3  # Unix: what the mode above means.
            zipped.writestr(member, data, zipfile.ZIP_DEFLATED)
