"""The worker's command line: every option, how it is read, what it means."""

from __future__ import annotations

import argparse
import math
import re
from pathlib import Path
from typing import Any, NoReturn

from worker import __version__
from worker.failures import UsageError
from worker.protocol.exits import ExitCode
from worker.protocol.sizes import parse_bytes

QUANTIZATIONS = ("bfloat16", "int8", "nf4", "int8-weight", "int4-weight")
ENGINES = ("fast", "stock", "graphs")
# What a worker can be started for besides serving. `survey-host` tells what the host has to offer,
# `survey` also what the model costs; the others look after the weights on this host.
ERRANDS = ("survey", "survey-host", "fetch", "list-cache", "verify-cache", "remove-cache")
# More make no op faster; with 100000 the first op ended the process with a segmentation fault.
_MAX_THREADS = 1024
_MAX_CONNECTIONS = 64
# A year; far more than that and `time.sleep` raises, which would end the worker.
_MAX_SECONDS = 31_536_000


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        # What is said of a value must do for those who set it elsewhere, too.
        hint = " (see python -m worker --help)" if message.startswith("unrecognized") else ""
        raise UsageError(f"{message}{hint}")


def as_count(text: str) -> int:
    """Read a whole number from 0 on."""
    if not re.fullmatch(r"[0-9]{1,9}", text):
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number from 0 on")
    return int(text)


def as_positive(text: str) -> int:
    """Read a whole number from 1 on."""
    if not re.fullmatch(r"[0-9]{1,18}", text) or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number from 1 on")
    return int(text)


def as_threads(text: str) -> int:
    """Read a number of threads."""
    count = as_positive(text)
    if count > _MAX_THREADS:
        raise argparse.ArgumentTypeError(
            f"{text!r} threads are too many: give 1 to {_MAX_THREADS}, best the processor's cores"
        )
    return count


def as_connections(text: str) -> int:
    """Read a number of connections."""
    count = as_positive(text)
    if count > _MAX_CONNECTIONS:
        raise argparse.ArgumentTypeError(
            f"{text!r} connections are too many: give 1 to {_MAX_CONNECTIONS}"
        )
    return count


def as_seconds(text: str) -> float:
    """Read a positive number of seconds."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value <= _MAX_SECONDS:
        raise argparse.ArgumentTypeError(
            f"{text!r} is no number of seconds above 0 and up to {_MAX_SECONDS}"
        )
    return value


def as_flag(text: str) -> bool:
    """Read a switch: 1 or 0, true or false, yes or no."""
    known = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}
    if text.lower() not in known:
        raise argparse.ArgumentTypeError(f"{text!r} must be 1 or 0")
    return known[text.lower()]


def as_engine(text: str) -> str:
    """Read the name of an engine."""
    if text not in ENGINES:
        raise argparse.ArgumentTypeError(f"{text!r} is none of {', '.join(ENGINES)}")
    return text


def as_device(text: str) -> str:
    """Read a device's name."""
    if not re.fullmatch(r"auto|cpu|mps|cuda(:[0-9]{1,3})?", text):
        raise argparse.ArgumentTypeError(f"{text!r} is none of auto, cpu, cuda, cuda:N, mps")
    return text


def as_size(text: str) -> int:
    """Read a size in bytes, with a unit or without."""
    try:
        return parse_bytes(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


_Options = dict[str, dict[str, Any]]
_MODEL: _Options = {
    "--model-id": {"metavar": "M", "help": "local folder or hub id (env MODEL)"},
    "--revision": {"metavar": "R", "help": "branch, tag or commit on the hub"},
    "--quantization": {"choices": QUANTIZATIONS, "help": "weights in memory (bfloat16)"},
    "--max-context": {"type": as_positive, "metavar": "N", "help": "positions of one request"},
    "--trust-remote-code": {"action": "store_true", "help": "run code that comes with the model"},
    "--only": {"choices": ERRANDS, "help": "do this, tell it as events, and end; serve nothing"},
    "--stub": {"action": "store_true", "help": "no model, hashes (env PP_WORKER_STUB=1)"},
}
_LAYERS: _Options = {
    "--stage": {"type": as_count, "metavar": "I", "help": "which even share, from 0 (env STAGE)"},
    "--num-stages": {"type": as_positive, "metavar": "N", "help": "shares (env NUM_STAGES)"},
    "--shard-start": {"type": as_count, "metavar": "A", "help": "or: the first layer"},
    "--shard-end": {"type": as_positive, "metavar": "B", "help": "and one past the last layer"},
}
_MACHINE: _Options = {
    "--device": {"type": as_device, "metavar": "D", "help": "auto, cpu, cuda, cuda:N, mps (auto)"},
    "--threads": {"type": as_threads, "metavar": "N", "help": "compute threads on a CPU"},
    "--engine": {
        "type": as_engine,
        "metavar": "E",
        "help": "fast; stock: torch's kernels, the model's own forward; graphs: CUDA graphs, never "
        "run on a GPU so far (env STAGELINE_ENGINE)",
    },
    "--memory-limit": {
        "dest": "memory_limit_bytes",
        "type": as_size,
        "metavar": "SIZE",
        "help": "the most the stage may use, as 20GiB",
    },
    "--prefill-chunk": {
        "type": as_positive,
        "metavar": "N",
        "help": "the most tokens in one op, for the memory check (256)",
    },
    "--max-sessions": {"type": as_positive, "metavar": "N", "help": "KV caches held (64)"},
    "--kv-budget": {
        "dest": "kv_budget_bytes",
        "type": as_size,
        "metavar": "SIZE",
        "help": "the most all KV caches may hold together, as 4GiB",
    },
    "--no-mmap": {
        "dest": "mmap",
        "action": "store_false",
        "help": "with --engine stock: read weights, map no files",
    },
}
_WEIGHTS: _Options = {
    "--cache-dir": {
        "type": Path,
        "metavar": "DIR",
        "help": "keeps fetched weights ($HF_HOME/stageline; env STAGELINE_CACHE)",
    },
    "--fetch-connections": {
        "type": as_connections,
        "metavar": "N",
        "help": "connections to the hub at once (4)",
    },
    "--whole-files": {
        "action": "store_true",
        "help": "fetch whole weight files, as from a hub that serves no ranges",
    },
    "--repair": {"action": "store_true", "help": "with verify-cache: remove what is broken"},
}
_LINK: _Options = {
    "--nonce": {"metavar": "TEXT", "help": "repeated in `starting`; makes the starter the owner"},
    "--await-environment": {
        "action": "store_true",
        "help": "take the op `environment` as the first line, before loading",
    },
    "--lease-s": {"type": as_seconds, "metavar": "S", "help": "end after a silence this long"},
    "--heartbeat-s": {"type": as_seconds, "metavar": "S", "help": "between heartbeats (30)"},
    "--download-progress-s": {
        "type": as_seconds,
        "metavar": "S",
        "help": "between progress events (10; env PP_DOWNLOAD_PROGRESS_INTERVAL_SECS)",
    },
}


def parser() -> argparse.ArgumentParser:
    """Return the command line; the environment variable of an option stands in its help."""
    found = _Parser(
        prog="python -m worker",
        description="Serve one stage of a model: ops as JSON lines on stdin, answers on stdout.",
        epilog="protocol.md describes the lines; exit codes: "
        + "; ".join(f"{code.value} {code.meaning}" for code in ExitCode),
        allow_abbrev=False,
    )
    groups = {
        "model": _MODEL,
        "layers": _LAYERS,
        "machine": _MACHINE,
        "weights from a hub": _WEIGHTS,
        "link": _LINK,
    }
    for title, options in groups.items():
        group = found.add_argument_group(title)
        for flag, settings in options.items():
            # None tells "not given" from a given default; the defaults are WorkerConfig's.
            group.add_argument(flag, **{"default": None, **settings})
    found.add_argument("--version", action="version", version=f"stageline worker {__version__}")
    return found
