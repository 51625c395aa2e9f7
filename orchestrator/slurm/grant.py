"""Get an allocation with `salloc`, and give it back at the end, whatever happens."""

from __future__ import annotations

import os
import selectors
import shlex
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from orchestrator.slurm.allocation import SlurmError, require
from worker.protocol.exits import ExitCode

_RELEASE_S = 10.0
_FACTS = "SLURM_"
_GRANTED = b"granted\n"
# The first shell waits for the end of our pipe, which comes also when this program is killed, and
# then tells salloc with SIGHUP: the one signal that it obeys while it waits in the queue and after.
# Its own ends of stdout and stderr are closed, so that they end with salloc.
_HOLD = """\
salloc "$@" sh -c 'printenv; echo granted; exec sleep 2147483647' </dev/null &
salloc=$!
exec >&- 2>&-
cat >/dev/null
kill -HUP $salloc 2>/dev/null
wait $salloc
"""


@contextmanager
def granted(options: str, wait_s: float, say: Callable[[str], None]) -> Iterator[dict[str, str]]:
    """Hold an allocation while the block runs; yield the variables that Slurm sets for it.

    Args:
        options: those of salloc, as a shell would take them.
        wait_s: how long it may wait in the queue.
        say: told where it has to wait.

    Raises:
        SlurmError: it is refused, or does not come in time.
    """
    require("salloc")
    holder = subprocess.Popen(
        ["sh", "-c", _HOLD, "sh", *shlex.split(options)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,  # A terminal's Ctrl-C is for this program, which ends the rest.
    )
    try:
        # What salloc says later, some lines at most, has room in the pipe; the stages tell more.
        yield _Waiting(holder, options, wait_s, say).variables()
    finally:
        _release(holder)


class _Waiting:
    """Read what salloc says until it grants or gives up."""

    def __init__(
        self,
        holder: subprocess.Popen[bytes],
        options: str,
        wait_s: float,
        say: Callable[[str], None],
    ) -> None:
        self._holder = holder
        self._options = options
        self._wait_s = wait_s
        self._say = say
        self._said: list[str] = []

    def variables(self) -> dict[str, str]:
        """Return the variables of the allocation.

        Raises:
            SlurmError: there is none.
        """
        told, deadline_s = b"", time.monotonic() + self._wait_s
        assert self._holder.stdout is not None
        assert self._holder.stderr is not None
        with selectors.DefaultSelector() as selector, _sigint_raises():
            for stream in (self._holder.stdout, self._holder.stderr):
                selector.register(stream, selectors.EVENT_READ)
            while not told.endswith(_GRANTED):
                left_s = deadline_s - time.monotonic()
                ready = selector.select(max(0.0, left_s))
                if not ready and left_s <= 0:
                    raise self._late()
                for key, _ in ready:
                    chunk = os.read(key.fd, 65536)
                    if key.fileobj is self._holder.stderr:
                        self._hear(chunk)
                    told += chunk if key.fileobj is self._holder.stdout else b""
                    if not chunk:
                        selector.unregister(key.fileobj)
                if not selector.get_map():
                    raise self._refused()
        pairs = (line.partition("=") for line in told.decode("utf-8", "replace").splitlines())
        return {name: value for name, _, value in pairs if name.startswith(_FACTS)}

    def _hear(self, chunk: bytes) -> None:
        for line in chunk.decode("utf-8", "replace").splitlines():
            text = line.strip().removeprefix("salloc: ")
            self._said.append(text)
            if "queued and waiting" in text:
                self._say(f"note: Slurm: {text}, at most {self._wait_s:g} s (--slurm-wait-s)")

    def _late(self) -> SlurmError:
        last = f" (salloc: {self._said[-1]})" if self._said else ""
        return SlurmError(
            f"--slurm={self._options!r}: Slurm granted no allocation within {self._wait_s:g} s"
            f"{last}; see 'squeue --me --start', ask for less, or raise --slurm-wait-s",
            ExitCode.PEER_GONE,
        )

    def _refused(self) -> SlurmError:
        errors = [text.removeprefix("error: ") for text in self._said if "error: " in text]
        # The last error is the summary of those before it.
        reason = (errors or self._said or ["it said nothing"])[-1 if errors else 0]
        return SlurmError(
            f"--slurm={self._options!r}: Slurm gives no allocation: {reason}; the options are "
            "those of salloc"
        )


@contextmanager
def _sigint_raises() -> Iterator[None]:
    """Let Ctrl-C end the wait: an event loop that is around it would only note it for later."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _release(holder: subprocess.Popen[bytes]) -> None:
    assert holder.stdin is not None
    assert holder.stdout is not None
    assert holder.stderr is not None
    holder.stdin.close()
    try:
        holder.wait(_RELEASE_S)
    except subprocess.TimeoutExpired:
        # The controller does not answer: it gives the nodes back by itself once salloc is gone.
        os.killpg(holder.pid, signal.SIGKILL)
        holder.wait()
    finally:
        holder.stdout.close()
        holder.stderr.close()
