"""Say in one sentence why the hub did not give a file, and what to do about it."""

from __future__ import annotations

import errno
from collections.abc import Iterator

from huggingface_hub.errors import (
    EntryNotFoundError,
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from worker.failures import LoadFailed
from worker.protocol.exits import ExitCode


def refusal(error: Exception, repo_id: str, file: str, revision: str | None) -> LoadFailed:
    """Turn what huggingface_hub raised for `file` of `repo_id` into one sentence with advice."""
    return LoadFailed(
        _sentence(error, repo_id, file, revision),
        ExitCode.USAGE if isinstance(error, HFValidationError) else ExitCode.LOAD_FAILED,
    )


def _sentence(error: Exception, repo_id: str, file: str, revision: str | None) -> str:
    chain = list(_chain(error))
    where = f"{repo_id}@{revision}" if revision else repo_id

    def has(*kinds: type[BaseException]) -> bool:
        return any(isinstance(one, kinds) for one in chain)

    status = next((e.response.status_code for e in chain if isinstance(e, HfHubHTTPError)), None)
    if has(HFValidationError):
        return (
            f"{repo_id!r} is neither an existing folder nor a hub id such as org/name; "
            "check --model-id"
        )
    if has(GatedRepoError):
        return (
            f"{repo_id} is gated on the hub: accept its licence on its page there, then set "
            "HF_TOKEN to a token of that account"
        )
    if has(RevisionNotFoundError):
        return f"{repo_id} has no revision {revision!r} on the hub; check --revision"
    if has(RepositoryNotFoundError):
        return (
            f"the hub has no model {repo_id}, or it is private; check --model-id, or set HF_TOKEN "
            "to a token that may read it"
        )
    if has(OfflineModeIsEnabled):
        return (
            f"{file} of {where} is not in the cache and HF_HUB_OFFLINE is set; fetch the model "
            "once without it, or give a local folder"
        )
    if status in (401, 403):
        return (
            f"the hub refuses {file} of {where} (HTTP {status}); set HF_TOKEN to a token that may "
            "read it, or renew the one that is set"
        )
    if status == 404 or (has(EntryNotFoundError) and not has(LocalEntryNotFoundError)):
        return f"{where} has no file {file} on the hub; it cannot be run, choose another model"
    if status is not None:
        return (
            f"the hub failed to give {file} of {where} (HTTP {status}); try again later, what was "
            "fetched so far is kept"
        )
    if any(isinstance(e, OSError) and e.errno == errno.ENOSPC for e in chain):
        return (
            f"the disk is full while fetching {file} of {where}; free space in the hub cache, or "
            "set HF_HOME to a larger disk"
        )
    last = (str(chain[-1]).strip().splitlines() or [""])[0][:200] or type(chain[-1]).__name__
    return (
        f"{file} of {where} is not in the cache and the hub cannot be reached ({last}); check the "
        "network, HTTPS_PROXY and HF_ENDPOINT, or give a local folder"
    )


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yield the error and what it came from, outermost first."""
    seen: set[int] = set()
    one: BaseException | None = error
    while one is not None and id(one) not in seen:
        seen.add(id(one))
        yield one
        one = one.__cause__ or one.__context__
