"""The worker's own code, sent to where it is to run: what is sent, and what starts it there."""

from __future__ import annotations

import base64
import hashlib
import io
import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

import worker.protocol

OLDEST_PYTHON = (3, 11)
MARK = b"stageline-boot "
_REST_CHARS = 300
_SUFFIXES = (".py", ".json")
# One line that every Python can read, and that no shell takes for more than one word. It begins
# with what a process list is to show: a text, as a comment would take the whole line. An empty
# entry of the path is the current folder, whose `zlib.py` or `worker.py` must not win.
_CHECK = (
    '"{title}";'
    "import sys;sys.path[:]=[p for p in sys.path if p];v=tuple(sys.version_info[:3]);"
    'o=sys.stdout;v<{oldest} and (o.write("\\nstageline-boot %s old %d.%d.%d\\n"'
    "%((sys.argv[1],)+v)),o.flush(),sys.exit(70));"
    'import base64,zlib;exec(zlib.decompress(base64.b64decode("{text}")))'
)


@dataclass(frozen=True, slots=True)
class Archive:
    """A zip of the worker's package and its SHA-256 in hexadecimal."""

    data: bytes
    digest: str


@dataclass(frozen=True, slots=True)
class BootLine:
    """What the start there says before the worker speaks.

    Attributes:
        word: `have` (the code is there), `need` (send it), `old` (Python is), `eof` (stdin ended),
            `failed`.
        rest: Python's version, the bytes received before the end, or the reason.
    """

    word: Literal["have", "need", "old", "eof", "failed"]
    rest: str


@cache  # the package does not change while this program runs
def worker_archive() -> Archive:
    """Return the package that this program imported itself, the same bytes each time."""
    package = Path(worker.protocol.__file__).resolve().parents[1]
    found = io.BytesIO()
    with zipfile.ZipFile(found, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for path in sorted(package.rglob("*")):
            if path.suffix in _SUFFIXES and path.is_file():
                name = path.relative_to(package.parent).as_posix()
                # A fixed date: the digest must depend on nothing but the content.
                archive.writestr(zipfile.ZipInfo(name), path.read_bytes(), zipfile.ZIP_DEFLATED)
    return Archive(found.getvalue(), hashlib.sha256(found.getvalue()).hexdigest())


def boot_arguments(
    nonce: str, arguments: Sequence[str], title: str = "stageline worker"
) -> tuple[str, ...]:
    """Return Python's arguments that run the shipped worker with the arguments given.

    Args:
        title: what a process list shows first; words, without quotes or braces.
    """
    archive = worker_archive()
    text = _CHECK.format(title=title, oldest=OLDEST_PYTHON, text=_packed_boot())
    return ("-c", text, nonce, archive.digest, str(len(archive.data)), *arguments)


def read_boot_line(line: bytes, nonce: str) -> BootLine | None:
    """Return what a line of stdout says about the start; None if it is no such line."""
    at = line.find(MARK + nonce.encode() + b" ")
    if at < 0:
        return None
    word, _, rest = line[at:].decode("utf-8", "replace").split(" ", 2)[2].strip().partition(" ")
    for known in ("have", "need", "old", "eof", "failed"):
        if word == known:
            return BootLine(known, rest[:_REST_CHARS])
    return None


@cache  # as above
def _packed_boot() -> str:
    text = Path(__file__).with_name("remote_boot.py").read_bytes()
    return base64.b64encode(zlib.compress(text, 9)).decode("ascii")
