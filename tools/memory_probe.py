"""Measure the memory of one stage, from planning to a full cache, in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from worker.protocol.stage import StageSlice

ROOT = Path(__file__).resolve().parent.parent
_SAMPLE_S = 0.002


@dataclass(frozen=True)
class Case:
    """One measurement."""

    model: str
    folder: str
    shard_start: int
    shard_end: int
    num_layers: int
    quantization: str = "bfloat16"
    mmap: bool = True
    max_context: int = 1024
    prefill_chunk: int = 256


@dataclass(frozen=True)
class Measured:
    """What one process saw, in bytes."""

    fixed_bytes: int
    predicted_weights_bytes: int
    held_weights_bytes: int
    predicted_need_bytes: int
    load_peak_bytes: int
    loaded_bytes: int
    peak_bytes: int
    kv_bytes: int
    predicted_kv_bytes: int
    predicted_scratch_bytes: int

    @property
    def load_bound_bytes(self) -> int:
        """What the load peak may be: weights + 10 % + fixed."""
        return self.held_weights_bytes * 11 // 10 + self.fixed_bytes

    @property
    def predicted_bytes(self) -> int:
        """Resident bytes at the peak, as predicted."""
        return self.fixed_bytes + self.predicted_need_bytes

    @property
    def error(self) -> float:
        """Prediction against measured peak, as a fraction."""
        return self.predicted_bytes / self.peak_bytes - 1


def measure(case: Case) -> Measured:
    """Run `case` in a fresh process."""
    env = os.environ | {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive"}
    done = subprocess.run(
        [sys.executable, "-m", "tools.memory_probe", json.dumps(asdict(case))],
        env=env,
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return Measured(**json.loads(done.stdout.splitlines()[-1]))


def probe(case: Case) -> Measured:
    """Measure `case` in this process, which must be fresh."""
    import torch
    from transformers.utils import logging

    from worker.model import load, load_options, memory
    from worker.model.engine import engaged
    from worker.protocol.stage import StageSlice

    logging.disable_progress_bar()
    torch.set_num_threads(1)
    stage = StageSlice(case.shard_start, case.shard_end, case.num_layers)
    quantization: load_options.Quantization = case.quantization  # type: ignore[assignment]
    options = load_options.LoadOptions(quantization=quantization, mmap=case.mmap)
    request = load.prepare_stage(Path(case.folder), stage, options)
    estimate = memory.estimate_memory(
        request, max_context=case.max_context, prefill_chunk=case.prefill_chunk
    )
    fixed_bytes = _resident_bytes()
    with _peak() as load_peak:
        loaded = load.load_prepared(request)
    loaded_bytes = _resident_bytes()
    with _peak() as run_peak:
        tokenizer = _tokenizer(case, stage)
        runner = engaged(loaded)
        runner.warm_up()
        if stage.is_first:
            # mapped rows become resident as their tokens come; a long run will meet them all
            loaded.model.get_submodule(loaded.sliced.parts.embeddings).get_parameter("weight").max()
        cache = runner.new_cache(max_length=case.max_context)
        for _ in range(0, case.max_context, case.prefill_chunk):
            x = torch.ones(1, case.prefill_chunk, dtype=torch.long)
            if not stage.is_first:
                x = torch.randn(1, case.prefill_chunk, runner.width).to(runner.wire_dtype)
            runner.forward(x, cache, want="logits" if stage.is_last else "hidden")
        # and the step of one position, which has temporaries of its own
        cache.crop_to(case.max_context - 1)
        runner.forward(x[:, :1], cache, want="logits" if stage.is_last else "hidden")
    del tokenizer
    return Measured(
        fixed_bytes=fixed_bytes,
        predicted_weights_bytes=estimate.weights_bytes,
        held_weights_bytes=loaded.weight_bytes,
        predicted_need_bytes=estimate.need_bytes,
        load_peak_bytes=load_peak[0],
        loaded_bytes=loaded_bytes,
        peak_bytes=max(load_peak[0], run_peak[0]),
        kv_bytes=cache.size_bytes,
        predicted_kv_bytes=estimate.kv_bytes,
        predicted_scratch_bytes=estimate.scratch_bytes,
    )


def _tokenizer(case: Case, stage: StageSlice) -> object:
    """Load the tokenizer where a worker would."""
    from transformers import AutoTokenizer

    serves_text = stage.is_first or stage.is_last
    if not serves_text or not (Path(case.folder) / "tokenizer.json").is_file():
        return None
    return AutoTokenizer.from_pretrained(case.folder)


@contextmanager
def _peak() -> Iterator[list[int]]:
    """Sample resident memory while the block runs; the one entry is the highest value."""
    peak = [_resident_bytes()]
    over = threading.Event()

    def sample() -> None:
        while not over.wait(_SAMPLE_S):
            peak[0] = max(peak[0], _resident_bytes())

    thread = threading.Thread(target=sample)
    thread.start()
    try:
        yield peak
    finally:
        over.set()
        thread.join()
        peak[0] = max(peak[0], _resident_bytes())


def _resident_bytes() -> int:
    with Path("/proc/self/status").open() as status:
        for line in status:
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) * 1024
    raise RuntimeError("/proc/self/status has no VmRSS: this tool needs Linux")


if __name__ == "__main__":
    print(json.dumps(asdict(probe(Case(**json.loads(sys.argv[1]))))))
