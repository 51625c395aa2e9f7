"""Find a model: a local folder, or a hub id whose files huggingface_hub caches here."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from huggingface_hub import hf_hub_download, try_to_load_from_cache
from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError

from worker.failures import LoadFailed
from worker.protocol.exits import ExitCode
from worker.weights.hub_errors import refusal
from worker.weights.progress import counting_bar

CONFIG_FILE = "config.json"
INDEX_FILE = "model.safetensors.index.json"
SINGLE_FILE = "model.safetensors"
# What a stage may need beside weights; most models have some of them. The tokenizer comes last:
# where it is, all before it have been asked for.
TOKENIZER_FILE = "tokenizer.json"
SMALL_FILES = (
    "generation_config.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "tokenizer.model",
    "spiece.model",
    "tekken.json",
    INDEX_FILE,
    TOKENIZER_FILE,
)
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
    config = _cached(repo_id, CONFIG_FILE, revision, cache_dir)
    if not isinstance(config, str):
        try:
            config = hf_hub_download(repo_id, CONFIG_FILE, revision=revision, **hub)
        except Exception as error:
            raise refusal(error, repo_id, CONFIG_FILE, revision) from error
    folder = Path(config).parent
    found = ModelFolder(
        model_id=model_id, folder=folder, repo_id=repo_id, commit=folder.name, **hub
    )
    weights = (folder / INDEX_FILE).is_file() or (folder / SINGLE_FILE).is_file()
    if not (weights and (folder / TOKENIZER_FILE).is_file()):
        _take_small_files(found)
    return found


def find_local(model_id: str, revision: str | None = None) -> ModelFolder | None:
    """Return the model's folder where `model_id` is a path; None for a hub id.

    Raises:
        LoadFailed: there is no model folder at that path.
    """
    local = Path(model_id).expanduser()
    if local.exists() or model_id.startswith(_PATH_STARTS):
        return _local(model_id, local, revision)
    return None


def _local(model_id: str, folder: Path, revision: str | None) -> ModelFolder:
    if not folder.exists():
        raise LoadFailed(f"there is no folder {folder}; check --model-id")
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


def _cached(repo_id: str, file: str, revision: str | None, cache_dir: Path | None) -> object:
    """A path, a marker for "known to be absent", or None for "not known"."""
    try:
        return try_to_load_from_cache(repo_id, file, cache_dir=cache_dir, revision=revision)
    except ValueError as error:  # no possible hub id
        raise refusal(error, repo_id, file, revision) from error


def _take_small_files(model: ModelFolder) -> None:
    """Bring the optional files here that the model has.

    The hub's answer that it has none is cached by huggingface_hub too, so that the next start
    asks nothing. Without a connection what is not here counts as absent: asking for each file
    would take its retries each time, and the weights may well be here.
    """
    assert model.repo_id is not None
    for file in SMALL_FILES:
        if _cached(model.repo_id, file, model.commit, model.cache_dir) is not None:
            continue
        try:
            hf_hub_download(
                model.repo_id,
                file,
                revision=model.commit,
                endpoint=model.endpoint,
                cache_dir=model.cache_dir,
            )
        except LocalEntryNotFoundError:
            return
        except EntryNotFoundError:
            continue
        except Exception as error:
            raise refusal(error, model.repo_id, file, model.commit) from error
