"""The keys that clients show: read from a file or the environment, compared in constant time."""

from __future__ import annotations

import hmac
import stat
from collections.abc import Callable, Sequence
from pathlib import Path

from orchestrator.config import API_KEY

_LEAST_CHARS = 8


class KeysError(ValueError):
    """Keys that cannot be used, or that there must be; one sentence."""


class Keys:
    """The keys that are accepted; none: everybody is.

    Args:
        keys: in the order in which they were given.
    """

    def __init__(self, keys: Sequence[str] = ()) -> None:
        self._keys = tuple(key.encode() for key in keys)

    def __bool__(self) -> bool:
        return bool(self._keys)

    def __len__(self) -> int:
        return len(self._keys)

    def index(self, shown: str | None) -> int | None:
        """Return which key was shown, None for no right one; the time tells nothing of the keys."""
        found = None
        given = b"" if shown is None else shown.encode("utf-8", "surrogateescape")
        for index, key in enumerate(self._keys):
            if hmac.compare_digest(key, given):
                found = index
        return found


def read_keys(
    file: Path | None, from_environment: str, warn: Callable[[str], None]
) -> tuple[str, ...]:
    """Return the keys of a file, one a line, and `#` begins a comment; else the environment's.

    Raises:
        KeysError: the file cannot be read, or it holds no key or a bad one.
    """
    if file is None:
        return _checked([from_environment.strip()], API_KEY) if from_environment else ()
    try:
        mode = file.stat().st_mode
        text = file.read_text(encoding="utf-8")
    except OSError as error:
        raise KeysError(
            f"--api-key-file {file} cannot be read: {error.strerror}; name a file with one key a "
            "line"
        ) from None
    except UnicodeDecodeError:
        raise KeysError(
            f"--api-key-file {file} is no UTF-8 text; name a file with one key a line"
        ) from None
    if stat.S_ISREG(mode) and mode & (stat.S_IRGRP | stat.S_IROTH):
        warn(f"warning: others on this machine can read {file}; chmod 600 it")
    lines = (line.strip() for line in text.splitlines())
    keys = [line for line in lines if line and not line.startswith("#")]
    if not keys:
        raise KeysError(f"--api-key-file {file} holds no key; write one key a line into it")
    return _checked(keys, f"--api-key-file {file}")


def _checked(keys: Sequence[str], place: str) -> tuple[str, ...]:
    for number, key in enumerate(keys, 1):
        if len(key) < _LEAST_CHARS or not key.isascii() or not key.isprintable() or " " in key:
            raise KeysError(
                f"{place}: key {number} must be at least {_LEAST_CHARS} printable ASCII characters "
                "without spaces; make one with: openssl rand -hex 32"
            )
    return tuple(dict.fromkeys(keys))
