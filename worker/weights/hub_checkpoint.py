"""The tensors of a hub model: in the hub's own cache, in ours, or still on the hub."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from pathlib import Path, PurePosixPath

from huggingface_hub import constants
from huggingface_hub.errors import EntryNotFoundError

from worker.failures import LoadFailed
from worker.protocol.events import Event
from worker.weights.fetch import fetch_tensors
from worker.weights.header import (
    LENGTH_BYTES,
    START_BYTES,
    CheckpointError,
    TensorEntry,
    header_length,
    parse_header,
    read_header,
)
from worker.weights.hub_file import HubFile, HubSource
from worker.weights.index import INDEX_FILE, SINGLE_FILE, CheckpointIndex, read_weight_map
from worker.weights.progress import DownloadMeter
from worker.weights.repo import ModelFolder
from worker.weights.retry import FetchLimits
from worker.weights.store import Store


class HubCheckpoint:
    """A model of the hub at one commit.

    A weight file that huggingface_hub has downloaded whole is used as it is. Of the others the
    header and the needed ranges are fetched into our own cache.
    """

    def __init__(
        self,
        model: ModelFolder,
        root: Path,
        limits: FetchLimits,
        emit: Callable[[Event], None],
        *,
        whole_files: Callable[[int], DownloadMeter] | None,
    ) -> None:
        assert model.repo_id is not None and model.commit is not None
        self.folder = model.folder
        self.commit = model.commit
        self._header_bytes: list[int] = []
        self._model = model
        self._repo_id = model.repo_id
        self._limits = limits
        self._emit = emit
        self._whole_files = whole_files
        self.took_whole_files = False
        endpoint = model.endpoint or constants.ENDPOINT
        self._store = Store.open(root, endpoint, model.repo_id, model.commit)
        self._source = HubSource(model.repo_id, model.commit, model.endpoint, limits=limits)
        self._files: dict[str, HubFile] = {}

    @property
    def header_bytes(self) -> int:
        """Bytes of headers that came over the network."""
        return sum(self._header_bytes)

    @cached_property
    def index(self) -> CheckpointIndex:
        """From the index file, or the header of the only weight file.

        Raises:
            CheckpointError: it is broken.
            LoadFailed: the hub does not give it.
        """
        if (self.folder / INDEX_FILE).is_file() and not self._has_single_file():
            files = read_weight_map(self.folder / INDEX_FILE)
            return CheckpointIndex(files, self._header, self._place)
        return CheckpointIndex.of_single_file(self._header, self._place)

    def read_headers(self, names: Iterable[str]) -> None:
        """Have the headers of the files that hold these tensors, several at once.

        Raises:
            CheckpointError, LoadFailed: see `index`.
        """
        first = {self.index.file_of(name): name for name in names}
        self._take_whole(first)
        with ThreadPoolExecutor(max(1, self._limits.connections)) as pool:
            for _ in pool.map(self.index.entry, first.values()):
                pass

    def missing(self, entries: Iterable[TensorEntry]) -> list[TensorEntry]:
        """Return those that are in no file here."""
        return [entry for entry in entries if self._find(entry) is None]

    def fetch(self, missing: Sequence[TensorEntry], meter: DownloadMeter) -> None:
        """Bring their ranges here. Whole files have come with their headers.

        Raises:
            LoadFailed: the hub refuses, the disk is full; one sentence with advice.
        """
        names = sorted({entry.file for entry in missing})
        if constants.HF_HUB_OFFLINE:
            raise LoadFailed(_offline(self._model.model_id, missing))
        files = {name: self._describe(name) for name in names}
        fetch_tensors(
            self._source,
            self._store,
            missing,
            files,
            meter=meter,
            emit=self._emit,
            limits=self._limits,
        )

    def _has_single_file(self) -> bool:
        """Whether there is a single file beside the index: transformers takes that one then."""
        return self._store.header(SINGLE_FILE) is not None or self._model.has(SINGLE_FILE)

    def _header(self, file: str) -> Mapping[str, TensorEntry]:
        if (self.folder / file).is_file():
            return read_header(self.folder / file)
        if self._whole_files is not None:
            self._take_whole([file])
            return read_header(self.folder / file)
        stored = self._store.header(file)
        if stored is not None:
            self._files[file], header = stored
            return header
        return self._fetch_header(file)

    def _take_whole(self, names: Iterable[str]) -> None:
        """Fetch whole files, where that was asked for, and tell how far that is."""
        missing = sorted(self._model.missing(names))
        if self._whole_files is None or not missing:
            return
        with self._whole_files(self._model.size_bytes(missing)) as meter:
            self.took_whole_files = True
            self._model.fetch(missing, meter.add)

    def _fetch_header(self, file: str) -> Mapping[str, TensorEntry]:
        name = PurePosixPath(f"{self._repo_id}@{self.commit[:8]}") / file
        if constants.HF_HUB_OFFLINE:
            raise LoadFailed(
                f"the header of {name} is not in the cache and HF_HUB_OFFLINE is set; fetch the "
                "model once without it, or give a local folder"
            )
        found = self._describe(file)
        start = self._source.read(found, 0, min(START_BYTES, found.size_bytes))
        end = LENGTH_BYTES + header_length(start, name, found.size_bytes)
        raw = start + self._source.read(found, len(start), end) if end > len(start) else start
        header = parse_header(raw[LENGTH_BYTES:end], name, found.size_bytes)
        self._header_bytes.append(len(raw))  # from several threads
        self._store.save_header(found, header)
        return header

    def _describe(self, file: str) -> HubFile:
        if file not in self._files:
            try:
                self._files[file] = self._source.describe(file)
            except LoadFailed as error:
                if file == SINGLE_FILE and isinstance(error.__cause__, EntryNotFoundError):
                    raise LoadFailed(
                        f"{self._repo_id}@{self.commit[:8]} holds no SafeTensors weights (neither "
                        f"{INDEX_FILE} nor {SINGLE_FILE}); choose another model or convert it"
                    ) from error
                raise
        return self._files[file]

    def _find(self, entry: TensorEntry) -> Path | None:
        whole = self.folder / entry.file
        return whole if whole.is_file() else self._store.find(entry.name)

    def _place(self, entry: TensorEntry) -> Path:
        found = self._find(entry)
        if found is None:
            raise CheckpointError(
                f"tensor {entry.name} of {self._repo_id}@{self.commit[:8]} has not been fetched; "
                "start the worker again"
            )
        return found


def _offline(model_id: str, missing: Sequence[TensorEntry]) -> str:
    more = f" and {len(missing) - 1} more tensors" if len(missing) > 1 else ""
    size_mb = sum(entry.size_bytes for entry in missing) / 1e6
    return (
        f"{missing[0].name}{more} of {model_id} ({size_mb:.1f} MB) are not in the cache and "
        "HF_HUB_OFFLINE is set; fetch the model once without it, or give a local folder"
    )
