"""The keys of a line of hosts.txt and how their values are read."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from worker.protocol.sizes import parse_bytes

QUANTIZATIONS = ("bfloat16", "int8", "nf4", "int8-weight", "int4-weight")
ENGINES = ("fast", "stock", "graphs")
CODES = ("shipped", "installed")
MAX_SLOTS = 1024

_DEVICE = re.compile(r"auto|cpu|mps|cuda(:\d{1,3})?", re.ASCII)


def _slots(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,6}", text) or not 1 <= int(text) <= MAX_SLOTS:
        raise ValueError(f"slots={text} must be a number from 1 to {MAX_SLOTS}")
    return int(text)


def _layers(text: str) -> tuple[int, int]:
    match = re.fullmatch(r"([0-9]{1,6}):([0-9]{1,6})", text)
    if not match or int(match[1]) >= int(match[2]):
        raise ValueError(
            f"layers={text} must be START:END with START below END, for example 0:16 for the "
            "first sixteen"
        )
    return int(match[1]), int(match[2])


def read_device(text: str) -> str:
    """Read a device; ValueError says what it must be."""
    if not _DEVICE.fullmatch(text):
        raise ValueError(f"device={text} must be auto, cpu, cuda, cuda:N or mps")
    return text


def _quantization(text: str) -> str:
    if text not in QUANTIZATIONS:
        raise ValueError(f"quantization={text} must be one of {', '.join(QUANTIZATIONS)}")
    return text


def _engine(text: str) -> str:
    if text not in ENGINES:
        raise ValueError(f"engine={text} must be one of {', '.join(ENGINES)}")
    return text


def _code(text: str) -> str:
    if text not in CODES:
        raise ValueError(
            f"code={text} must be shipped (the worker's code is sent there) or installed (what "
            "python= has installed is run)"
        )
    return text


def _memory(text: str) -> int:
    if re.fullmatch(r"[0-9.]+\s*", text):
        raise ValueError(f"memory={text} has no unit; write for example memory=20GiB")
    try:
        return parse_bytes(text)
    except ValueError as error:
        raise ValueError(f"memory={error}") from None


# key -> (field of HostEntry, how its value is read)
KEYS: dict[str, tuple[str, Callable[[str], Any]]] = {
    "slots": ("slots", _slots),
    "layers": ("layers", _layers),
    "python": ("python", str),
    "code": ("code", _code),
    "device": ("device", read_device),
    "quantization": ("quantization", _quantization),
    "engine": ("engine", _engine),
    "memory": ("memory_bytes", _memory),
}
