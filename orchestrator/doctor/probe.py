"""The doctor's program on a host: it answers questions, one line of JSON each.

Its text is sent over the connection. Python 3.7 must run it, so that even an old host can say
what it has; it imports nothing but the standard library, and nothing that takes time.
"""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import time
from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")
# cgroup v1 says "no limit" with a number near 2^63.
NO_LIMIT_BYTES = 1 << 60
NVIDIA_S = 5
CHUNK_BYTES = 1 << 16


def main(nonce: str) -> None:
    """Answer until stdin ends."""
    tell(nonce, {"ready": True})
    while True:
        line = sys.stdin.buffer.readline()
        if not line:
            return
        question = json.loads(line.decode("ascii"))
        try:
            answer = ANSWERS[question["ask"]](question)
        except Exception as error:  # noqa: BLE001 - one failed look must not end the others
            answer = {"error": f"{type(error).__name__}: {error}"}
        tell(nonce, answer)


def tell(nonce: str, answer: "dict[str, object]") -> None:
    """Write one answer."""
    sys.stdout.write(f"{nonce} {json.dumps(answer)}\n")
    sys.stdout.flush()


def packages(question: "dict[str, object]") -> "dict[str, object]":
    """Return the versions of the named packages, None for those that lack; nothing is imported."""
    if sys.version_info < (3, 8):  # noqa: UP036 - see above
        return {"versions": {}}
    from importlib import metadata

    versions: dict[str, object] = {}
    for name in question["names"]:  # type: ignore[attr-defined]
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            versions[name] = None
    # A virtual environment has the mark of the Python that it was made with, and does not obey it.
    mark = Path(sysconfig.get_path("stdlib")) / "EXTERNALLY-MANAGED"
    is_managed = sys.prefix == sys.base_prefix and mark.exists()
    return {"versions": versions, "is_managed": is_managed}


def machine(question: "dict[str, object]") -> "dict[str, object]":
    """Return what the host computes with."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    total_bytes, free_bytes = memory()
    limits = cgroup_free_bytes()
    return {
        "host": os.uname().nodename,
        "system": f"{os.uname().sysname} {os.uname().machine}",
        "cores": cores,
        "total_bytes": total_bytes,
        "free_bytes": min([free_bytes, *limits]),
        "is_limited": bool(limits) and min(limits) < free_bytes,
        "gpus": gpus(),
        "has_mps": os.uname().sysname == "Darwin" and os.uname().machine == "arm64",
    }


def memory() -> "tuple[int, int]":
    """Return the bytes that the machine has, and those that are free."""
    amounts = {}
    try:
        with Path("/proc/meminfo").open() as lines:
            for line in lines:
                words = line.split()
                amounts[words[0]] = int(words[1]) * 1024
    except OSError:  # not Linux; nothing portable tells what is free
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        return total, total
    return amounts["MemTotal:"], amounts.get("MemAvailable:", amounts["MemFree:"])


def cgroup_free_bytes() -> "list[int]":
    """Return what each limited cgroup around this process leaves, versions 1 and 2."""
    free = []
    for line in read(Path("/proc/self/cgroup")).splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers:
            names, start = ("memory.max", "memory.current", "inactive_file"), CGROUPS
        elif "memory" in controllers.split(","):
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
            start = CGROUPS / "memory"
        else:
            continue
        group = start / path.strip("/")
        for folder in [group, *group.parents]:
            limit, used = (read(folder / name).strip() for name in names[:2])
            if limit.isdigit() and used.isdigit() and int(limit) < NO_LIMIT_BYTES:
                statistics = dict(
                    line.split()[:2] for line in read(folder / "memory.stat").splitlines()
                )
                free.append(max(0, int(limit) - int(used) + int(statistics.get(names[2], 0))))
    return free


def read(path: Path) -> str:
    """Return a small file's text, nothing where it cannot be read."""
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError):
        return ""


def gpus() -> "list[dict[str, object]]":
    """Return NVIDIA's cards as their own program lists them."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return []
    command = [program, "--query-gpu=name,memory.total,memory.free,driver_version"]
    try:
        done = subprocess.run(
            [*command, "--format=csv,noheader,nounits"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=NVIDIA_S,
        )
    except (OSError, subprocess.TimeoutExpired):
        return []
    cards = []
    for line in done.stdout.decode("utf-8", "replace").splitlines():
        words = [word.strip() for word in line.split(",")]
        if len(words) == 4 and words[1].isdigit() and words[2].isdigit():
            total, free = int(words[1]) << 20, int(words[2]) << 20
            cards.append(
                {"name": words[0], "total_bytes": total, "free_bytes": free, "driver": words[3]}
            )
    return cards


def disk(question: "dict[str, object]") -> "dict[str, object]":
    """Return the folder where a worker would keep weights, and what is free there."""
    given = str(question["folder"] or os.environ.get("STAGELINE_CACHE") or "")  # noqa: TID251
    folder = Path(given) if given else hub_home() / "stageline"
    folder = folder.expanduser().absolute()
    there = next(path for path in [folder, *folder.parents] if path.exists())
    room = os.statvfs(there)
    return {
        "folder": str(folder),
        "existing": str(there),
        "free_bytes": room.f_bavail * room.f_frsize,
        "is_writable": there.is_dir() and os.access(there, os.W_OK | os.X_OK),
    }


def hub_home() -> Path:
    """Return the folder of huggingface_hub, as it chooses it."""
    cache = os.environ.get("XDG_CACHE_HOME", "~/.cache")  # noqa: TID251 - of the host, not ours
    home = os.environ.get("HF_HOME", f"{cache}/huggingface")  # noqa: TID251
    return Path(os.path.expandvars(home))


def clock(question: "dict[str, object]") -> "dict[str, object]":
    """Return the time here."""
    return {"wall_s": time.time_ns() / 1e9}


def take(question: "dict[str, object]") -> "dict[str, object]":
    """Take a payload of so many bytes."""
    left = int(question["bytes"])  # type: ignore[call-overload]
    while left:
        chunk = sys.stdin.buffer.read(min(left, CHUNK_BYTES))
        if not chunk:
            break
        left -= len(chunk)
    return {"taken": True}


def give(question: "dict[str, object]") -> "dict[str, object]":
    """Give a line of so many bytes, and the answer behind it."""
    sys.stdout.write("x" * (int(question["bytes"]) - 1) + "\n")  # type: ignore[call-overload]
    return {"given": True}


ANSWERS = {
    "packages": packages,
    "machine": machine,
    "disk": disk,
    "clock": clock,
    "take": take,
    "give": give,
}

# Python has read this text from a connection: its last argument is the mark of our lines. Where it
# is imported, as by a test, it does nothing.
if __name__ == "__main__":
    main(sys.argv[1])
