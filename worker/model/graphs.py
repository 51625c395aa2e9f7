"""Have a GPU do again what it did once, without any of the program that started it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

import torch

# Starts the same kernels again, on the same memory; comes back before they are done.
Replay = Callable[[], None]


class Graphs(Protocol):
    """Records work so that it can be replayed."""

    def record(self, work: Callable[[], list[torch.Tensor]]) -> tuple[Replay, list[torch.Tensor]]:
        """Do `work`, and return how to do it again, and what it gave.

        Each replay reads the tensors that `work` read where they were, and writes its results over
        the ones returned, which the caller must keep as long as they are read; in memory that
        nobody keeps, other records may work. `work` is called more than once, must give the same
        each time and may write only to tensors that it made. Records are replayed in the order in
        which they were made.

        Raises:
            RuntimeError: it holds an op that cannot be recorded, as one that waits for a number.
        """


class CudaGraphs:
    """CUDA graphs of one device, in one pool of memory. Never run on a GPU so far.

    Source: https://docs.pytorch.org/docs/stable/notes/cuda.html#cuda-graphs
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)
        self._pool = torch.cuda.graph_pool_handle()

    def record(self, work: Callable[[], list[torch.Tensor]]) -> tuple[Replay, list[torch.Tensor]]:
        """Do `work`, and return how to do it again, and what it gave (see `Graphs`)."""
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize(self._device)
        with torch.cuda.stream(self._stream):
            # libraries get their workspaces for this stream, which must not happen in a capture
            work()
            torch.cuda.synchronize(self._device)
            # other threads may use the device meanwhile
            graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
            try:
                results = work()
            except BaseException:
                # a capture that failed is refused at its end too, and the stream is free again
                with suppress(RuntimeError):
                    graph.capture_end()
                raise
            graph.capture_end()
        graph.replay()  # a capture starts no kernel
        return graph.replay, results
