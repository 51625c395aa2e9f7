"""A host as a test wants it: does errands, tells what the environment says, serves its layers.

`PEER_FREE_MIB`, `PEER_GBPS`, `PEER_MACHINE`, `PEER_COMMIT`: what its survey tells. `PEER_ERRAND`:
`fails` (the model cannot be read), `forgets` (ends well without a word), `serves` (is ready in
place of it), `hangs`, `dies`, `eof` (its stdin is at its end). `PEER_STEPS`: a fifo that it reads
a byte of before each news of a download. `PEER_UP`: a fifo that it tells when it hangs.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from tests.support.peers.honest import NUM_LAYERS, HonestPeer
from worker.protocol.costs import GroupSize, ModelCosts, QuantizedCost, RoleCost
from worker.protocol.events import (
    CacheHit,
    DownloadProgress,
    Exiting,
    HostSurveyed,
    ModelFetched,
    ModelLoadFailed,
    ModelSurveyed,
)
from worker.protocol.stage import StageSlice

MIB = 2**20
COMMIT = "c" * 40
RESIDENT_BYTES = 100 * MIB


def costs() -> ModelCosts:
    """A model whose layers are 100 MiB each, and 1 MiB of cache; 50 MiB at each end."""
    layers = range(NUM_LAYERS)
    middle = RoleCost(
        weights_bytes=0, read_bytes=0, running_bytes=MIB, loading_bytes=MIB, process_bytes=MIB
    )
    end = RoleCost(
        weights_bytes=50 * MIB,
        read_bytes=0,
        running_bytes=MIB,
        loading_bytes=MIB,
        process_bytes=MIB,
    )
    whole = RoleCost(
        weights_bytes=100 * MIB,
        read_bytes=0,
        running_bytes=MIB,
        loading_bytes=MIB,
        process_bytes=MIB,
    )
    sizes = tuple(100 * MIB for _ in layers)
    groups = {f"layers.{n}": GroupSize(size_bytes=100 * MIB, files=("f",)) for n in layers}
    groups |= {name: GroupSize(size_bytes=50 * MIB, files=("f",)) for name in ("embed", "head")}
    return ModelCosts(
        layer_kv_bytes=tuple(MIB for _ in layers),
        layer_groups=tuple((f"layers.{n}",) for n in layers),
        first_groups=("embed",),
        last_groups=("head",),
        groups=groups,
        quantizations={
            "bfloat16": QuantizedCost(
                layer_weights_bytes=sizes,
                layer_read_bytes=sizes,
                first=end,
                middle=middle,
                last=end,
                whole=whole,
            )
        },
        unavailable={"int8": "bitsandbytes is not installed", "nf4": "the same"},
    )


class Peer(HonestPeer):
    """Does the errand that `--only` names, or serves the layers that it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.only = self._flag("only", "")
        start, end = self._flag("shard-start", ""), self._flag("shard-end", "")
        if start and end:
            self.slice = StageSlice(int(start), int(end), NUM_LAYERS)

    def run(self) -> None:
        """Live as the flags say."""
        if not self.only:
            super().run()
            return
        self.hello()
        self.misbehave(os.environ.get("PEER_ERRAND", ""))
        if self.only.startswith("survey"):
            self.survey_host()
        if self.only == "survey":
            self.survey_model()
        if self.only == "fetch":
            self.fetch()
        self.event(Exiting(code=0, reason="errand_done"))

    def misbehave(self, how: str) -> None:
        """Do what the test asked for."""
        if how == "fails":
            error = "config.json is missing in /m; give a model"
            self.event(ModelLoadFailed(error=error, error_type="X"))
            self.event(Exiting(code=3, reason="load_failed"))
            sys.exit(3)
        if how == "forgets":
            self.event(Exiting(code=0, reason="errand_done"))
            sys.exit(0)
        if how == "eof":
            self.event(Exiting(code=0, reason="stdin_eof"))
            sys.exit(0)
        if how == "serves":
            self.ready()
        if how == "dies":
            os.kill(os.getpid(), signal.SIGKILL)
        if up := os.environ.get("PEER_UP"):
            Path(up).write_bytes(b"u")
        if how in ("serves", "hangs"):
            sys.stdin.buffer.read()
            sys.exit(0)

    def survey_host(self) -> None:
        """Tell what the environment says."""
        free_mib = int(os.environ.get("PEER_FREE_MIB", "10000"))
        self.event(
            HostSurveyed(
                host="peer",
                machine=os.environ.get("PEER_MACHINE", str(os.getpid())),
                device="cpu",
                free_bytes=free_mib * MIB,
                total_bytes=16_000 * MIB,
                limit="memory",
                resident_bytes=RESIDENT_BYTES,
                read_gbps=float(os.environ.get("PEER_GBPS", "10")),
                disk_free_bytes=10**12,
                cache_path="/cache",
                cached_groups={COMMIT: ["layers.0"]},
                cached_files={},
            )
        )

    def survey_model(self) -> None:
        """Tell of the model above."""
        self.event(
            ModelSurveyed(
                model_id=self._flag("model-id", ""),
                commit=os.environ.get("PEER_COMMIT", COMMIT),
                model_type="peer",
                max_context=256,
                prefill_chunk=256,
                fetched_bytes=0,
                elapsed_ms=1.0,
                costs=costs().to_fields(),
            )
        )

    def fetch(self) -> None:
        """Fetch in two steps, or find everything here."""
        total_bytes = self.slice.num_own_layers * 100 * MIB
        if self._flag("cache-dir", "") == "full":
            self.event(CacheHit(bytes_total=total_bytes))
            return
        steps = os.environ.get("PEER_STEPS")
        for done_bytes in (0, total_bytes // 2, total_bytes):
            if steps:
                with Path(steps).open("rb", buffering=0) as fifo:
                    fifo.read(1)
            self.event(
                DownloadProgress(
                    bytes_done=done_bytes,
                    bytes_total=total_bytes,
                    elapsed_ms=1000.0,
                    mbps=done_bytes / 1e6,
                )
            )
        self.event(ModelFetched(bytes_total=total_bytes, elapsed_ms=1000.0))


if __name__ == "__main__":
    Peer().run()
