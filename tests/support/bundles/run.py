"""How stages start and answer one request."""

from __future__ import annotations

from tests.support.bundles.tape import HOSTS, T0_MS, Tape
from worker.protocol.codec import encode_ready
from worker.protocol.events import (
    Device,
    FetchingModel,
    Imported,
    Importing,
    LoadingModel,
    MemoryCheck,
    ModelFetched,
    ModelLoadBreakdown,
    ModelLoaded,
    Starting,
    WorkerReady,
)
from worker.protocol.ready import Ready


class Run(Tape):
    """A run of two stages, each with four layers."""

    def hello(self, stage: int, protocol_version: str = "1.0") -> None:
        self.at(110).event(
            stage,
            Starting(
                protocol_version=protocol_version,
                version="0.1.0",
                python="3.11.7",
                torch="2.13.0",
                transformers="5.24.0",
                pid=700 + stage,
                host=HOSTS[stage],
            ),
        )
        device = Device(device="cpu", name="a processor", threads=2, total_bytes=8_000_000_000)
        self.event(stage, device)

    def fetch(self, stage: int) -> None:
        self.at(110).event(stage, Importing(library="torch"))
        self.at(1010).event(stage, Imported(library="torch", elapsed_ms=900))
        self.event(stage, FetchingModel(model_id="some/model"))

    def check_memory(self, stage: int, need_bytes: int) -> None:
        self.at(1050).event(
            stage,
            MemoryCheck(
                device="cpu",
                fits=need_bytes <= 6_000_000_000,
                weights_bytes=need_bytes - 600_000_000,
                kv_bytes=200_000_000,
                scratch_bytes=100_000_000,
                process_bytes=300_000_000,
                need_bytes=need_bytes,
                free_bytes=6_000_000_000,
                limit="memory",
            ),
        )

    def load(self, stage: int, rss_mb: float = 1_650.0) -> None:
        layers = f"{stage * 4}:{stage * 4 + 4}"
        self.check_memory(stage, 1_600_000_000)
        self.event(stage, ModelFetched(bytes_total=1_000_000_000, elapsed_ms=40))
        self.event(
            stage,
            LoadingModel(
                model_id="some/model", model_type="llama", layer_range=layers, quantization="int8"
            ),
        )
        self.at(2010).event(
            stage,
            ModelLoadBreakdown(
                plan_ms=60, weights_ms=800, warmup_ms=90, tokenizer_ms=10, num_tensors=37
            ),
        )
        loaded = ModelLoaded(
            elapsed_ms=960, weights_bytes=990_000_000, rss_mb=rss_mb, peak_rss_mb=rss_mb + 20
        )
        self.event(stage, loaded)
        ready = Ready(
            pid=700 + stage,
            stage=stage,
            num_stages=2,
            protocol_version="1.0",
            version="0.1.0",
            layer_range=(stage * 4, stage * 4 + 4),
            total_blocks=8,
            hidden_dim=64,
            vocab_size=512,
            model_type="llama",
            model_id="some/model",
            quantization="int8",
        )
        wall_ms = T0_MS + self.now_ms
        self.writer.line(stage, HOSTS[stage], encode_ready(ready), wall_ms)
        self.event(stage, WorkerReady(layer_range=layers))

    def start(self, *stages: int) -> None:
        for stage in stages or (0, 1):
            self.hello(stage)
            self.fetch(stage)
            self.load(stage)

    def generate(self) -> None:
        for op in ("embed_and_forward", "decode_step", "decode_step"):
            self.op(0, op)
            self.op(1, "forward_and_sample", wire_ms=4, idle_ms=11)
