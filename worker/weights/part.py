"""One part of the cache while it is filled: written piece by piece, published whole."""

from __future__ import annotations

import hashlib
import os
import threading
from pathlib import Path

from worker.weights import journal as journals
from worker.weights import published
from worker.weights.disk import refusals_in_words, reserve, sync_folder, write_all
from worker.weights.journal import Journal
from worker.weights.layout import PartLayout

SUFFIX = ".partial"
# What a kill may lose of a part, beside the pieces being received.
SYNC_BYTES = 64 * 1024 * 1024


class Part:
    """A part whose group's lock this process holds; several threads may write to it.

    Until it is published its bytes are under another name and begin with no valid header, so
    nothing can take them for weights.

    Args:
        folder: where finished and unfinished parts are.
        layout: what it will hold. What an earlier try left of the same layout is taken over.
    """

    def __init__(self, folder: Path, layout: PartLayout) -> None:
        self.layout = layout
        self.path = folder / f"{layout.name}{published.SUFFIX}"
        self._partial = folder / f"{layout.name}{SUFFIX}"
        self._lock = threading.Lock()
        self._fd: int | None = None
        self._pending: list[tuple[int, str]] = []
        self._pending_bytes = 0
        self._num_pieces = layout.num_pieces
        self._journal = self._read_journal()
        self.published = False

    @property
    def here(self) -> frozenset[int]:
        """Numbers of the pieces that are on disk."""
        return frozenset(self._journal.done if self._journal else ())

    @property
    def allocated_bytes(self) -> int:
        """What the unfinished file takes of the disk already."""
        if self._journal is None:
            return 0
        try:
            return min(self._partial.stat().st_blocks * 512, self.layout.size_bytes)
        except FileNotFoundError:
            return 0  # Another process has just published it.

    def check_taken_over(self) -> None:
        """Forget the pieces of an earlier try that are not on disk as the journal tells.

        A cache that was copied while it was being filled can hold a journal that is ahead of its
        bytes; so can a disk that lost some.

        Raises:
            LoadFailed: the disk refuses; one sentence.
        """
        if self._journal is None or not self._journal.done:
            return
        done = self._journal.done
        with refusals_in_words(self._partial), self._partial.open("rb") as file:
            for piece in self.layout.pieces(0):
                if piece.index in done:
                    file.seek(piece.offset_bytes)
                    data = file.read(piece.end - piece.start)
                    if hashlib.sha256(data).hexdigest() != done[piece.index]:
                        del done[piece.index]

    def write(self, offset_bytes: int, data: memoryview) -> None:
        """Write some bytes of a piece where they belong.

        Raises:
            LoadFailed: the disk refuses; one sentence.
        """
        with refusals_in_words(self._partial.parent):
            write_all(self._open(), data, offset_bytes)

    def finish(self, index: int, sha256: str, size_bytes: int) -> bool:
        """Note that a piece was written whole; publish the part if it was the last.

        Returns:
            Whether the part is published now.

        Raises:
            LoadFailed: the disk refuses; one sentence.
        """
        with self._lock, refusals_in_words(self._partial.parent):
            self._pending.append((index, sha256))
            self._pending_bytes += size_bytes
            assert self._journal is not None
            if len(self._journal.done) + len(self._pending) == self._num_pieces:
                self._publish()
            elif self._pending_bytes >= SYNC_BYTES:
                self._sync()
            return self.published

    def publish_if_whole(self) -> bool:
        """Publish a part of which an earlier try left every piece; tell whether it did."""
        if len(self.here) < self._num_pieces:
            return False
        with refusals_in_words(self._partial.parent):
            self._open()
            with self._lock:
                self._publish()
        return True

    def sync(self) -> None:
        """Bring what was written to disk and note it in the journal.

        Raises:
            LoadFailed: the disk refuses; one sentence.
        """
        with self._lock, refusals_in_words(self._partial.parent):
            self._sync()

    def close(self) -> None:
        """Close the files; what is not published stays for the next try."""
        with self._lock:
            self._close()

    def _read_journal(self) -> Journal | None:
        path = self._partial.with_suffix(journals.SUFFIX)
        with refusals_in_words(path.parent):
            found = Journal.read(path, self.layout.description, self._num_pieces)
            if found is None or not self._partial.is_file():
                return None
            return found if self._partial.stat().st_size == self.layout.size_bytes else None

    def _open(self) -> int:
        if self._fd is not None:  # Never closed while somebody has a piece to write.
            return self._fd
        with self._lock:
            if self._fd is None:
                fd = os.open(self._partial, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
                try:
                    if self._journal is not None:
                        self._journal.open()
                    else:
                        self._journal = self._begin(fd)
                except BaseException:
                    os.close(fd)
                    raise
                self._fd = fd  # Not before: others write as soon as it is there.
            return self._fd

    def _begin(self, fd: int) -> Journal:
        """Start the file anew, with all its room."""
        path = self._partial.with_suffix(journals.SUFFIX)
        # An old journal must be gone, also after a loss of power, before the bytes it tells of.
        path.unlink(missing_ok=True)
        sync_folder(path.parent)
        os.ftruncate(fd, 0)
        try:
            reserve(fd, self.layout.size_bytes)
            return Journal.start(path, self.layout.description, self._num_pieces)
        except OSError:
            os.ftruncate(fd, 0)  # What was taken of too little room helps nobody.
            raise

    def _sync(self) -> None:
        if self._pending and self._fd is not None:
            assert self._journal is not None
            # Forgotten first: what a disk failed to write once must not be noted when asking it
            # again succeeds, for by then the kernel has dropped the bytes.
            pending, self._pending, self._pending_bytes = self._pending, [], 0
            os.fdatasync(self._fd)  # Before the journal tells of them.
            self._journal.add(pending)

    def _publish(self) -> None:
        self._sync()
        assert self._journal is not None and self._fd is not None
        hashes = [sha for _, sha in sorted(self._journal.done.items())]
        write_all(self._fd, self.layout.header(hashes), 0)
        os.fsync(self._fd)
        self._partial.rename(self.path)
        sync_folder(self.path.parent)
        self._journal.path.unlink(missing_ok=True)
        self.published = True
        self._close()

    def _close(self) -> None:
        if self._journal is not None:
            self._journal.close()
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None
