"""A worker whose model misbehaves on the prompts that say so; run it like `python -m worker`.

Everything but the backend is the product's own code.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from worker.backends.base import KVCache, ModelFacts, OutOfDeviceMemory, Placement
from worker.backends.stub import NUM_LAYERS, StubArray, StubBackend
from worker.cli import Opened, run
from worker.config import WorkerConfig, read_config
from worker.failures import LoadFailed
from worker.protocol.events import Event, Importing
from worker.protocol.exits import ExitCode


class OddBackend(StubBackend):
    """The stub, but for its tokenizer, and for layers that give back what they take in."""

    def forward(
        self,
        inputs: StubArray,
        cache: KVCache | None,
        placement: Placement,
        *,
        every_row: bool = False,
    ) -> StubArray:
        """Pass the hidden states through: nothing is computed, only moved."""
        return inputs

    def tokenize(
        self,
        prompt: str | None,
        messages: Sequence[Mapping[str, Any]] | None,
        tools: Sequence[Mapping[str, Any]] | None = None,
        template_options: Mapping[str, Any] | None = None,
    ) -> list[int]:
        """Do what the prompt says."""
        words = (prompt or "").split()
        match words[:1]:
            case ["hang"]:
                say("hanging")
                threading.Event().wait()
            case ["print"]:
                make_noise()
            case ["raise"]:
                raise ValueError("an odd model")
            case ["exhaust"]:
                raise OutOfDeviceMemory("4 GiB asked")
            case ["memory"]:
                raise MemoryError("4 GiB asked")
            case ["count"]:
                return list(range(int(words[1])))
            case ["environment"]:
                return list(os.environb.get(words[1].encode(), b""))
            case ["wait-for"]:
                # Until the other end of a fifo opens: an op as long as the test wants.
                say("waiting")
                return [int(Path(words[1]).read_text(encoding="ascii"))]
        return super().tokenize(prompt, messages, tools, template_options)


class FactlessBackend(StubBackend):
    """A backend that fails where nothing is expected to."""

    @property
    def facts(self) -> ModelFacts:
        """Fail."""
        raise AttributeError("no facts")


def open_odd(config: WorkerConfig, emit: Callable[[Event], None]) -> Opened:
    """Open the stage, or do what `--model-id` says."""
    identity = config.identity(NUM_LAYERS)
    match config.model_id:
        case "load-hangs":
            emit(Importing(library="hangs"))
            threading.Event().wait()
        case "load-takes-6-s":
            time.sleep(6)  # nobody can be waited for: this is a load that takes its time
        case "load-fails":
            raise LoadFailed("folder x has no config.json: give a model folder")
        case "load-too-big":
            raise LoadFailed("needs 3 GiB, 2 GiB are free", ExitCode.OUT_OF_MEMORY)
        case "load-raises":
            raise KeyError("model.layers.0")
        case "no-facts":
            return identity, FactlessBackend(identity.slice)
    return identity, OddBackend(identity.slice)


def make_noise() -> None:
    """Write to stdout in every way a library can."""
    print("noise by print")
    sys.stdout.write("noise by sys.stdout\n")
    sys.__stdout__.write("noise by sys.__stdout__\n")  # type: ignore[union-attr]
    sys.stdout.flush()
    sys.__stdout__.flush()  # type: ignore[union-attr]
    os.write(1, b"noise by fd 1\n")
    libc = ctypes.CDLL(None)
    libc.puts(b"noise by C")
    libc.fflush(None)
    subprocess.run(["echo", "noise by a child"], check=True)


def say(text: str) -> None:
    """Tell the test, on stderr, that a point is reached."""
    os.write(2, text.encode() + b"\n")


if __name__ == "__main__":
    run(read_config(sys.argv[1:]), open_odd)
