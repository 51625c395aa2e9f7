"""The tensors of a model and how they come here: the one interface to every kind of model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Protocol

from worker.protocol.events import Event
from worker.weights.header import TensorEntry
from worker.weights.hub_checkpoint import HubCheckpoint
from worker.weights.index import CheckpointIndex
from worker.weights.progress import DownloadMeter
from worker.weights.repo import ModelFolder
from worker.weights.retry import FetchLimits


class Checkpoint(Protocol):
    """A model's config folder, the index of its tensors, and how they come here."""

    @property
    def folder(self) -> Path:
        """Where config and tokenizer are."""

    @property
    def commit(self) -> str | None:
        """Which commit of the hub it is; None for a local folder."""

    @property
    def header_bytes(self) -> int:
        """Bytes of headers that came over the network so far."""

    @property
    def took_whole_files(self) -> bool:
        """Whether weights came over the network with a header, as they do in whole files."""

    @property
    def index(self) -> CheckpointIndex:
        """Which tensors there are; its `place` finds those that are here."""

    def read_headers(self, names: Iterable[str]) -> None:
        """Have the headers of the files that hold these tensors, all at once."""

    def missing(self, entries: Iterable[TensorEntry]) -> list[TensorEntry]:
        """Return those that are not here yet."""

    def fetch(self, missing: Sequence[TensorEntry], meter: DownloadMeter) -> None:
        """Bring them here.

        Raises:
            LoadFailed: the hub refuses, the disk is full; one sentence with advice.
        """


class LocalCheckpoint:
    """A folder of the user's; nothing is ever fetched into it."""

    commit = None
    header_bytes = 0
    took_whole_files = False

    def __init__(self, model: ModelFolder) -> None:
        self.folder = model.folder

    @cached_property
    def index(self) -> CheckpointIndex:
        """Read from the folder.

        Raises:
            CheckpointError: there are no usable weights.
        """
        return CheckpointIndex.read(self.folder)

    def read_headers(self, names: Iterable[str]) -> None:
        """Do nothing: each is read when it is needed."""

    def missing(self, entries: Iterable[TensorEntry]) -> list[TensorEntry]:
        """Return nothing: what is not in the folder has no entry."""
        return []

    def fetch(self, missing: Sequence[TensorEntry], meter: DownloadMeter) -> None:
        """Do nothing."""


def open_checkpoint(
    model: ModelFolder,
    root: Path,
    limits: FetchLimits,
    emit: Callable[[Event], None],
    *,
    whole_files: Callable[[int], DownloadMeter] | None = None,
) -> Checkpoint:
    """Return the checkpoint of a found model; nothing is read or fetched yet.

    With `whole_files` those are fetched, not ranges; it makes the meter of so many bytes.
    """
    if model.repo_id is None:
        return LocalCheckpoint(model)
    return HubCheckpoint(model, root, limits, emit, whole_files=whole_files)
