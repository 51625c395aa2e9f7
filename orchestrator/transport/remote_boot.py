"""Run the worker's code as it is shipped; the text of `python -c` on the worker's host.

Only Python's own library is there. `shipping` puts this text behind a check of Python's version
and gives it the nonce, the digest of the code and its size. What it writes before the worker
speaks are lines `stageline-boot NONCE WORD REST`. Code is read from stdin only after it was asked
for, so that a login script cannot eat it.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import runpy
import select
import shutil
import sys
import tempfile
import time
import zipfile
from pathlib import Path
from typing import NoReturn

# By the time of their last start; a worker that runs has long imported what it needs.
KEEP_S = 30 * 86400
LEFTOVER_S = 86400
ARCHIVE = "code.zip"
FAILED = 70


def boot(nonce: str, digest: str, size_bytes: int, arguments: list[str]) -> None:
    """Find the code or ask for it, then be the worker."""
    sys.argv[1:] = []
    version = ".".join(map(str, sys.version_info[:3]))
    root = cache_root()
    folder = None if root is None else root / digest
    if folder is not None and is_ours(folder.parent) and is_whole(folder, digest):
        say(nonce, "have", version)
    else:
        say(nonce, "need", version)
        data = receive(nonce, size_bytes, lease_of(arguments))
        if hashlib.sha256(data).hexdigest() != digest:
            leave(nonce, "failed", "the code arrived damaged")
        folder = kept(root, data, digest) or borrowed(nonce, data)
    with contextlib.suppress(OSError):  # It may be read-only by now.
        os.utime(folder)
        prune(folder.parent, digest)
    sys.path.insert(0, str(folder))
    sys.argv = ["worker", *arguments]
    runpy.run_module("worker", run_name="__main__", alter_sys=True)


def cache_root() -> Path | None:
    """Return the folder of all versions; None where there is no home."""
    given = os.environ.get("XDG_CACHE_HOME", "")  # noqa: TID251 - no module of ours is here
    try:
        base = Path(given) if given.startswith("/") else Path.home() / ".cache"
    except RuntimeError:
        return None
    return base / "stageline" / "code"


def is_ours(root: Path) -> bool:
    """Tell whether nobody else may put into a folder what is run from it."""
    try:
        status = root.stat()
    except OSError:
        return False
    return status.st_uid == os.geteuid() and not status.st_mode & 0o022


def is_whole(folder: Path, digest: str) -> bool:
    """Tell whether a folder holds exactly the code of this digest."""
    try:
        data = (folder / ARCHIVE).read_bytes()
        if hashlib.sha256(data).hexdigest() != digest:
            return False
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            names = archive.namelist()
            # Beside the package another module would win over Python's own of that name.
            known = {ARCHIVE, *(name.split("/")[0] for name in names)}
            if {path.name for path in folder.iterdir()} != known:
                return False
            return all((folder / name).read_bytes() == archive.read(name) for name in names)
    except (OSError, zipfile.BadZipFile):
        return False


def lease_of(arguments: list[str]) -> float | None:
    """Return the lease that the worker is given: it holds for the wait for its code already."""
    given = (word.partition("=") for word in arguments)
    return next((float(value) for name, _, value in given if name == "--lease-s"), None)


def receive(nonce: str, size_bytes: int, lease_s: float | None) -> bytes:
    """Read exactly the code, and nothing of what follows it."""
    data = bytearray()
    while len(data) < size_bytes:
        if not select.select((0,), (), (), lease_s)[0]:
            leave(nonce, "failed", f"nothing of the code came for {lease_s:g} s")
        chunk = os.read(0, size_bytes - len(data))
        if not chunk:
            leave(nonce, "eof", str(len(data)))
        data += chunk
    return bytes(data)


def kept(root: Path | None, data: bytes, digest: str) -> Path | None:
    """Publish the code among the versions; None where that cannot be written."""
    if root is None:
        return None
    try:
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not is_ours(root):
            return None
        draft = Path(tempfile.mkdtemp(prefix=".new-", dir=root))
    except OSError:
        return None
    try:
        unpack(data, draft)
        return published(draft, root / digest, digest)
    except OSError:
        return None
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def published(draft: Path, folder: Path, digest: str) -> Path | None:
    """Rename the draft to its place: another worker sees all of it or nothing."""
    for _ in range(5):
        with contextlib.suppress(OSError):  # Something is there.
            draft.rename(folder)
            return folder
        if is_whole(folder, digest):
            return folder  # Another worker was faster.
        aside = Path(tempfile.mkdtemp(prefix=".old-", dir=folder.parent))
        with contextlib.suppress(OSError):  # Another worker has moved it.
            folder.rename(aside / "broken")
        shutil.rmtree(aside, ignore_errors=True)
    return None


def unpack(data: bytes, folder: Path) -> None:
    """Write the files of an archive, and the archive, which they are checked against."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        archive.extractall(folder)
    (folder / ARCHIVE).write_bytes(data)


def borrowed(nonce: str, data: bytes) -> Path:
    """Unpack into a temporary folder that goes when this process does."""
    reason = "no folder"
    for base in (tempfile.gettempdir, lambda: "/dev/shm"):  # noqa: S108 - in memory
        parent = None
        try:
            parent = Path(tempfile.mkdtemp(prefix="stageline-code-", dir=base()))
            unpack(data, parent / "code")
        except OSError as error:
            reason = error.strerror or type(error).__name__
            if parent is not None:
                shutil.rmtree(parent, ignore_errors=True)
            continue
        remove_at_end(parent)
        return parent / "code"
    say(nonce, "failed", f"neither its home nor a temporary folder takes the code ({reason})")
    sys.exit(FAILED)


def remove_at_end(folder: Path) -> None:
    """Leave a small process that removes the folder when this one has ended, however it ends."""
    ended, held = os.pipe()
    if os.fork():
        os.close(ended)
        return  # `held` closes with this process; no program that it starts inherits it.
    try:
        os.setsid()  # It must outlive a signal to the group.
        os.close(held)
        empty = os.open(os.devnull, os.O_RDWR)
        for fd in (0, 1, 2):
            os.dup2(empty, fd)
        os.read(ended, 1)
        shutil.rmtree(folder, ignore_errors=True)
    finally:
        os._exit(0)


def prune(root: Path, digest: str) -> None:
    """Remove versions that were not started for long, and what killed workers left."""
    now_s = time.time_ns() / 1e9
    for folder in root.iterdir():
        is_draft = folder.name.startswith((".new-", ".old-"))
        is_version = len(folder.name) == len(digest) and folder.name != digest
        if not (is_draft or is_version):
            continue
        if now_s - folder.stat().st_mtime > (LEFTOVER_S if is_draft else KEEP_S):
            shutil.rmtree(folder, ignore_errors=True)


def say(nonce: str, word: str, rest: str) -> None:
    """Write a line; a login banner may have ended without a newline."""
    os.write(1, f"\nstageline-boot {nonce} {word} {rest}\n".encode())


def leave(nonce: str, word: str, rest: str) -> NoReturn:
    """Say why there will be no worker, and end."""
    say(nonce, word, rest)
    sys.exit(FAILED)


if __name__ == "__main__":
    boot(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4:])
