"""What the disk under the cache does: room, atomic small files, and its refusals in words."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from worker.failures import LoadFailed

TMP_SUFFIX = ".tmp"
_FULL = (errno.ENOSPC, errno.EDQUOT)
_ROOM = (
    "make room (`orchestrator cache rm` removes models), or choose a larger disk with "
    "--cache-dir or HF_HOME"
)


def free_bytes(folder: Path) -> int:
    """Return what a user may still write below `folder`, which need not exist yet."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    found = os.statvfs(folder)
    return found.f_bavail * found.f_frsize


def require_room(folder: Path, need_bytes: int) -> None:
    """Check that `need_bytes` more can be written below `folder`.

    Raises:
        LoadFailed: with what is needed, what is free, where, and what to do.
    """
    with refusals_in_words(folder):
        free = free_bytes(folder)
    if need_bytes > free:
        raise LoadFailed(
            f"the weights to be fetched need {in_words(need_bytes)} in {folder}, but "
            f"{in_words(free)} are free; {_ROOM}"
        )


def reserve(fd: int, size_bytes: int) -> None:
    """Give a file its size and, where the file system can, the room for it.

    Raises:
        OSError: there is no room; the file may have some of it.
    """
    try:
        if size_bytes and hasattr(os, "posix_fallocate"):
            os.posix_fallocate(fd, 0, size_bytes)
            return
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
            raise
    os.ftruncate(fd, size_bytes)


def write_all(fd: int, data: bytes | memoryview, offset_bytes: int) -> None:
    """Write all of `data` at an offset, as `os.pwrite` need not."""
    rest = memoryview(data)
    while rest:
        written = os.pwrite(fd, rest, offset_bytes)
        rest = rest[written:]
        offset_bytes += written


def publish_text(path: Path, text: str) -> None:
    """Write a small file so that it is there whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.{os.getpid()}.{os.urandom(4).hex()}{TMP_SUFFIX}")
    try:
        with temporary.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make the names in a folder last through a loss of power."""
    fd = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.EBADF, errno.EOPNOTSUPP):
            raise  # Some network file systems cannot; they have no names to lose.
    finally:
        os.close(fd)


@contextmanager
def refusals_in_words(folder: Path) -> Iterator[None]:
    """Turn what the operating system refuses inside the block into one sentence.

    Raises:
        LoadFailed: in place of any OSError.
    """
    try:
        yield
    except OSError as error:
        raise LoadFailed(_sentence(error, folder)) from error


def _sentence(error: OSError, folder: Path) -> str:
    reason = os.strerror(error.errno) if error.errno else str(error)
    if error.errno in _FULL:
        free = 0
        with suppress(OSError):  # The full disk is what is to be told.
            free = free_bytes(folder)
        what = "the quota" if error.errno == errno.EDQUOT else "the disk"
        return (
            f"{what} was full while weights were written to {folder} ({in_words(free)} are free); "
            f"{_ROOM}; what was fetched is kept"
        )
    if error.errno == errno.EFBIG:
        return (
            f"a file in {folder} would be larger than this process or file system allows "
            f"({reason}); raise `ulimit -f`, or choose another disk with --cache-dir or HF_HOME; "
            "what was fetched is kept"
        )
    if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
        return (
            f"weights cannot be written to {error.filename or folder} ({reason}); make that "
            "folder writable, or choose another with --cache-dir or HF_HOME"
        )
    return (
        f"weights cannot be kept in {error.filename or folder} ({reason}); check that disk, or "
        "choose another with --cache-dir or HF_HOME; what was fetched is kept"
    )


def in_words(num_bytes: int) -> str:
    """Say a size with its unit; exact below a megabyte."""
    for unit, size in (("TB", 10**12), ("GB", 10**9), ("MB", 10**6)):
        if num_bytes >= size:
            return f"{num_bytes / size:.2f} {unit}"
    return f"{num_bytes} bytes"
