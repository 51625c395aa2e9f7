"""Broken runs in which the orchestrator itself, or what it leaves, is the matter."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path

from tests.support.faults.lab import ENDLESS, Lab, local, signal_run


def orchestrator_killed(lab: Lab) -> Path:
    return lab.run(["local", "local"], *ENDLESS, act=signal_run(signal.SIGKILL))


def orchestrator_terminated(lab: Lab) -> Path:
    return lab.run(["local", "local"], *ENDLESS, act=signal_run(signal.SIGTERM))


def ctrl_c(lab: Lab) -> Path:
    return lab.run(["local", "local"], *ENDLESS, act=signal_run(signal.SIGINT))


def prompt_refused(lab: Lab) -> Path:
    return lab.run(["local", "local"], "--raw", "--prompt", "")


def bundle_disk_full(lab: Lab) -> Path:
    disk = small_disk(lab, 150_000)
    words = ("--max-new-tokens", "2000")
    return moved(lab, lab.run(["local", "local"], *words, bundles=disk / "bundles"))


def bundle_cut(lab: Lab) -> Path:
    """The machine went down: the last lines of every file are cut or gone."""
    bundle = lab.run(["local", local("segfault@3"), "local"])
    (bundle / "end.json").unlink()
    (bundle / "failures.jsonl").write_bytes((bundle / "failures.jsonl").read_bytes()[:-30])
    events = bundle / "events.jsonl"
    events.write_bytes(events.read_bytes()[:-25])
    return bundle


def bundle_of_the_future(lab: Lab) -> Path:
    """A later version wrote it: kinds, fields and files that this one does not know."""
    bundle = lab.run(["local", local("segfault@3"), "local"])
    manifest = json.loads((bundle / "manifest.json").read_text())
    (bundle / "manifest.json").write_text(
        json.dumps(manifest | {"format": 99, "mood": "fine", "version": "9.9.9"})
    )
    with (bundle / "events.jsonl").open("a") as events:
        when = {"wall_ms": manifest["wall_ms"] + 10, "uptime_ms": 1}
        line = {"event": "pp_telepathy", "strength": 11, **when}
        entry = {"stage": 7, "host": "mars", "wall_ms": when["wall_ms"], "line": line}
        events.write(json.dumps(entry) + "\n")
    (bundle / "aliens.jsonl").write_text("{}\n")
    return bundle


def small_disk(lab: Lab, size_bytes: int) -> Path:
    """Mount a small file system until the lab closes."""
    disk = lab.folder / "disk"
    disk.mkdir()
    subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size_bytes}", "tmpfs", str(disk)], check=True
    )
    lab.stack.callback(subprocess.run, ["umount", str(disk)], check=True)
    return disk


def moved(lab: Lab, bundle: Path) -> Path:
    """Copy a bundle to where there is room."""
    to = lab.folder / "moved"
    subprocess.run(["cp", "-r", str(bundle), str(to)], check=True)
    return to
