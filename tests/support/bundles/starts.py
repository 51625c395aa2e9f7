"""Runs that a stage never started for."""

from __future__ import annotations

from tests.support.bundles.run import Run
from worker.protocol.events import (
    CacheVerified,
    DownloadFailed,
    Exiting,
    Importing,
    ModelLoadFailed,
)


def load_failed(run: Run) -> None:
    run.hello(0)
    run.fetch(0)
    run.hello(1)
    run.fetch(1)
    text = "model 'some/model' has no config.json"
    run.event(1, ModelLoadFailed(error=text, error_type="LoadFailed"))
    run.event(1, Exiting(code=3, reason="load_failed"))
    run.at(1020).fail(1, "not_ready", f"could not load the model: {text}")
    run.ended(1, code=3)
    run.ended(0, signal="SIGTERM", expected=True)
    run.close(3, f"stage 1 on beta could not load the model: {text}")


def memory_refused(run: Run) -> None:
    run.hello(0)
    run.fetch(0)
    run.check_memory(0, 7_000_000_000)
    text = "needs 7 GB, 6 GB are free"
    run.event(0, ModelLoadFailed(error=text, error_type="OutOfMemory"))
    run.ended(0, code=4)
    run.fail(0, "not_ready", text)
    run.close(4, f"stage 0 on alpha {text}")


def download_failed(run: Run) -> None:
    run.hello(1)
    run.fetch(1)
    run.event(1, DownloadFailed(reason="the connection was reset 5 times"))
    run.event(1, ModelLoadFailed(error="no weights", error_type="LoadFailed"))
    run.ended(1, code=3)
    run.close(3)


def unreachable(run: Run) -> None:
    run.start(0)
    run.stderr(1, "ssh: Could not resolve hostname beta: Name or service not known\n")
    run.fail(1, "host_unreachable", "could not be resolved", "connecting")
    run.ended(1, code=255)
    run.ended(0, code=0, expected=True)
    run.close(5, "stage 1 on beta could not be resolved")


def spawn_failed(run: Run) -> None:
    run.fail(0, "spawn_failed", "has no /opt/python", "connecting")
    run.ended(0, code=127)
    run.close(5, "stage 0 on alpha has no /opt/python")


def version_mismatch(run: Run) -> None:
    run.hello(0)
    run.hello(1, protocol_version="2.0")
    run.fail(1, "version_mismatch", "speaks protocol 2.0, this is 1.0", "connecting")
    run.ended(1, signal="SIGKILL", expected=True)
    run.close(5, "stage 1 on beta speaks protocol 2.0, this is 1.0")


def never_ready(run: Run) -> None:
    run.hello(0)
    run.at(110).event(0, Importing(library="torch"))
    run.at(60_000).fail(0, "not_ready", "was not ready within 60 s")
    run.ended(0, signal="SIGKILL", expected=True)
    run.close(5, "stage 0 on alpha was not ready within 60 s")


def cache_damaged(run: Run) -> None:
    run.hello(1)
    run.fetch(1)
    checked = CacheVerified(
        model_id="some/model", commit="c0ffee", file="a.safetensors", size_bytes=9, ok=False
    )
    run.event(1, checked)
    text = "the hub cannot be reached (Connection refused); check the network"
    run.event(1, DownloadFailed(reason=text))
    run.event(1, ModelLoadFailed(error=text, error_type="LoadFailed"))
    run.fail(1, "not_ready", f"cannot serve: {text}")
    run.ended(1, code=3)
    run.close(3, f"stage 1 on beta cannot serve: {text}")
