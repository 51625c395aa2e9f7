"""Find a model: a local folder, or a hub id whose files huggingface_hub caches here."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from huggingface_hub import constants, hf_hub_download

from worker.failures import LoadFailed
from worker.protocol.exits import ExitCode
from worker.weights.hub_errors import not_found, refusal
from worker.weights.index import INDEX_FILE, SINGLE_FILE
from worker.weights.progress import counting_bar
from worker.weights.small_files import TOKENIZER_FILE, ask_for, cached, take_small_files

CONFIG_FILE = "config.json"
_PATH_STARTS = ("/", "./", "../", "~")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFolder:
    """A folder with a model's config and small files; `fetch` brings weight files into it.

    Attributes:
        model_id: what was asked for.
        folder: where the files are; for a hub model the snapshot of one commit.
        repo_id: the hub's name of it; None for a local folder.
        commit: which commit, for a hub model; later files are of the same one.
        endpoint, cache_dir: where else than usual, for a hub model.
    """

    model_id: str
    folder: Path
    repo_id: str | None = None
    commit: str | None = None
    endpoint: str | None = None
    cache_dir: Path | None = None

    def missing(self, files: Iterable[str]) -> list[str]:
        """Return which of the files are not in the folder."""
        return [file for file in files if not (self.folder / file).is_file()]

    def size_bytes(self, files: Iterable[str]) -> int:
        """Return how much of the files is yet to be fetched; asks the hub.

        Raises:
            LoadFailed: the hub refuses or cannot be reached; one sentence with advice.
        """
        sizes = (self._get(file, dry_run=True).file_size for file in self.missing(files))
        return sum(size or 0 for size in sizes)

    def fetch(self, files: Iterable[str], count: Callable[[int], None]) -> None:
        """Bring the missing ones of `files` here; `count` is told bytes as they come.

        Raises:
            LoadFailed: as for `size_bytes`, or the file is not there.
        """
        for file in self.missing(files):
            self._get(file, tqdm_class=counting_bar(count))

    def has(self, file: str) -> bool:
        """Tell whether the model has a file, here or on the hub; what nobody can tell, it has not.

        The hub's answer that it has none is cached.

        Raises:
            LoadFailed: the hub refuses; one sentence with advice.
        """
        if (self.folder / file).is_file():
            return True
        if self.repo_id is None or self.commit is None or constants.HF_HUB_OFFLINE:
            return False
        if cached(self.repo_id, file, self.commit, self.cache_dir) is not None:
            return False  # It is known to have none.
        hub: dict[str, Any] = {"endpoint": self.endpoint, "cache_dir": self.cache_dir}
        return bool(ask_for(self.repo_id, file, self.commit, **hub, dry_run=True))

    def _get(self, file: str, **kwargs: Any) -> Any:
        if self.repo_id is None:
            raise LoadFailed(
                f"{self.folder / file} is missing, but this stage's layers are in it; copy that "
                "file there, or fetch the model again"
            )
        try:
            return hf_hub_download(
                self.repo_id,
                file,
                revision=self.commit,
                endpoint=self.endpoint,
                cache_dir=self.cache_dir,
                **kwargs,
            )
        except Exception as error:
            raise refusal(error, self.repo_id, file, self.commit) from error


def find_model(
    model_id: str,
    revision: str | None = None,
    *,
    endpoint: str | None = None,
    cache_dir: Path | None = None,
) -> ModelFolder:
    """Return the model's folder with its config and small files, but not yet its weights.

    `model_id` is a local folder, or a hub id with an optional `@revision`. Of a hub model, what
    the cache holds (or knows to be absent) is taken without asking the hub.

    Raises:
        LoadFailed: there is no such model, or the hub refuses; one sentence with advice.
    """
    local = find_local(model_id, revision)
    if local is not None:
        return local
    repo_id, _, named = model_id.partition("@")
    if named and revision and named != revision:
        raise LoadFailed(
            f"--model-id names revision {named!r} and --revision names {revision!r}; give one",
            ExitCode.USAGE,
        )
    revision = named or revision
    hub: dict[str, Any] = {"cache_dir": cache_dir, "endpoint": endpoint}
    config = cached(repo_id, CONFIG_FILE, revision, cache_dir)
    if not isinstance(config, str):
        try:
            config = hf_hub_download(repo_id, CONFIG_FILE, revision=revision, **hub)
        except Exception as error:
            raise not_found(error, repo_id, CONFIG_FILE, revision) from error
    folder = Path(config).parent
    found = ModelFolder(
        model_id=model_id, folder=folder, repo_id=repo_id, commit=folder.name, **hub
    )
    weights = (folder / INDEX_FILE).is_file() or (folder / SINGLE_FILE).is_file()
    if not (weights and (folder / TOKENIZER_FILE).is_file()):
        take_small_files(repo_id, folder.name, **hub)
    return found


def find_local(model_id: str, revision: str | None = None) -> ModelFolder | None:
    """Return the model's folder where `model_id` is a path; None for a hub id.

    Raises:
        LoadFailed: there is no model folder at that path.
    """
    try:
        local = Path(model_id).expanduser()
    except RuntimeError:  # `~` and the name of nobody
        local = Path(model_id)
    if local.exists() or model_id.startswith(_PATH_STARTS):
        return _local(model_id, local, revision)
    return None


def _local(model_id: str, folder: Path, revision: str | None) -> ModelFolder:
    if not folder.exists():
        raise LoadFailed(f"there is no folder {folder.absolute()}; check --model-id")
    if not folder.is_dir():
        raise LoadFailed(f"{folder} is a file; give the folder that holds config.json")
    if revision is not None:
        raise LoadFailed(
            f"--revision {revision} is for hub models and {folder} is a local folder; leave it out",
            ExitCode.USAGE,
        )
    if not (folder / CONFIG_FILE).is_file():
        raise LoadFailed(
            f"{folder} holds no {CONFIG_FILE}, so it is no model folder; give the folder that "
            "holds config.json and the SafeTensors weights"
        )
    return ModelFolder(model_id=model_id, folder=folder)
