"""Check that an answer of the hub is exactly the range that was asked for, and comes in time."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from time import monotonic

import httpx2

from worker.failures import LoadFailed
from worker.weights.hub_errors import NETWORK, PROXY, PassingTrouble
from worker.weights.retry import FetchLimits

_CONTENT_RANGE = re.compile(r"bytes (?:(\d+)-(\d+)|\*)/(\d+)")


def check_range(
    response: httpx2.Response, start: int, end: int, size_bytes: int | None, what: str
) -> int:
    """Check status and headers of the answer to a request for bytes [start, end).

    `size_bytes` is the size that the file must have, None where it is not known yet; `what`
    names the file. Returns the size that the answer names.

    Raises:
        LoadFailed: the answer cannot be what was asked, however often it is asked.
        PassingTrouble: it is not what was asked.
    """
    if response.status_code == 200:
        raise LoadFailed(
            f"{host_of(response)} answers with the whole of {what} (HTTP 200) where bytes "
            f"{start}-{end - 1} were asked (HTTP 206); {PROXY}"
        )
    if response.status_code != 206:
        raise LoadFailed(
            f"{host_of(response)} answers HTTP {response.status_code} for bytes {start}-{end - 1} "
            f"of {what} where HTTP 206 is needed; {PROXY}"
        )
    encoding = response.headers.get("content-encoding", "identity").strip().lower()
    if encoding not in ("", "identity"):
        raise LoadFailed(
            f"{host_of(response)} answers with {what} encoded as {encoding} where the bytes as "
            f"they are were asked; {PROXY}"
        )
    text = response.headers.get("content-range", "none")
    found = _CONTENT_RANGE.fullmatch(text.strip())
    size = int(found[3]) if found else None
    wanted = (str(start), str(end - 1))
    if found is None or found.group(1, 2) != wanted or size_bytes not in (None, size):
        asked = f"bytes {start}-{end - 1}/{'*' if size_bytes is None else size_bytes}"
        raise PassingTrouble(f"asked for {asked}, the answer's Content-Range is {text!r}", PROXY)
    length = response.headers.get("content-length", "0")
    if not length.isdigit() or int(length) > end - start:
        raise PassingTrouble(
            f"asked for {end - start} bytes, the answer's Content-Length is {length!r}", PROXY
        )
    assert size is not None
    return size


def out_of_range(response: httpx2.Response, size_bytes: int | None, what: str) -> Exception:
    """Return what an HTTP 416 means: the file there has another size, or nothing sensible."""
    text = response.headers.get("content-range", "none")
    found = _CONTENT_RANGE.fullmatch(text.strip())
    if found and size_bytes is not None and int(found[3]) != size_bytes:
        return changed(what, f"{size_bytes} bytes", f"{found[3]} bytes")
    return PassingTrouble(
        f"{host_of(response)} has no such range (HTTP 416, Content-Range {text!r})", PROXY
    )


def changed(what: str, before: str, now: str) -> LoadFailed:
    """Say that the file is no longer the one that was asked about first."""
    return LoadFailed(
        f"{what} is not the same file any more: it was {before} and is {now} now, and parts of "
        "both do not make one; check HF_ENDPOINT, remove what is cached of the model with "
        "`orchestrator cache rm`, and fetch it again"
    )


def host_of(response: httpx2.Response) -> str:
    """Return who answered, without the path: an address may be signed, and is a secret then."""
    return response.url.netloc.decode()


def plain_etag(etag: str | None) -> str | None:
    """Return what identifies the content: no weakness mark, no quotes, no `-gzip` of a proxy."""
    if etag is None:
        return None
    return etag.strip().removeprefix("W/").strip('"').removesuffix("-gzip") or None


def body(
    response: httpx2.Response, limits: FetchLimits, clock: Callable[[], float] = monotonic
) -> Iterator[bytes]:
    """Yield the body as it comes, unchanged.

    Only time spent waiting for bytes counts, not what the caller does with them.

    Raises:
        PassingTrouble: it comes more slowly than a live connection would.
        httpx2.TransportError: the connection failed, or no byte came for `stall_s`.
    """
    chunks = response.iter_raw()
    waited_s, came_bytes = 0.0, 0
    while True:
        began_s = clock()
        chunk = next(chunks, None)
        waited_s += clock() - began_s
        if chunk is None:
            return
        came_bytes += len(chunk)
        yield chunk
        if waited_s >= limits.stall_s:
            if came_bytes < limits.slowest_bytes_per_s * waited_s:
                raise PassingTrouble(f"only {came_bytes} bytes came in {waited_s:.1f} s", NETWORK)
            waited_s, came_bytes = 0.0, 0
