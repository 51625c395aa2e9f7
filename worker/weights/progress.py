"""Report how far a download is, at least every few seconds."""

from __future__ import annotations

import threading
from collections.abc import Callable
from time import monotonic
from typing import Any

from huggingface_hub.utils.tqdm import tqdm

from worker.protocol.events import DownloadProgress


class DownloadMeter:
    """Counts bytes and emits `pp_download_progress` from entry to exit, from its own thread.

    The first report is at entry (the total is known then), the last at exit, whether the block
    succeeded or not; between them one every `interval_s`, also while nothing arrives. Bytes that
    an earlier try left here count as done, but not for the rate.
    """

    def __init__(
        self,
        total_bytes: int,
        report: Callable[[DownloadProgress], None],
        *,
        interval_s: float,
        stage: int | None,
    ) -> None:
        self.total_bytes = total_bytes
        self._report = report
        self._interval_s = interval_s
        self._stage = stage
        self._done_bytes = 0
        self._had_bytes = 0
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._began_s = 0.0
        self._ticker = threading.Thread(target=self._tick, name="download-meter", daemon=True)

    def add(self, num_bytes: int) -> None:
        """Count bytes in; negative when a download starts a file anew. Any thread may call."""
        with self._lock:
            self._done_bytes += num_bytes

    def had(self, num_bytes: int) -> None:
        """Count bytes in that this process did not have to fetch. Any thread may call."""
        with self._lock:
            self._had_bytes += num_bytes

    def __enter__(self) -> DownloadMeter:
        self._began_s = monotonic()
        self._emit()
        self._ticker.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        self._ended.set()
        self._ticker.join()
        self._emit()

    def _tick(self) -> None:
        while not self._ended.wait(self._interval_s):
            self._emit()

    def _emit(self) -> None:
        elapsed_s = monotonic() - self._began_s
        with self._lock:
            fetched = max(self._done_bytes, 0)
            done = min(fetched + self._had_bytes, self.total_bytes)
        self._report(
            DownloadProgress(
                stage_index=self._stage,
                bytes_done=done,
                bytes_total=self.total_bytes,
                bytes_fetched=fetched,
                elapsed_ms=round(elapsed_s * 1e3, 1),
                mbps=round(fetched / 1e6 / elapsed_s, 3) if elapsed_s > 0 else 0.0,
            )
        )


def counting_bar(count: Callable[[int], None]) -> type[Any]:
    """Return a progress bar class that draws nothing and hands the bytes on."""

    class CountingBar(tqdm):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **{**kwargs, "disable": True})  # type: ignore[no-untyped-call]
            count(self.n)  # what an earlier, interrupted download left

        def update(self, n: float | None = 1) -> bool | None:
            self.n += n or 0
            count(int(n or 0))
            return None

    return CountingBar
