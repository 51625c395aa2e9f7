"""Compare loading a stage from warm page cache with copying as many bytes in memory.

    python -m tools.bench.load_speed [--model llama|moe|tiny] [--layers A:B] [--threads N]

All in one process and in turn, libraries imported and the stage planned. Rows:

copy           the bytes of the stage from memory to memory, both resident: the machine's speed
copy, new      the same into memory just taken from the system, which has to map and zero it
load           the default: weights are views of mapped files
load, read     the same, and then every byte of every weight read once: no page fault is left
read           every byte of those weights read again: the part of `load, read` that is not load
load, no mmap  weights read into private memory

`of copy` is the speed as a share of the first row's. `peak` is the highest resident size, less
that before, as a multiple of the stage's bytes.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from time import perf_counter

import torch
from transformers.utils.logging import disable_progress_bar

from tools.bench.random_model import KINDS, model_folder
from tools.bench.resident import peak_bytes, reset_peak
from tools.bench.rounds import in_turn, spread
from worker.model.architecture import Architecture
from worker.model.load import load_prepared, prepare_stage
from worker.model.load_options import LoadOptions
from worker.model.loaded import LoadedStage, StageRequest
from worker.protocol.stage import StageSlice

_PIECE_BYTES = 512 << 10


@dataclass(frozen=True, slots=True)
class Sample:
    """One way, once: how long it took, and what became resident at most."""

    elapsed_s: float
    added_bytes: int


class LoadBench:
    """The ways to be compared, over one planned stage."""

    def __init__(self, folder: Path, stage: StageSlice, threads: int) -> None:
        self._threads = threads
        self._mapped = self._planned(folder, stage, mmap=True)
        self._private = self._planned(folder, stage, mmap=False)
        loaded = load_prepared(self._mapped)
        _read_all(loaded, self._threads)  # warms the page cache
        self.size_bytes = loaded.weight_bytes
        del loaded
        self._source = torch.ones(self.size_bytes, dtype=torch.uint8)
        self._target = torch.zeros(self.size_bytes, dtype=torch.uint8)

    def ways(self) -> dict[str, Callable[[], Sample]]:
        """Name each way of the table."""
        return {
            "copy": self._copy,
            "copy, new": self._copy_new,
            "load": lambda: _measured(lambda: load_prepared(self._mapped)),
            "load, read": self._load_and_read,
            "read": self._read,
            "load, no mmap": lambda: _measured(lambda: load_prepared(self._private)),
        }

    def _planned(self, folder: Path, stage: StageSlice, *, mmap: bool) -> StageRequest:
        return prepare_stage(folder, stage, LoadOptions(mmap=mmap, engine="stock"))

    def _copy(self) -> Sample:
        """Copy with the C library, which is faster than torch."""
        return _measured(lambda: self._in_shares(self._target, self._source))

    def _copy_new(self) -> Sample:
        return _measured(lambda: self._in_shares(torch.empty_like(self._source), self._source))

    def _in_shares(self, target: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
        """Copy with a share for each thread; the calls let go of Python's lock."""
        share = -(-source.numel() // self._threads)
        to, of = target.data_ptr(), source.data_ptr()
        starts = range(0, source.numel(), share)
        sizes = [min(share, source.numel() - start) for start in starts]
        with ThreadPoolExecutor(self._threads) as pool:
            list(
                pool.map(ctypes.memmove, [to + i for i in starts], [of + i for i in starts], sizes)
            )
        return target

    def _load_and_read(self) -> Sample:
        return _measured(lambda: _read_all(load_prepared(self._mapped), self._threads))

    def _read(self) -> Sample:
        loaded = _read_all(load_prepared(self._mapped), self._threads)
        return _measured(lambda: _read_all(loaded, self._threads))


def _measured(act: Callable[[], object]) -> Sample:
    gc.collect()
    before_bytes = reset_peak()
    began_s = perf_counter()
    kept = act()
    elapsed_s = perf_counter() - began_s
    added_bytes = peak_bytes() - before_bytes
    del kept
    return Sample(elapsed_s, added_bytes)


def _read_all(loaded: LoadedStage, threads: int) -> LoadedStage:
    """Copy every byte of every weight to a place that stays in the processor's cache."""
    tensors = (*loaded.model.parameters(), *loaded.model.buffers())
    sizes = {tensor.data_ptr(): tensor.numel() * tensor.element_size() for tensor in tensors}
    spans = [
        (pointer + i, min(_PIECE_BYTES, size_bytes - i))
        for pointer, size_bytes in sizes.items()
        for i in range(0, size_bytes, _PIECE_BYTES)
    ]
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(_read_spans, [spans[i::threads] for i in range(threads)]))
    return loaded


def _read_spans(spans: list[tuple[int, int]]) -> None:
    scratch = torch.empty(_PIECE_BYTES, dtype=torch.uint8)
    for pointer, size_bytes in spans:
        ctypes.memmove(scratch.data_ptr(), pointer, size_bytes)


def report(found: dict[str, list[Sample]], size_bytes: int) -> str:
    """Format the table."""
    reference = median(sample.elapsed_s for sample in found["copy"])
    lines = [f"{'':14} {'GB/s':>20} {'of copy':>8} {'peak':>6}"]
    for name, samples in found.items():
        speeds = [size_bytes / 1e9 / sample.elapsed_s for sample in samples]
        ratio = reference / median(sample.elapsed_s for sample in samples)
        peak = max(sample.added_bytes for sample in samples) / size_bytes
        lines.append(f"{name:14} {spread(speeds):>20} {ratio:8.0%} {peak:6.2f}")
    return "\n".join(lines)


def main(argv: list[str] | None = None) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--model", choices=KINDS, default="llama")
    parser.add_argument("--folder", type=Path, help="keep the model here, or use what is there")
    parser.add_argument("--layers", help="A:B; all by default")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args(argv)
    disable_progress_bar()
    torch.set_num_threads(options.threads)
    with model_folder(options.model, options.folder) as folder:
        layers = Architecture.read(folder).num_layers
        start, end = map(int, (options.layers or f"0:{layers}").split(":"))
        began_s = perf_counter()
        bench = LoadBench(folder, StageSlice(start, end, layers), options.threads)
        print(
            f"layers {start}:{end} of {layers}, {bench.size_bytes / 1e9:.2f} GB bfloat16, "
            f"{options.threads} thread(s), {options.rounds} rounds in turn, medians"
        )
        print(report(in_turn(bench.ways(), options.rounds), bench.size_bytes))
        print(f"{perf_counter() - began_s:.0f} s in all")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
