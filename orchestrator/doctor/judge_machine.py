"""Judge a host's memory, disk, clock and connection."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from orchestrator.bundle.words import span
from orchestrator.doctor.link import Pings, Rate
from orchestrator.doctor.mend import Mend
from orchestrator.doctor.result import Result, Status
from orchestrator.placement.amounts import room_words, size_words

# The libraries of one worker take some 350 MiB, before any weight.
LEAST_MEMORY_BYTES = 1 << 30
LEAST_DISK_BYTES = 1 << 30
MOST_SKEW_S = 2.0
SLOW_ROUND_TRIP_MS = 100.0
# One token of a model of 8192 channels is 22 KB on the way to each host and from it: some 20 ms.
SLOW_BYTES_PER_S = 1e6


def judge_memory(machine: Mapping[str, Any], mend: Mend) -> Result:
    """Judge what is free, on the cards where there are some."""
    free_bytes, total_bytes = int(machine["free_bytes"]), int(machine["total_bytes"])
    bound = " in its cgroup" if machine.get("is_limited") else ""
    seen = f"has {room_words(free_bytes)} of memory free{bound}, of {room_words(total_bytes)}"
    wanted_bytes = mend.subject.memory_bytes
    who = mend.there("ps", "-eo", "rss,pid,comm", "--sort=-rss")
    if free_bytes < LEAST_MEMORY_BYTES:
        return Result(Status.FAILED, seen, f"{size_words(LEAST_MEMORY_BYTES)} or more", who)
    is_on_cards = bool(machine["gpus"]) and mend.subject.devices != ("cpu",)
    if wanted_bytes > free_bytes and not is_on_cards:
        return Result(
            Status.WARNING, seen, f"{size_words(wanted_bytes)} as memory= allows its stages", who
        )
    return Result(Status.OK, seen)


def judge_disk(disk: Mapping[str, Any], mend: Mend) -> Result:
    """Judge the folder where weights are kept."""
    folder, free_bytes = str(disk["folder"]), int(disk["free_bytes"])
    if not disk["is_writable"]:
        return Result(
            Status.FAILED,
            f"may not write in {disk['existing']}",
            f"a folder that can be written, for weights in {folder}",
            mend.shell(f'sudo install -d -o "$(id -un)" {folder}'),
        )
    seen = f"has {room_words(free_bytes)} free for weights in {folder}"
    if free_bytes < LEAST_DISK_BYTES:
        return Result(
            Status.FAILED,
            seen,
            f"{size_words(LEAST_DISK_BYTES)} or more",
            "free some, or name another folder with --cache-dir or env.HF_HOME=",
        )
    return Result(Status.OK, seen)


def judge_clock(pings: Pings, mend: Mend) -> Result:
    """Judge the clock against ours."""
    ahead_s = pings.clock_ahead_s
    if abs(ahead_s) <= MOST_SKEW_S:
        return Result(Status.OK, f"has the time of here ({ahead_s:+.2f} s)")
    which = "ahead of" if ahead_s > 0 else "behind"
    return Result(
        Status.WARNING,
        f"has a clock {abs(ahead_s):.1f} s {which} the one here",
        f"at most {MOST_SKEW_S:g} s, or certificates and a bundle's times are wrong",
        mend.shell("sudo timedatectl set-ntp true"),
    )


def judge_link(pings: Pings, up: Rate, down: Rate | None) -> Result:
    """Judge round trip and bandwidth."""
    rates = [rate for rate in (up, down) if rate is not None]
    seen = f"answers in {span(pings.round_trip_ms)}, takes {rate_words(up)}" + (
        "" if down is None else f" and sends {rate_words(down)}"
    )
    if min(rate.bytes_per_s for rate in rates) < SLOW_BYTES_PER_S:
        return Result(
            Status.WARNING,
            seen,
            f"{SLOW_BYTES_PER_S / 1e6:g} MB/s, or the prompt of a long text takes minutes",
            "use a nearer host or a faster link",
        )
    if pings.round_trip_ms > SLOW_ROUND_TRIP_MS:
        return Result(
            Status.WARNING,
            seen,
            f"{SLOW_ROUND_TRIP_MS:g} ms, as each token waits for a round trip to every host",
            "use a nearer host, or fewer stages",
        )
    return Result(Status.OK, seen)


def rate_words(rate: Rate) -> str:
    """Return a rate as people read it."""
    about = "at most " if rate.is_bound else ""
    if rate.bytes_per_s >= 1e6:
        return f"{about}{rate.bytes_per_s / 1e6:.3g} MB/s"
    return f"{about}{rate.bytes_per_s / 1e3:.3g} kB/s"
