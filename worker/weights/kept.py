"""Find what models the cache holds, at which commits."""

from __future__ import annotations

import glob
import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from worker.failures import LoadFailed
from worker.weights import published
from worker.weights.header import CheckpointError
from worker.weights.published import PublishedPart
from worker.weights.store import Store, endpoint_name, repo_name


@dataclass(frozen=True, slots=True)
class KeptModel:
    """The folder of one model at one commit."""

    folder: Path

    @property
    def repo_id(self) -> str:
        """The hub's name of the model."""
        return self.folder.parent.name.removeprefix("models--").replace("--", "/")

    @property
    def commit(self) -> str:
        """The hub's commit."""
        return self.folder.name

    def store(self) -> Store:
        """Open it without marking it as used; its endpoint is the one that its parts name."""
        named = self.folder.parent.parent.name
        for path in self.parts():
            with suppress(CheckpointError, OSError):  # A broken part; the next may tell.
                endpoint = PublishedPart.read(path).origin.endpoint
                if endpoint_name(endpoint) == named:
                    return Store.at(self.folder, endpoint, self.repo_id, self.commit)
        return Store.at(self.folder, named, self.repo_id, self.commit)

    def parts(self) -> list[Path]:
        """Return the files of finished parts.

        Raises:
            LoadFailed: the folder cannot be read.
        """
        _require_readable(self.folder / "parts")
        return sorted((self.folder / "parts").glob(f"*{published.SUFFIX}"))


def kept_models(root: Path, model_id: str | None, commit: str | None = None) -> list[KeptModel]:
    """Return what is kept below `root` of a model (of all: None), at a commit or its beginning.

    Raises:
        LoadFailed: `root` cannot be read, which must not look like an empty cache.
    """
    _require_readable(root)
    repo_id, _, named = (model_id or "").partition("@")
    model = glob.escape(repo_name(repo_id)) if repo_id else "models--*"
    return [
        KeptModel(folder)
        for folder in sorted(root.glob(f"*/{model}/*/"))
        if folder.name.startswith(commit or named) and any(folder.rglob("*"))
    ]


def _require_readable(folder: Path) -> None:
    try:
        os.scandir(folder).close()
    except FileNotFoundError:
        pass  # Nothing is kept there.
    except OSError as error:
        raise LoadFailed(
            f"the cache {folder} cannot be read ({error.strerror}); check what it is and who may "
            "read it, or name another folder with --cache-dir or HF_HOME"
        ) from error


def on_disk_bytes(path: Path) -> int:
    """Return what a file takes of the disk; 0 for one that is gone."""
    try:
        return path.stat().st_blocks * 512
    except FileNotFoundError:
        return 0  # Removed or published meanwhile.
