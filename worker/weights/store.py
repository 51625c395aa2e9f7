"""The tensors of one model at one commit that were fetched here."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

from worker.weights import published
from worker.weights.header import CheckpointError, TensorEntry
from worker.weights.header_cache import HeaderCache, KeptHeader
from worker.weights.hub_file import HubFile
from worker.weights.layout import Origin
from worker.weights.published import PublishedPart


class Store:
    """Finished parts, by tensor name; `fetch_tensors` adds to them.

    Reading needs no lock: a part appears whole, under its name, or not at all. A part that is cut,
    altered or of another origin counts as absent.

    Attributes:
        folder: of this commit; it need not exist.
        origin: where everything in it came from.
        refused: why a part that is there is not used, by path.
    """

    def __init__(self, folder: Path, origin: Origin) -> None:
        self.folder = folder
        self.origin = origin
        self.refused: dict[Path, str] = {}
        self._parts: dict[Path, tuple[PublishedPart | None, tuple[int, int, int]]] = {}
        self._holders: dict[str, list[PublishedPart]] = {}
        self._headers = HeaderCache(self.headers_folder, origin)
        self._expected: dict[str, HubFile] = {}

    @staticmethod
    def open(root: Path, endpoint: str, repo_id: str, commit: str) -> Store:
        """Open what is kept of a model for use; creates nothing, marks what is there as used."""
        folder = root / endpoint_name(endpoint) / repo_name(repo_id) / commit
        with suppress(OSError):  # Absent, or of somebody else: a cache may be read-only.
            os.utime(folder)
        return Store.at(folder, endpoint, repo_id, commit)

    @staticmethod
    def at(folder: Path, endpoint: str, repo_id: str, commit: str) -> Store:
        """Open the store in `folder`, to look into it."""
        store = Store(folder, Origin(public_endpoint(endpoint), repo_id, commit))
        store.scan()
        return store

    @property
    def parts_folder(self) -> Path:
        """Where finished and unfinished parts are."""
        return self.folder / "parts"

    @property
    def locks_folder(self) -> Path:
        """Where the locks of unfinished parts are."""
        return self.folder / "locks"

    @property
    def headers_folder(self) -> Path:
        """Where the headers of the hub's weight files are."""
        return self.folder / "headers"

    @property
    def parts(self) -> list[PublishedPart]:
        """Return the finished parts that can be used."""
        return [part for part, _ in self._parts.values() if part is not None]

    def scan(self) -> None:
        """Take notice of parts that were published or removed, also by other processes."""
        seen: dict[Path, tuple[PublishedPart | None, tuple[int, int, int]]] = {}
        for path in sorted(self.parts_folder.glob(f"*{published.SUFFIX}")):
            try:
                found = path.stat()
            except OSError:
                continue  # Removed just now.
            stamp = (found.st_ino, found.st_size, found.st_mtime_ns)
            known = self._parts.get(path)
            seen[path] = known if known and known[1] == stamp else (self._read(path), stamp)
        self._parts = seen
        self.refused = {path: why for path, why in self.refused.items() if path in seen}
        holders: dict[str, list[PublishedPart]] = {}
        for part in self.parts:
            for name in part.entries:
                holders.setdefault(name, []).append(part)
        self._holders = holders

    def find(self, name: str) -> Path | None:
        """Return the finished part that holds tensor `name`; None where none does."""
        for part in self._holders.get(name, ()):
            if self._is_current(part, name):
                return part.path
        return None

    def lacking(self, entries: Iterable[TensorEntry]) -> list[TensorEntry]:
        """Return those that no finished part holds."""
        return [entry for entry in entries if self.find(entry.name) is None]

    def expect(self, files: Mapping[str, HubFile]) -> None:
        """Use only tensors that came from these versions of the hub's files."""
        self._expected.update(files)

    def file(self, name: str) -> HubFile | None:
        """Return which version of a weight file tensors must be of, where that is known."""
        if name not in self._expected:
            stored = self.header(name)
            return stored[0] if stored else None
        return self._expected[name]

    def header(self, file: str) -> KeptHeader | None:
        """Return the kept header of one weight file; None where there is none that can be used."""
        return self._headers.get(file)

    def save_header(self, file: HubFile, header: Mapping[str, TensorEntry]) -> None:
        """Keep the header of one weight file of the hub.

        Raises:
            LoadFailed: the disk refuses; one sentence.
        """
        self._headers.keep(file, header)

    def _read(self, path: Path) -> PublishedPart | None:
        try:
            part = PublishedPart.read(path)
        except (CheckpointError, OSError) as error:
            self.refused[path] = str(error)
            return None
        if part.origin != self.origin:
            self.refused[path] = (
                f"{path} came from {part.origin.repo_id}@{part.origin.commit} of "
                f"{part.origin.endpoint}, which is not where it lies; its tensors have to be "
                "fetched again"
            )
            return None
        self.refused.pop(path, None)
        return part

    def _is_current(self, part: PublishedPart, name: str) -> bool:
        """Whether a tensor of a part is the one that the hub's file, as known here, holds."""
        source, entry = part.sources[name], part.entries[name]
        file = self.file(source.file)
        if file is not None and file.etag != source.etag:
            return False
        header = self.header(source.file)
        known = header[1].get(name) if header else None
        return known is None or (known.dtype, known.shape) == (entry.dtype, entry.shape)


def endpoint_name(endpoint: str) -> str:
    """Return the folder name of an endpoint: its host, port and path."""
    url = urlsplit(endpoint if "//" in endpoint else f"//{endpoint}")
    return re.sub(r"[^A-Za-z0-9._]+", "-", f"{url.netloc.rpartition('@')[2]}{url.path}").strip("-")


def public_endpoint(endpoint: str) -> str:
    """Return an endpoint without the name and password that may stand in it."""
    url = urlsplit(endpoint.rstrip("/"))
    return url._replace(netloc=url.netloc.rpartition("@")[2]).geturl()


def repo_name(repo_id: str) -> str:
    """Return the folder name of a model, as huggingface_hub's cache has it."""
    return "--".join(["models", *repo_id.split("/")])
