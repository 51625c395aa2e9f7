"""A small model hub on loopback: enough of the HTTP that huggingface_hub speaks."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@dataclass
class Hub:
    """What the hub holds, and what it was asked.

    Attributes:
        models: folder by repository id; all at `COMMIT`, which `main` names.
        refusals: `(status, X-Error-Code)` by repository id.
        asked: `METHOD file` of every request, in order.
        endpoint: its address.
    """

    models: dict[str, Path] = field(default_factory=dict)
    refusals: dict[str, tuple[int, str]] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    endpoint: str = ""

    def find(self, path: str) -> tuple[int, str, Path | None]:
        """Return status, error code and file of a `/org/name/resolve/revision/file` path."""
        repo_id, _, rest = path.strip("/").partition("/resolve/")
        revision, _, name = rest.partition("/")
        if repo_id in self.refusals:
            return (*self.refusals[repo_id], None)
        if repo_id not in self.models:
            return 404, "RepoNotFound", None
        if revision not in ("main", COMMIT):
            return 404, "RevisionNotFound", None
        file = self.models[repo_id] / name
        return (200, "", file) if file.is_file() else (404, "EntryNotFound", None)


@contextmanager
def serve_hub(hub: Hub) -> Iterator[Hub]:
    """Serve until the block ends."""

    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self._answer(body=False)

        def do_GET(self) -> None:
            self._answer(body=True)

        def log_message(self, *_args: Any) -> None:
            """Keep quiet."""

        def _answer(self, *, body: bool) -> None:
            hub.asked.append(f"{self.command} {self.path.rpartition('/')[2]}")
            status, code, file = hub.find(self.path)
            data = file.read_bytes() if file else b""
            self.send_response(status)
            if code:
                self.send_header("X-Error-Code", code)
            if file or code == "EntryNotFound":
                # clients remember "not there" by the commit it was said of
                self.send_header("X-Repo-Commit", COMMIT)
            if file:
                self.send_header("ETag", f'"{hashlib.sha256(data).hexdigest()}"')
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            if body:
                self.wfile.write(data)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    hub.endpoint = f"http://127.0.0.1:{server.server_port}"
    try:
        yield hub
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
