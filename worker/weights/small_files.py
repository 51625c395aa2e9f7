"""Bring the optional small files of a hub model here: tokenizer, templates, index of weights."""

from __future__ import annotations

from pathlib import Path

from huggingface_hub import hf_hub_download, try_to_load_from_cache
from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError

from worker.weights.hub_errors import refusal, status_of
from worker.weights.index import INDEX_FILE

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


def cached(repo_id: str, file: str, revision: str | None, cache_dir: Path | None) -> object:
    """Return a path, a marker for "known to be absent", or None for "not known".

    Raises:
        LoadFailed: `repo_id` cannot be a name on the hub.
    """
    try:
        return try_to_load_from_cache(repo_id, file, cache_dir=cache_dir, revision=revision)
    except ValueError as error:
        raise refusal(error, repo_id, file, revision) from error


def take_small_files(
    repo_id: str, commit: str, *, endpoint: str | None, cache_dir: Path | None
) -> None:
    """Bring those here that the model has.

    The hub's answer that it has none is cached by huggingface_hub too, so that the next start
    asks nothing. Without a connection what is not here counts as absent: asking for each file
    would take its retries each time, and the weights may well be here. A hub that answers, but
    refuses, has not said that a file is absent.

    Raises:
        LoadFailed: the hub refuses; one sentence with advice.
    """
    for file in SMALL_FILES:
        if cached(repo_id, file, commit, cache_dir) is not None:
            continue
        if ask_for(repo_id, file, commit, endpoint=endpoint, cache_dir=cache_dir) is None:
            return


def ask_for(
    repo_id: str,
    file: str,
    commit: str,
    *,
    endpoint: str | None,
    cache_dir: Path | None,
    dry_run: bool = False,
) -> bool | None:
    """Fetch a file where the model has it; tell whether it does, None where nobody answers.

    With `dry_run` nothing is fetched.

    Raises:
        LoadFailed: the hub refuses; one sentence with advice.
    """
    try:
        hf_hub_download(
            repo_id,
            file,
            revision=commit,
            endpoint=endpoint,
            cache_dir=cache_dir,
            dry_run=dry_run,
        )
    except Exception as error:
        if isinstance(error, LocalEntryNotFoundError) and status_of(error) is None:
            return None
        if isinstance(error, EntryNotFoundError) and not isinstance(error, LocalEntryNotFoundError):
            return False
        raise refusal(error, repo_id, file, commit) from error
    return True
