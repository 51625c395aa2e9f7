"""A small model hub on loopback: enough of the HTTP that huggingface_hub speaks."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit

from huggingface_hub import close_session

from tests.support.hub_faults import Asked, Faults
from tests.support.hub_handler import Answer
from tests.support.hub_server import serve

COMMIT = "0123456789abcdef0123456789abcdef01234567"
# Above it a file is taken for sparse: its etag is made up, not computed.
MAX_HASHED_BYTES = 64 << 20


@dataclass
class Hub:
    """What the hub holds, and what it was asked.

    Attributes:
        models: folder by repository id; all at `COMMIT`, which `main` names.
        commits: folder by repository id and commit, for more commits than that one.
        branches: commit by repository id and name, for more names than `main`.
        moved: new repository id by old one; answered with a relative redirect.
        refusals: `(status, X-Error-Code)` by repository id.
        etags: etag by file name, quotes included, where it is not the SHA-256 of the content.
        with_cdn: answer for weight files with a redirect to signed addresses at `cdn_endpoint`.
        signature_uses: how many requests a signed address is good for; None for any number.
        redirect_status: of the redirects to the CDN.
        asked: `METHOD file` of every request, in order.
        requests: the same in full.
        faults: how it misbehaves.
        endpoint, cdn_endpoint: its addresses.
    """

    models: dict[str, Path] = field(default_factory=dict)
    refusals: dict[str, tuple[int, str]] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    endpoint: str = ""
    commits: dict[tuple[str, str], Path] = field(default_factory=dict)
    branches: dict[tuple[str, str], str] = field(default_factory=dict)
    moved: dict[str, str] = field(default_factory=dict)
    etags: dict[str, str] = field(default_factory=dict)
    with_cdn: bool = False
    signature_uses: int | None = None
    redirect_status: int = 302
    cdn_endpoint: str = ""
    requests: list[Asked] = field(default_factory=list)
    faults: Faults = field(default_factory=Faults)
    _lock: threading.Condition = field(default_factory=threading.Condition)
    _sent_bytes: dict[str, int] = field(default_factory=dict)
    _signature_uses: dict[str, int] = field(default_factory=dict)
    _hashes: dict[tuple[Path, int, int], str] = field(default_factory=dict)

    def sent_bytes(self, suffix: str = "") -> int:
        """Return how many bytes of file bodies were sent, of files whose name ends so."""
        with self._lock:
            return sum(n for name, n in self._sent_bytes.items() if name.endswith(suffix))

    def forget(self) -> None:
        """Forget what was asked and sent."""
        with self._lock:
            self.asked.clear()
            self.requests.clear()
            self._sent_bytes.clear()

    def note(self, asked: Asked) -> None:
        """Record a request."""
        with self._lock:
            self.asked.append(f"{asked.method} {asked.file}")
            self.requests.append(asked)
            self._lock.notify_all()

    def count(self, file: str, num_bytes: int) -> None:
        """Record that so many bytes of a file's body were sent."""
        with self._lock:
            self._sent_bytes[file] = self._sent_bytes.get(file, 0) + num_bytes
            self._lock.notify_all()

    def wait_for(self, happened: Callable[[], bool], deadline_s: float = 10.0) -> None:
        """Wait until something is true of what was asked and sent."""
        with self._lock:
            assert self._lock.wait_for(happened, deadline_s), f"not within {deadline_s} s"

    def answer(self, asked: Asked) -> Answer:
        """Return the right answer to a request."""
        return self._cdn_answer(asked) if asked.at == "cdn" else self._hub_answer(asked)

    def _hub_answer(self, asked: Asked) -> Answer:
        path = unquote(urlsplit(asked.path).path)
        repo_id, _, rest = path.strip("/").partition("/resolve/")
        if repo_id in self.moved:
            target = path.replace(repo_id, self.moved[repo_id], 1)
            return Answer(307, {"Location": target})
        status, code, commit, file = self._find(repo_id, rest)
        headers = {"X-Error-Code": code} if code else {}
        if commit:
            # clients remember "not there" by the commit it was said of
            headers["X-Repo-Commit"] = commit
        if file is None:
            return Answer(status, headers)
        etag = self._etag(file)
        if self.with_cdn and file.suffix == ".safetensors":
            headers |= {
                "X-Linked-Etag": etag,
                "X-Linked-Size": str(file.stat().st_size),
                "Location": f"{self.cdn_endpoint}/{repo_id}/{commit}/{file.name}?signature="
                f"{self._sign()}",
            }
            return Answer(self.redirect_status, headers)
        return Answer(200, headers | {"ETag": etag}, file)

    def _cdn_answer(self, asked: Asked) -> Answer:
        url = urlsplit(asked.path)
        signature = parse_qs(url.query).get("signature", [""])[0]
        org, name, commit, file_name = unquote(url.path).strip("/").split("/", 3)
        with self._lock:
            uses = self._signature_uses.get(signature, 0) + 1
            self._signature_uses[signature] = uses
        if not signature or (self.signature_uses is not None and uses > self.signature_uses):
            return Answer(403, {})
        file = self._folders(f"{org}/{name}")[commit] / file_name
        # a store of its own, which names its copies as it likes
        etag = hashlib.md5(self._etag(file).encode()).hexdigest()
        return Answer(200, {"ETag": f'"{etag}"'}, file)

    def _find(self, repo_id: str, rest: str) -> tuple[int, str, str, Path | None]:
        """Return status, error code, commit and file of `revision/file` in a repository."""
        revision, _, name = rest.partition("/")
        if repo_id in self.refusals:
            return (*self.refusals[repo_id], "", None)
        folders = self._folders(repo_id)
        if not folders:
            return 404, "RepoNotFound", "", None
        commit = self.branches.get((repo_id, revision), COMMIT if revision == "main" else revision)
        if commit not in folders:
            return 404, "RevisionNotFound", "", None
        file = folders[commit] / name
        return (200, "", commit, file) if file.is_file() else (404, "EntryNotFound", commit, None)

    def _folders(self, repo_id: str) -> dict[str, Path]:
        """Return the folders of a repository by commit."""
        found = {
            commit: folder for (repo, commit), folder in self.commits.items() if repo == repo_id
        }
        return found | ({COMMIT: self.models[repo_id]} if repo_id in self.models else {})

    def _sign(self) -> str:
        with self._lock:
            signature = f"s{len(self._signature_uses)}"
            self._signature_uses[signature] = 0
        return signature

    def _etag(self, file: Path) -> str:
        if file.name in self.etags:
            return self.etags[file.name]
        stat = file.stat()
        key = (file, stat.st_size, stat.st_mtime_ns)
        if key not in self._hashes:
            huge = stat.st_size > MAX_HASHED_BYTES
            content = repr(key).encode() if huge else file.read_bytes()
            self._hashes[key] = hashlib.sha256(content).hexdigest()
        return f'"{self._hashes[key]}"'


@contextmanager
def serve_hub(hub: Hub) -> Iterator[Hub]:
    """Serve until the block ends; then close the connections of both ends."""
    with ExitStack() as servers:
        hub.endpoint = servers.enter_context(serve(hub, "hub"))
        if hub.with_cdn:
            hub.cdn_endpoint = servers.enter_context(serve(hub, "cdn"))
        # huggingface_hub keeps its connections; left open they would look like a leak of the test
        servers.callback(close_session)
        yield hub
