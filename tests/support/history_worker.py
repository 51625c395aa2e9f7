"""A real worker whose outputs are hashes of all it was sent for a request, op boundaries included.

A replay that leaves out, doubles, reorders or cuts anything otherwise gives other tokens. Run it
like `python -m worker`; everything but the backend is the product's own code. A prompt that begins
with `die!` kills it. `--model-id` says what is odd about it, see `open_history`.
"""

from __future__ import annotations

import hashlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.support.history_backend import HistoryBackend, HistoryCache, Rows
from worker.backends.base import Placement, Sampled
from worker.cli import Opened, run
from worker.config import WorkerConfig, read_config
from worker.failures import LoadFailed
from worker.protocol.events import Event, LoadingModel
from worker.protocol.ops import Sampling
from worker.protocol.stage import StageSlice

NUM_LAYERS = 6
VOCAB_SIZE = 100
MAX_CONTEXT = 4096
# Of a chat: before a question, before an answer, behind each.
QUESTION, ANSWER, END = 95, 96, 97


class BoundaryBackend(HistoryBackend):
    """Each row also carries where its op began and how long it was."""

    def __init__(
        self,
        own: StageSlice,
        kernel: str = "hash",
        budget: int | None = None,
        fatal: int | None = None,
        ends: tuple[int, ...] = (),
    ) -> None:
        super().__init__(own)
        self._fatal = fatal
        self.facts = replace(
            self.facts,
            max_context=MAX_CONTEXT,
            numerics={"linear": kernel},
            kv_budget_bytes=budget,
            eos_token_ids=ends,
        )

    def tokenize(
        self,
        prompt: str | None,
        messages: Sequence[Mapping[str, Any]] | None,
        tools: Sequence[Mapping[str, Any]] | None = None,
        template_options: Mapping[str, Any] | None = None,
    ) -> list[int]:
        """Return the code points, or die; messages hold their ids in decimal."""
        if messages is not None:
            return chat_ids([(message["role"], message["content"]) for message in messages])
        if (prompt or "").startswith("die!"):
            os.kill(os.getpid(), signal.SIGKILL)
        return super().tokenize(prompt, messages)

    def forward(
        self,
        inputs: Rows,
        cache: HistoryCache | None,
        placement: Placement,
        *,
        every_row: bool = False,
    ) -> Rows:
        """Hash each marked row with all marked rows before it."""
        if cache is None:
            return inputs
        if placement.position == self._fatal:
            os.kill(os.getpid(), signal.SIGKILL)
        mark = f"|{placement.position}+{placement.seq_len}".encode()
        marked = [[row + mark for row in rows] for rows in inputs]
        return super().forward(marked, cache, placement)

    def sample(self, outputs: Rows, options: Sampling, placement: Placement) -> Sampled:
        """Return a pure function of the last row, and of seed and position where drawn."""
        position = placement.position + placement.seq_len - 1
        token = chosen_token(outputs[0][-1], position, options.temperature, options.seed)
        return Sampled(token_ids=(token,))


def chat_ids(messages: Sequence[tuple[str, str]]) -> list[int]:
    """Return the ids of a chat, up to where an answer begins."""
    ids: list[int] = []
    for role, content in messages:
        mark = ANSWER if role == "assistant" else QUESTION
        ids += [mark, *map(int, content.split()), END]
    return [*ids, ANSWER]


def chosen_token(row: bytes, position: int, temperature: float, seed: int) -> int:
    """Return the token that the last stage chooses."""
    draw = f"{seed}@{position}".encode() if temperature else b""
    return hashlib.sha256(row + draw).digest()[0] % VOCAB_SIZE


def open_history(config: WorkerConfig, emit: Callable[[Event], None]) -> Opened:
    """Open the stage, but as `--model-id` says.

    `hold:FILE` waits for ever in its first start; `late:FILE` in all others; `once:FILE` cannot
    load in all others. FILE is what they know by whether it is the first. `doomed:FILE` crashes as
    long as FILE exists. `kernel:NAME` is another implementation. `budget:BYTES` bounds its caches.
    `fatal:N` is killed by an op at position N. `chat:BYTES` ends answers, and bounds its caches.
    """
    identity = config.identity(NUM_LAYERS)
    kind, _, value = (config.model_id or "").partition(":")
    is_first = not Path(value).exists()
    if kind in ("hold", "late", "once"):
        Path(value).touch()  # Before it says that it loads: a fault may end it right after that.
    emit(LoadingModel(model_id="history", layer_range=str(identity.slice), quantization="none"))
    if (kind, is_first) in (("hold", True), ("late", False)):
        threading.Event().wait()
    if (kind, is_first) == ("once", False):
        raise LoadFailed("the disk is gone")
    if (kind, is_first) == ("doomed", False):
        os.kill(os.getpid(), signal.SIGKILL)
    budget_bytes = int(value) if kind in ("budget", "chat") else None
    ends = (END,) if kind == "chat" else ()
    kernel = value if kind == "kernel" else "hash"
    fatal = int(value) if kind == "fatal" else None
    backend: Any = BoundaryBackend(identity.slice, kernel, budget_bytes, fatal, ends)  # own caches
    return identity, backend


if __name__ == "__main__":
    run(read_config(sys.argv[1:]), open_history)
