"""Say in one sentence why the hub did not give a file, and what to do about it."""

from __future__ import annotations

import errno
import ssl
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import httpx2
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
from worker.weights.retry import retry_after_s

_KEPT = "what was fetched so far is kept"
LATER = f"try again later, {_KEPT}"
NETWORK = f"check the network, HTTPS_PROXY and HF_ENDPOINT and start again, {_KEPT}"
PROXY = (
    "a proxy or mirror between here and the hub is at fault: check HTTPS_PROXY and HF_ENDPOINT, or "
    "fetch whole files with --whole-files"
)
_TRANSPORT = (
    httpx2.TimeoutException,
    httpx2.NetworkError,
    httpx2.RemoteProtocolError,
    httpx2.ProxyError,
)


class PassingTrouble(Exception):
    """A request failed in a way that may pass when it is made anew.

    Attributes:
        seen: what happened, to stand after "cannot be fetched:".
        advice: what to do when it does not pass.
        asked_s: how long the hub asks to wait before that; None where it does not say.
    """

    def __init__(self, seen: str, advice: str = LATER, asked_s: float | None = None) -> None:
        super().__init__(seen)
        self.seen = seen
        self.advice = advice
        self.asked_s = asked_s


def passing(error: Exception) -> PassingTrouble | None:
    """Return what may be tried again; None where asking again would not change the answer."""
    if isinstance(error, PassingTrouble):
        return error
    if isinstance(error, HfHubHTTPError):
        return passing_status(error.response)
    if not isinstance(error, _TRANSPORT) or _has(error, ssl.SSLCertVerificationError):
        return None
    host = error.request.url.netloc.decode()
    if isinstance(error, httpx2.ReadTimeout):
        limit_s = error.request.extensions.get("timeout", {}).get("read")
        return PassingTrouble(f"{host} sent nothing for {limit_s} s", NETWORK)
    return PassingTrouble(f"the connection to {host} failed ({_last_words(error)})", NETWORK)


def passing_status(response: httpx2.Response) -> PassingTrouble | None:
    """Return the trouble that the status of an answer tells of; None where it may not pass."""
    status = response.status_code
    if status not in (408, 429) and status < 500:
        return None
    headers = {name.lower(): value for name, value in response.headers.items()}
    return PassingTrouble(
        f"{response.url.netloc.decode()} answers HTTP {status}",
        asked_s=retry_after_s(headers, datetime.now(UTC)),
    )


def gave_up(trouble: PassingTrouble, attempts: int, file: str, where: str) -> LoadFailed:
    """Say that asking again did not help."""
    times = "once" if attempts == 1 else f"{attempts} times in a row"
    return LoadFailed(
        f"{file} of {where} cannot be fetched: {trouble.seen}, {times}; {trouble.advice}"
    )


def too_patient(asked_s: float, limit_s: float, file: str, where: str) -> LoadFailed:
    """Say that the hub asks for a longer wait than a start is worth."""
    return LoadFailed(
        f"the hub asks to wait {asked_s:.0f} s before it gives {file} of {where}, the longest wait "
        f"is {limit_s:.0f} s; start again after that, {_KEPT} (a token in HF_TOKEN raises the "
        "hub's limits)"
    )


def where_of(repo_id: str, revision: str | None) -> str:
    """Return the words for one commit of a repository."""
    return f"{repo_id}@{revision}" if revision else repo_id


def refusal(error: Exception, repo_id: str, file: str, revision: str | None) -> LoadFailed:
    """Turn what huggingface_hub raised for `file` of `repo_id` into one sentence with advice."""
    return LoadFailed(
        _sentence(error, repo_id, file, revision),
        ExitCode.USAGE if isinstance(error, HFValidationError) else ExitCode.LOAD_FAILED,
    )


def not_found(error: Exception, repo_id: str, file: str, revision: str | None) -> LoadFailed:
    """Turn what was raised for the first file of a model into one sentence with advice.

    What has no slash, or is no model of the hub, may be a folder whose name was mistyped.
    """
    failed = refusal(error, repo_id, file, revision)
    is_id = not _has(error, HFValidationError) and not _has(error, GatedRepoError)
    if is_id and ("/" not in repo_id or _has(error, RepositoryNotFoundError)):
        taken = f"there is no folder {repo_id} in {Path.cwd()}, so it was taken for a hub id"
        return LoadFailed(f"{taken}, and {failed.text}", failed.code)
    return failed


def status_of(error: BaseException) -> int | None:
    """Return the HTTP status that an error came from; None where nothing was answered."""
    answers = (e.response for e in _chain(error) if isinstance(e, HfHubHTTPError))
    return next((response.status_code for response in answers), None)


def _sentence(error: Exception, repo_id: str, file: str, revision: str | None) -> str:
    chain, where = list(_chain(error)), where_of(repo_id, revision)

    def has(*kinds: type[BaseException]) -> bool:
        return _has(error, *kinds)

    if has(HFValidationError):
        return (
            f"{repo_id!r} is neither an existing folder in {Path.cwd()} nor a hub id such as "
            "org/name; check --model-id"
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
    if (status := status_of(error)) in (401, 403):
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
    local = next((e for e in chain if isinstance(e, OSError) and e.filename), None)
    if local is not None:  # not of a connection, which names no file
        return (
            f"{file} of {where} cannot be kept: {local.filename} ({local.strerror}); check that "
            "disk and who may write there, or set HF_HOME to another folder"
        )
    if has(UnicodeEncodeError, httpx2.LocalProtocolError):  # whose words may tell the token
        return (
            f"{file} of {where} cannot be asked for: the token in HF_TOKEN, or of the last login, "
            "holds a character that no HTTP header can; copy it anew"
        )
    return (
        f"{file} of {where} is not in the cache and the hub cannot be reached "
        f"({_last_words(error)}); check the network, HTTPS_PROXY and HF_ENDPOINT, or give a local "
        "folder"
    )


def _last_words(error: BaseException) -> str:
    """The first line of what is at the root of the error."""
    root = list(_chain(error))[-1]
    return (str(root).strip().splitlines() or [""])[0][:200] or type(root).__name__


def _has(error: BaseException, *kinds: type[BaseException]) -> bool:
    return any(isinstance(one, kinds) for one in _chain(error))


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yield the error and what it came from, outermost first."""
    seen: set[int] = set()
    one: BaseException | None = error
    while one is not None and id(one) not in seen:
        seen.add(id(one))
        yield one
        one = one.__cause__ or one.__context__
