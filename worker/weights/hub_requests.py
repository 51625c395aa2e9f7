"""Ask a hub for ranges of files: its redirects, its token, its etags."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property

import httpx2
from huggingface_hub import (
    constants,
    get_hf_file_metadata,
    get_session,
    hf_hub_url,
    hf_raise_for_status,
)
from huggingface_hub.errors import HfHubHTTPError
from huggingface_hub.file_download import HfFileMetadata
from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]

from worker import __version__
from worker.failures import LoadFailed
from worker.weights.hub_answer import changed, host_of, out_of_range, plain_etag
from worker.weights.hub_connections import Connections
from worker.weights.hub_errors import PassingTrouble, passing_status, where_of
from worker.weights.retry import FetchLimits

_HUB = "https://huggingface.co"
# What a storage host answers once the address that the hub signed for it is too old.
_EXPIRED = (401, 403, 404, 410)
# What a hub answers that knows no HEAD.
_NO_HEAD = (405, 501)
_SMALL_BYTES = 64 * 1024


class HubRequests:
    """Single requests about the files of one commit; any thread may make them.

    The token goes to the hub alone. Addresses of storage hosts that the hub redirected to are
    kept and used until one fails.
    """

    def __init__(self, repo_id: str, commit: str, endpoint: str | None, limits: FetchLimits):
        self.connections = Connections()
        self._repo_id = repo_id
        self._commit = commit
        self._endpoint = endpoint
        self._limits = limits
        self._hubs = {
            httpx2.URL(url).origin
            for url in (endpoint or constants.ENDPOINT, constants.ENDPOINT, _HUB)
        }
        self._timeout = httpx2.Timeout(limits.stall_s, connect=limits.connect_s)
        self._addresses: dict[str, httpx2.URL] = {}
        self._etags: dict[tuple[str, httpx2.Origin], str] = {}

    @cached_property
    def _headers(self) -> dict[str, str]:
        """With the token. Not made before the first request: this may ask the hub something."""
        return build_hf_headers(library_name="stageline", library_version=__version__)

    def metadata(self, name: str) -> HfFileMetadata | None:
        """Ask about a file with HEAD; None where the hub knows no HEAD.

        Raises:
            Exception: what huggingface_hub raises.
        """
        try:
            return get_hf_file_metadata(
                self._url(name),
                headers=self._headers,
                timeout=self._limits.head_s,
                endpoint=self._endpoint,
            )
        except HfHubHTTPError as error:
            if error.response.status_code in _NO_HEAD:
                return None
            raise

    @contextmanager
    def open(
        self, name: str, start: int, end: int, size_bytes: int | None, etag: str | None
    ) -> Iterator[httpx2.Response]:
        """Ask for bytes [start, end) and hand out the answer, its body unread and unchecked.

        Raises:
            LoadFailed: a storage host refuses, or the file is not the one with that size and etag.
            PassingTrouble: a chain of redirects does not end.
            Exception: what huggingface_hub raises.
        """
        kept = self._addresses.get(name)
        url = kept or httpx2.URL(self._url(name))
        for _ in range(self._limits.redirects + 1):
            with self._get(url, start, end) as response:
                if response.has_redirect_location:
                    url = self._redirect(response, name, etag)
                    continue
                if kept is None or response.status_code not in _EXPIRED:
                    self._check(response, name, size_bytes, etag)
                    if url.origin not in self._hubs:
                        self._addresses[name] = url
                    yield response
                    return
            self.forget_address(name)
            kept, url = None, httpx2.URL(self._url(name))
        raise PassingTrouble(f"more than {self._limits.redirects} redirects led nowhere")

    def forget_address(self, name: str) -> None:
        """Ask the hub again, next time, where a file is."""
        self._addresses.pop(name, None)

    def _url(self, name: str) -> str:
        return hf_hub_url(self._repo_id, name, revision=self._commit, endpoint=self._endpoint)

    @contextmanager
    def _get(self, url: httpx2.URL, start: int, end: int) -> Iterator[httpx2.Response]:
        headers = {
            key: value
            for key, value in self._headers.items()
            if key.lower() != "authorization" or url.origin in self._hubs
        }
        headers |= {"Range": f"bytes={start}-{end - 1}", "Accept-Encoding": "identity"}
        with get_session().stream(
            "GET",
            url,
            headers=headers,
            timeout=self._timeout,
            follow_redirects=False,
            extensions={"trace": self.connections.watch},
        ) as response:
            self.connections.add(response.extensions["network_stream"])
            yield response

    def _redirect(self, response: httpx2.Response, name: str, etag: str | None) -> httpx2.URL:
        if response.next_request is None:
            raise PassingTrouble(f"{host_of(response)} redirects to no address")
        target = response.next_request.url
        if response.url.origin in self._hubs and target.origin not in self._hubs:
            self._check_etag(response, name, etag)
        length = response.headers.get("content-length", "")
        if length.isdigit() and int(length) <= _SMALL_BYTES:
            response.read()  # so that the connection can be used again
        return target

    def _check(
        self, response: httpx2.Response, name: str, size_bytes: int | None, etag: str | None
    ) -> None:
        if response.status_code == 416:
            raise out_of_range(response, size_bytes, self._what(name))
        trouble = passing_status(response)
        if trouble is not None:
            raise trouble
        if response.status_code >= 400 and response.url.origin not in self._hubs:
            raise LoadFailed(
                f"{host_of(response)}, where the hub says that {self._what(name)} is, refuses it "
                f"(HTTP {response.status_code}); check this host's clock (such addresses are good "
                "for a short time) and HTTPS_PROXY, or try again later"
            )
        hf_raise_for_status(response)
        self._check_etag(response, name, etag)

    def _check_etag(self, response: httpx2.Response, name: str, etag: str | None) -> None:
        """Refuse a file that changed between two answers of one host, or since it was described.

        Storage hosts and some mirrors have etags of their own; those are compared among
        themselves, and with the hub's only where both are of one kind, which the length tells.
        """
        linked = response.headers.get(constants.HUGGINGFACE_HEADER_X_LINKED_ETAG)
        seen = plain_etag(linked or response.headers.get("ETag"))
        if seen is None:
            return
        origin = response.url.origin
        before = self._etags.setdefault((name, origin), seen)
        if before == seen and origin in self._hubs and etag and len(etag) == len(seen):
            before = etag
        if before != seen:
            raise changed(self._what(name), f"etag {before}", f"etag {seen}")

    def _what(self, name: str) -> str:
        return f"{name} of {where_of(self._repo_id, self._commit)}"
