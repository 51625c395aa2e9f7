"""A worker's life as others see it: first line, heartbeat, signals, last line.

Whatever happens, `Lifecycle.leave` is the one way out: `exiting` is written, stdout is flushed,
and the process ends without waiting for any thread.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from types import TracebackType
from typing import NoReturn

from worker import __version__
from worker.boot_clock import BootClock
from worker.channel import Channel, End
from worker.config import WorkerConfig
from worker.installed import installed_version
from worker.owner import bind_to_parent, oom_kills, process_age_ms, resident_mb
from worker.protocol.codec import PROTOCOL_VERSION, encode_event
from worker.protocol.events import (
    BootProfile,
    Envelope,
    Event,
    Exiting,
    Heartbeat,
    Op,
    SignalReceived,
    Starting,
    UncaughtException,
)
from worker.protocol.exits import ExitCode

SIGNAL_GRACE_S = 5.0
FLUSH_S = 5.0
ABORT_FLUSH_S = 0.5
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_THREAD_PREFIX = "worker_"


class Lifecycle:
    """The emitter of every event, and the only place that ends the process."""

    def __init__(self, config: WorkerConfig, read_fd: int, write_fd: int) -> None:
        self._config = config
        self._born_s = time.monotonic() - process_age_ms() / 1000
        self._leaving = threading.Lock()
        self._end: End | None = None
        self._boot: BootClock | None = BootClock()
        # What the heartbeat tells; the server puts its own here.
        self.requests_served: Callable[[], int] = lambda: 0
        self.kv_held: Callable[[], tuple[int, int]] | None = None
        self.channel = Channel(read_fd, write_fd, self.abort, has_owner=config.has_owner)

    def start(self) -> None:
        """Write `starting`, then watch signals, the lease and uncaught errors."""
        config = self._config
        if config.has_owner:
            bind_to_parent()
        # A login banner may have ended without a newline.
        self.channel.send(b"\n")
        self.emit(
            Starting(
                protocol_version=PROTOCOL_VERSION,
                version=__version__,
                python=sys.version.split()[0],
                torch=installed_version("torch"),
                transformers=installed_version("transformers"),
                pid=os.getpid(),
                host=os.uname().nodename,
                nonce=config.nonce,
                stub=config.stub,
                oom_kills=oom_kills(),
            )
        )
        self.channel.start()
        self._watch_signals()
        sys.excepthook = self._on_uncaught
        threading.excepthook = self._on_uncaught_in_thread
        self._thread(self._beat)
        if config.lease_s is not None:
            self._thread(self._watch_lease, config.lease_s)

    def emit(self, event: Event) -> None:
        """Queue an event with its envelope; from any thread."""
        if self._boot is not None and not isinstance(event, Heartbeat):
            self._boot.mark(event, self._uptime_ms())
        line = encode_event(event, self._envelope())
        if isinstance(event, Op):
            self.channel.send_behind(line)  # One for each reply, which nobody waits for.
        else:
            self.channel.send(line)

    def finish_boot(self) -> None:
        """Emit `boot_profile`: where the time since the start of the process went."""
        phases = {} if self._boot is None else self._boot.phases_ms()
        self._boot = None
        self.emit(BootProfile(phases_ms=phases))

    def leave(self, end: End, flush_s: float = FLUSH_S) -> NoReturn:
        """Write `exiting`, flush, end the process; the first caller's reason wins."""
        if end.reason == "stdout_closed":
            os._exit((self._end or end).code)  # Nothing can be written any more.
        if not self._leaving.acquire(blocking=False):
            while True:  # Another thread is ending the process.
                time.sleep(FLUSH_S)
        self._end = end
        served = self.requests_served()
        exiting = Exiting(code=int(end.code), reason=end.reason, requests_served=served)
        self.channel.finish(encode_event(exiting, self._envelope()), flush_s)
        # Not sys.exit: a library's thread or exit handler must not keep the process alive.
        os._exit(end.code)

    def abort(self, end: End) -> NoReturn:
        """End the process from a watching thread, in the middle of whatever it does."""
        _say(f"{end.reason}: ending")
        self.leave(end, ABORT_FLUSH_S)

    def _envelope(self) -> Envelope:
        return Envelope(
            stage=self._config.stage,
            wall_ms=time.time_ns() // 1_000_000,
            uptime_ms=round(self._uptime_ms(), 3),
        )

    def _uptime_ms(self) -> float:
        return (time.monotonic() - self._born_s) * 1000

    def _thread(self, target: Callable[..., None], *args: object) -> None:
        name = _THREAD_PREFIX + target.__name__.strip("_")
        threading.Thread(target=target, args=args, name=name, daemon=True).start()

    def _beat(self) -> None:
        while True:
            time.sleep(self._config.heartbeat_s)
            kv_bytes, sessions = self.kv_held() if self.kv_held else (None, None)
            self.emit(
                Heartbeat(
                    rss_mb=resident_mb(),
                    requests_served=self.requests_served(),
                    kv_bytes=kv_bytes,
                    sessions=sessions,
                    oom_kills=oom_kills(),
                )
            )

    def _watch_lease(self, lease_s: float) -> None:
        pause_s = min(1.0, lease_s / 4)
        while True:
            before_s = time.monotonic()
            time.sleep(pause_s)
            now_s = time.monotonic()
            if now_s - before_s > lease_s / 2:
                continue  # The whole process was stopped; let the reader thread have its turn.
            if now_s - self.channel.last_heard_s > lease_s:
                self.abort(End("lease_expired", ExitCode.PEER_GONE))

    def _watch_signals(self) -> None:
        # Python runs signal handlers between the main thread's bytecodes, so never during a long
        # op. The wake-up descriptor is written at once, and a thread reads it.
        woken_fd, wakeup_fd = os.pipe()
        os.set_blocking(wakeup_fd, False)
        signal.set_wakeup_fd(wakeup_fd, warn_on_full_buffer=False)
        for number in _SIGNALS:
            signal.signal(number, lambda *_: None)
        self._thread(self._on_signals, woken_fd)

    def _on_signals(self, woken_fd: int) -> None:
        number = self._next_signal(woken_fd)
        name = signal.Signals(number).name
        end = End(f"signal {name}", 128 + number)
        self.emit(SignalReceived(signal=name))
        if self._boot is not None:
            self.leave(end)  # Nothing is being answered yet.
        self.channel.stop(end)  # The server takes its leave after the op it works on.
        self._thread(self._end_after_grace, end)
        self._next_signal(woken_fd)
        self.leave(end)

    def _next_signal(self, woken_fd: int) -> int:
        while (number := os.read(woken_fd, 1)[0]) not in _SIGNALS:
            pass
        return number

    def _end_after_grace(self, end: End) -> None:
        time.sleep(SIGNAL_GRACE_S)
        self.leave(end)

    def _on_uncaught(
        self, kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        text = "".join(traceback.format_exception(kind, error, trace))
        self.emit(UncaughtException(error=str(error), error_type=kind.__name__, traceback=text))
        _say(text)
        self.leave(End("uncaught_exception", ExitCode.UNCAUGHT))

    def _on_uncaught_in_thread(self, args: threading.ExceptHookArgs) -> None:
        name = args.thread.name if args.thread else ""
        if name.startswith(_THREAD_PREFIX) and args.exc_value is not None:
            self._on_uncaught(args.exc_type, args.exc_value, args.exc_traceback)
        threading.__excepthook__(args)  # A library's thread: its own affair, but told on stderr.


def _say(text: str) -> None:
    with contextlib.suppress(OSError):  # Perhaps nobody reads stderr either.
        os.write(2, f"worker: {text}\n".encode())
