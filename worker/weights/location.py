"""Where fetched weights are kept on this host."""

from __future__ import annotations

from pathlib import Path

from huggingface_hub import constants

from worker.failures import LoadFailed


def cache_root(given: Path | None) -> Path:
    """Return the folder that was given, else `stageline` beside huggingface_hub's own cache.

    Raises:
        LoadFailed: its `~` names nobody.
    """
    root = given or Path(constants.HF_HOME) / "stageline"
    try:
        return root.expanduser()
    except RuntimeError:
        raise LoadFailed(
            f"there is no home folder for {root.parts[0]} in the cache folder {root}; give an "
            "absolute path with --cache-dir or STAGELINE_CACHE"
        ) from None
