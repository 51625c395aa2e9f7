"""Start a Python program that says when it is ready, and end it."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tools.bench.resident import peak_bytes

ROOT = Path(__file__).resolve().parents[2]
_STDERR_TAIL = 2000


class Program:
    """A process that writes a ready line to stdout and ends at the end of its stdin."""

    def __init__(self, arguments: Sequence[str], environment: dict[str, str]) -> None:
        # never full, unlike a pipe nobody reads
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 - closed in `end`
        self._process = subprocess.Popen(
            [sys.executable, "-P", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            env=environment,
        )

    def wait_ready(self) -> None:
        """Read lines until the ready line.

        Raises:
            RuntimeError: the program ended before; with the end of its stderr.
        """
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with contextlib.suppress(ValueError):
                if json.loads(line).get("status") == "ready":
                    return
        self._stderr.seek(0)
        said = self._stderr.read()[-_STDERR_TAIL:].decode(errors="replace")
        raise RuntimeError(f"{self._process.args!r} ended before it was ready:\n{said}")

    def peak_bytes(self) -> int:
        """Return the highest resident size so far."""
        return peak_bytes(self._process.pid)

    def end(self) -> None:
        """Close stdin, wait for the end; kill what does not end."""
        try:
            self._process.communicate(timeout=20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()
        finally:
            self._stderr.close()
