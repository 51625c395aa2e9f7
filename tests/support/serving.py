"""`orchestrator serve` as a user starts it: a process of its own, on a port that is free."""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tests.support.cli import COMMAND, environment

STUB = ("--local", "2", "--stub", "--no-bundle")
_READY = re.compile(r"^serving (.+) at (http://\S+) \(")


@dataclass(slots=True)
class Server:
    """A server that serves.

    Attributes:
        url: its base, as `http://127.0.0.1:40001`; OpenAI's interface is at `url + "/v1"`.
        model: what it calls the model.
        lines: what it has written to stderr so far.
    """

    process: subprocess.Popen[str]
    url: str = ""
    model: str = ""
    lines: list[str] = field(default_factory=list)
    _news: threading.Condition = field(default_factory=threading.Condition)

    @property
    def address(self) -> tuple[str, int]:
        """Host and port, for a socket."""
        parts = urlsplit(self.url)
        assert parts.hostname is not None and parts.port is not None
        return parts.hostname, parts.port

    @property
    def stderr(self) -> str:
        """What it has written to stderr so far."""
        with self._news:
            return "".join(self.lines)

    @property
    def worker_pids(self) -> list[int]:
        """Its workers, in the order in which they were started."""
        tasks = Path(f"/proc/{self.process.pid}/task").iterdir()
        words = [word for task in tasks for word in (task / "children").read_text().split()]
        return sorted(map(int, words))

    def connect(self, timeout_s: float = 30) -> socket.socket:
        """Return a connection; whoever asked closes it."""
        return socket.create_connection(self.address, timeout_s)

    def wait_until(self, is_so: Callable[[], bool], timeout_s: float = 30) -> None:
        """Ask again and again until it is so."""
        deadline_s = time.monotonic() + timeout_s
        while not is_so():
            assert time.monotonic() < deadline_s, f"it never came to that; stderr:\n{self.stderr}"
            time.sleep(0.01)

    def wait_for(self, pattern: str, timeout_s: float = 30) -> re.Match[str]:
        """Wait for a line of stderr that matches, also one that was written before."""
        found: re.Match[str] | None = None

        def is_there() -> bool:
            nonlocal found
            found = next((m for line in self.lines if (m := re.search(pattern, line))), None)
            return found is not None or self.process.poll() is not None

        with self._news:
            self._news.wait_for(is_there, timeout_s)
        assert found is not None, f"no line like {pattern!r} in:\n{self.stderr}"
        return found

    def ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        headers: Mapping[str, str] | None = None,
        timeout_s: float = 30,
    ) -> tuple[int, dict[str, str], bytes]:
        """Make one request; return status, headers (lower case) and the whole body."""
        sent = {"Content-Type": "application/json"} if body is not None else {}
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        connection = http.client.HTTPConnection(*self.address, timeout=timeout_s)
        with contextlib.closing(connection):
            connection.request(method, path, data, {**sent, **(headers or {})})
            reply = connection.getresponse()
            named = {name.lower(): value for name, value in reply.getheaders()}
            return reply.status, named, reply.read()

    def get_json(self, path: str) -> Any:
        """Return the decoded JSON of a GET, whatever its status."""
        return json.loads(self.ask("GET", path)[2])

    def metric(self, line_start: str) -> float:
        """Return a value of /metrics by the beginning of its line; 0 where there is none."""
        text = self.ask("GET", "/metrics")[2].decode()
        values = [
            line.rpartition(" ")[2] for line in text.splitlines() if line.startswith(line_start)
        ]
        return sum(map(float, values))

    def signal(self, number: signal.Signals = signal.SIGTERM) -> None:
        """Send it a signal."""
        self.process.send_signal(number)

    def wait(self, timeout_s: float = 30) -> int:
        """Wait for its end and return the exit code."""
        return self.process.wait(timeout_s)

    def listen_to(self, stream: Any) -> None:
        """Keep the lines of a stream up to its end, in a thread of its own."""
        for line in stream:
            with self._news:
                self.lines.append(line)
                self._news.notify_all()
        with self._news:
            self._news.notify_all()


@contextlib.contextmanager
def started(
    *words: str, command: str = "serve", env: Mapping[str, str] | None = None, **kwargs: Any
) -> Iterator[Server]:
    """Start the command with these words and end it with the block, whatever has become of it."""
    process = subprocess.Popen(
        [*COMMAND, command, *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(env),
        **kwargs,
    )
    server = Server(process)
    listener = threading.Thread(target=server.listen_to, args=(process.stderr,), daemon=True)
    listener.start()
    try:
        yield server
    finally:
        if process.poll() is None:
            process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(10)
        listener.join(10)
        assert process.stderr is not None
        process.stderr.close()


@contextlib.contextmanager
def served(
    *words: str,
    stages: tuple[str, ...] = STUB,
    timeout_s: float = 60,
    env: Mapping[str, str] | None = None,
    **kwargs: Any,
) -> Iterator[Server]:
    """Serve with two stub stages on a free port of loopback, until the block ends.

    Args:
        words: more of the command line.
        stages: which stages, as `("--local", "2", "--model-id", path, "--no-bundle")`.
        timeout_s: for the ready line.
        env: more of the environment.
        kwargs: of Popen.
    """
    with started(*stages, "--port", "0", "--drain-s", "5", *words, env=env, **kwargs) as server:
        found = server.wait_for(_READY.pattern, timeout_s)
        server.model, server.url = found[1], found[2]
        yield server
