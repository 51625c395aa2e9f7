"""Remember on this host what was found out by trying, so that the next start need not try again.

An answer is kept under a checksum of all that it depends on, so another version, processor or model
has another place. Nothing here is needed: what is lost, cut, altered or of another form counts as
not there, and is found out again.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

_SUFFIX = ".json"
# of each kind; the oldest go
_MOST_ANSWERS = 256
_MOST_BYTES = 32 << 20


class Remembered:
    """Answers by kind and by what they depend on; both are values of JSON.

    Any process may use the same folder at the same time. Without one nothing is remembered.

    Args:
        folder: where answers are kept; it need not exist.
        always: what every answer depends on.
    """

    def __init__(self, folder: Path | None, always: object = None) -> None:
        self._folder = folder
        self._always = checksum(always)

    def within(self, always: object) -> Remembered:
        """Return the same for answers that all depend on `always`."""
        return Remembered(self._folder, always)

    def get(self, kind: str, depends: object) -> Any:
        """Return the answer; None where there is none that can be used."""
        if self._folder is None:
            return None
        key = checksum([self._always, depends])
        try:
            check, text = self._path(kind, key).read_text(encoding="utf-8").split("\n", 1)
            return json.loads(text) if check == _check(kind, key, text) else None
        except (OSError, ValueError):
            return None  # As good as absent.

    def put(self, kind: str, depends: object, answer: object) -> None:
        """Keep an answer; a disk that refuses is no reason to fail."""
        if self._folder is None:
            return
        key = checksum([self._always, depends])
        text = json.dumps(answer, separators=(",", ":"))
        path = self._path(kind, key)
        draft = path.with_name(f"{path.name}.{os.getpid()}.{os.urandom(4).hex()}")
        # Not synced: after a loss of power the checksum tells what is not whole.
        with suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            try:
                draft.write_text(f"{_check(kind, key, text)}\n{text}", encoding="utf-8")
                draft.replace(path)
            finally:
                draft.unlink(missing_ok=True)
            _forget_oldest(path.parent.glob(f"{kind}-*"))

    def _path(self, kind: str, key: str) -> Path:
        assert self._folder is not None
        return self._folder / f"{kind}-{key}{_SUFFIX}"


def checksum(value: object) -> str:
    """Return the SHA-256 in hex of a value of JSON."""
    text = json.dumps(value, separators=(",", ":"), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def _check(kind: str, key: str, text: str) -> str:
    return hashlib.sha256(f"{kind}\n{key}\n{text}".encode()).hexdigest()


def _forget_oldest(paths: Iterable[Path]) -> None:
    """Remove all but the newest; drafts of killed processes are among them."""
    by_age = []
    for path in paths:
        with suppress(FileNotFoundError):  # Removed by another process.
            found = path.stat()
            by_age.append((found.st_mtime_ns, found.st_size, path))
    total_bytes = 0
    for place, (_, size_bytes, path) in enumerate(sorted(by_age, reverse=True)):
        total_bytes += size_bytes
        if place >= _MOST_ANSWERS or total_bytes > _MOST_BYTES:
            path.unlink(missing_ok=True)


NOTHING = Remembered(None)
