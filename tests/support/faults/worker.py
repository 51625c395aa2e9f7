"""A stub worker that does what FAULT says, as `KIND@WHEN`; run it like `python -m worker`.

WHEN is `load`, or the number of the forward (1 is the prefill) in which it happens. Everything but
the backend is the product's own code.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from typing import Any

from worker.backends.base import KVCache, ModelFacts, OutOfDeviceMemory, Placement
from worker.backends.stub import NUM_LAYERS, StubArray, StubBackend
from worker.cli import Opened, run
from worker.config import WorkerConfig, read_config
from worker.lifecycle import Lifecycle
from worker.protocol.events import Event
from worker.protocol.schema import ErrorCode, ProtocolError
from worker.protocol.stage import StageSlice


class FaultyBackend(StubBackend):
    """The stub, but for one forward."""

    def __init__(self, own: StageSlice, life: Lifecycle, fault: str, when: str) -> None:
        super().__init__(own)
        self._life = life
        self._fault = fault
        self._when = when
        self._forwards = 0

    def forward(
        self,
        inputs: StubArray,
        cache: KVCache | None,
        placement: Placement,
        *,
        every_row: bool = False,
    ) -> StubArray:
        """Break when it is time; be slow always where that is the fault."""
        self._forwards += 1
        if self._fault.startswith("slow:"):
            time.sleep(float(self._fault.partition(":")[2]))
        elif self._when == str(self._forwards):
            FAULTS[self._fault](self._life)
        return super().forward(inputs, cache, placement)


class FactlessBackend(StubBackend):
    """A backend that fails where nothing is expected to."""

    @property
    def facts(self) -> ModelFacts:
        """Fail."""
        raise AttributeError("the model has no attribute 'facts'")


def allocate(life: Lifecycle) -> None:
    """Take memory until something ends it."""
    held = []
    while True:
        held.append(bytearray(b"x" * (8 << 20)))


def memory_error(life: Lifecycle) -> None:
    """Ask python for more than there is."""
    bytearray(1 << 60)


def bad_free(life: Lifecycle) -> None:
    """Let glibc find a broken heap."""
    libc = ctypes.CDLL(None)
    libc.free.argtypes = [ctypes.c_void_p]
    libc.free(ctypes.addressof(ctypes.create_string_buffer(64)) + 8)


def segfault(life: Lifecycle) -> None:
    """Read where nothing is."""
    ctypes.string_at(0)


def bus_error(life: Lifecycle) -> None:
    """Read a mapped file that has shrunk."""
    with tempfile.TemporaryFile() as file:
        file.truncate(2 * mmap.PAGESIZE)
        mapped = mmap.mmap(file.fileno(), 2 * mmap.PAGESIZE, access=mmap.ACCESS_READ)
        file.truncate(0)
        mapped[mmap.PAGESIZE]


def leave(life: Lifecycle) -> None:
    """End as a library may."""
    os.write(2, b"libfoo: licence expired\n")
    os._exit(7)


def print_to_protocol(life: Lifecycle) -> None:
    """Put a line of a library among the messages."""
    life.channel.send(b"Loading checkpoint shards: 100%\n")


def hang(life: Lifecycle) -> None:
    """Never come back."""
    threading.Event().wait()


def context_full(life: Lifecycle) -> None:
    """Refuse as a full stage does."""
    raise ProtocolError(ErrorCode.CONTEXT_FULL, "position 4096 is past the 4096 this stage holds")


def device_full(life: Lifecycle) -> None:
    """Fail as a full device does."""
    raise OutOfDeviceMemory("tried to allocate 4 GiB")


def odd_error(life: Lifecycle) -> None:
    """Fail as a defect does."""
    raise IndexError("list index out of range")


FAULTS: dict[str, Callable[[Lifecycle], None]] = {
    "allocate": allocate,
    "memory_error": memory_error,
    "bad_free": bad_free,
    "segfault": segfault,
    "bus_error": bus_error,
    "leave": leave,
    "print": print_to_protocol,
    "hang": hang,
    "context_full": context_full,
    "device_full": device_full,
    "odd_error": odd_error,
}


def open_faulty(config: WorkerConfig, emit: Callable[[Event], None]) -> Opened:
    """Open the stage; faults `@load` happen here."""
    life: Any = emit.__self__  # type: ignore[attr-defined]
    assert isinstance(life, Lifecycle)
    fault, _, when = os.environ.get("FAULT", "").partition("@")
    identity = config.identity(NUM_LAYERS)
    if fault == "no_facts":
        return identity, FactlessBackend(identity.slice)
    if when == "load":
        FAULTS[fault](life)
    return identity, FaultyBackend(identity.slice, life, fault, when)


def shift_clock(hours: float) -> None:
    """Let this host's clock be off."""
    real = time.time_ns
    time.time_ns = lambda: real() + int(hours * 3600e9)


if __name__ == "__main__":
    shift_clock(float(os.environ.get("FAULT_CLOCK_HOURS", "0")))
    run(read_config(sys.argv[1:]), open_faulty)
