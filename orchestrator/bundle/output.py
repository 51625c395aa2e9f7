"""Files that are made from a bundle: how they are called, and how they are written."""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path

_ARCHIVE = re.compile(r"(?:\.tar(?:\.\w+)?|\.tgz|\.zip)$")


class OutputError(Exception):
    """Why a file was not made; one sentence."""


def output_path(asked: Path | None, bundle: Path, suffix: str) -> Path:
    """Return the file to make: the one that was asked for, else one named after the bundle."""
    if asked is not None:
        return asked
    return Path(_ARCHIVE.sub("", bundle.absolute().name) + suffix)


def write_text(path: Path, text: str) -> None:
    """Write a file that only its owner may read; it is whole or not there.

    Raises:
        OutputError: it cannot be written.
    """
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        fd = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with os.fdopen(fd, "wb") as file:
            file.write(text.encode("utf-8", "replace"))
        part.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)
        raise OutputError(f"{path} cannot be written: {error.strerror or error}") from None
