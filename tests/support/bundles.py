"""Make the recorded bundles of tests/data/bundles: `python -m tests.support.bundles` rewrites them.

Each is a run of two stages, written by the product's own writer and codec, with one thing that
went wrong. A new rule of the diagnosis gets a function here and a row in the test of the rules.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from orchestrator.bundle.manifest import Manifest
from orchestrator.bundle.records import (
    ExitRecord,
    FailureRecord,
    OpRecord,
    RecoveryRecord,
    RequestRecord,
    StageRecord,
)
from orchestrator.bundle.writer import BundleWriter
from worker.protocol.codec import encode_event, encode_ready
from worker.protocol.events import (
    CacheVerified,
    Device,
    DownloadFailed,
    Envelope,
    Event,
    Exiting,
    FetchingModel,
    Imported,
    Importing,
    LoadingModel,
    MemoryCheck,
    ModelFetched,
    ModelLoadBreakdown,
    ModelLoaded,
    ModelLoadFailed,
    Op,
    OpTraceback,
    Starting,
    UncaughtException,
    UnknownEvent,
    WorkerReady,
)
from worker.protocol.ready import Ready

RECORDED = Path(__file__).parents[1] / "data" / "bundles"
T0_MS = 1_800_000_000_000.0
HOSTS = ("alpha", "beta")


class Run:
    """A run of two stages with a clock of its own, in ms since it began."""

    def __init__(self, path: Path, command: tuple[str, ...] = ("orchestrator", "run")) -> None:
        self.path = path
        stages = tuple(
            StageRecord(stage=i, host=host, transport="ssh") for i, host in enumerate(HOSTS)
        )
        manifest = Manifest(command=command, stages=stages, config={"max_new_tokens": 8})
        self.writer = BundleWriter(path, manifest)
        self.now_ms = 0.0
        self.clock_off_ms: dict[int, float] = {}

    def at(self, now_ms: float) -> Run:
        self.now_ms = now_ms
        return self

    def event(self, stage: int, event: Event) -> None:
        wall_ms = T0_MS + self.now_ms
        told_ms = wall_ms + self.clock_off_ms.get(stage, 0)
        envelope = Envelope(stage=stage, wall_ms=told_ms, uptime_ms=self.now_ms - 10)
        self.writer.line(stage, HOSTS[stage], encode_event(event, envelope), wall_ms + 1)

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

    def op(
        self, stage: int, op: str, *, wire_ms: float = 2, idle_ms: float = 9, own_ms: float = 5
    ) -> None:
        """One op that the worker computed for `own_ms`; the clock goes on."""
        self.now_ms += 10
        self.sent(stage, op, duration_ms=own_ms + wire_ms)
        self.now_ms += own_ms + wire_ms
        self.event(
            stage,
            Op(
                op=op,
                rid="r1",
                duration_ms=own_ms,
                idle_ms_before=idle_ms,
                ok=True,
                in_bytes=100,
                out_bytes=200,
            ),
        )

    def sent(self, stage: int, op: str, duration_ms: float, code: str | None = None) -> None:
        self.writer.op(
            OpRecord(
                stage=stage,
                host=HOSTS[stage],
                op=op,
                rid="r1",
                wall_ms=T0_MS + self.now_ms,
                duration_ms=duration_ms,
                sent_bytes=100,
                received_bytes=200,
                ok=code is None,
                code=code,
            )
        )

    def generate(self) -> None:
        for op in ("embed_and_forward", "decode_step", "decode_step"):
            self.op(0, op)
            self.op(1, "forward_and_sample", wire_ms=4, idle_ms=11)

    def fail(self, stage: int, kind: str, text: str, phase: str = "loading") -> None:
        self.writer.failure(
            FailureRecord(
                stage=stage,
                host=HOSTS[stage],
                kind=kind,
                phase=phase,
                cause=text,
                sentence=f"stage {stage} on {HOSTS[stage]} {text}",
                wall_ms=T0_MS + self.now_ms,
            )
        )

    def ended(
        self,
        stage: int,
        *,
        code: int | None = None,
        signal: str | None = None,
        expected: bool = False,
    ) -> None:
        self.writer.exit(
            ExitRecord(
                stage=stage,
                host=HOSTS[stage],
                wall_ms=T0_MS + self.now_ms,
                exit_code=code,
                signal=signal,
                expected=expected,
                sentence=f"stage {stage} on {HOSTS[stage]} ended",
            )
        )

    def stderr(self, stage: int, text: str) -> None:
        self.writer.stderr(stage, HOSTS[stage], text.encode())

    def close(self, exit_code: int | None, error: str | None = None) -> None:
        """End the run (None: it was killed) and give its clock and its place fixed values."""
        if exit_code is not None:
            self.writer.close(exit_code, error)
            self._edit("end.json", {"wall_ms": T0_MS + self.now_ms})
        else:
            self.writer.close()
            (self.path / "end.json").unlink()
        fixed = {"started": "2027-01-15T08:00:00.000+00:00", "wall_ms": T0_MS, "python": "3.11.7"}
        fixed |= {"platform": "linux x86_64", "host": "hub", "pid": 4711, "version": "0.1.0"}
        self._edit("manifest.json", fixed)

    def _edit(self, name: str, changes: dict[str, Any]) -> None:
        values = json.loads((self.path / name).read_text()) | changes
        (self.path / name).write_text(json.dumps(values, indent=1) + "\n")


def finished(run: Run) -> None:
    run.start()
    run.generate()
    run.writer.request(
        RequestRecord(
            rid="r1",
            wall_ms=T0_MS + 2020,
            prompt_tokens=5,
            completion_tokens=3,
            finish_reason="length",
            ttft_ms=38,
            duration_ms=114,
            decode_tokens_per_s=26.3,
        )
    )
    for stage in (0, 1):
        run.event(stage, Exiting(code=0, reason="shutdown", requests_served=3))
        run.ended(stage, code=0, expected=True)
    run.close(0)


def killed_worker(run: Run) -> None:
    run.start()
    run.generate()
    run.fail(1, "crashed", "was killed by SIGKILL while serving", "serving forward_and_sample")
    run.ended(1, signal="SIGKILL")
    run.at(run.now_ms + 5).ended(0, signal="SIGKILL", expected=True)
    run.close(5, "stage 1 on beta was killed by SIGKILL while serving")


def killed_for_memory(run: Run) -> None:
    run.hello(1)
    run.fetch(1)
    run.load(1, rss_mb=7_700.0)
    run.ended(1, code=137)
    run.close(5)


def killed_remote_neighbour(run: Run) -> None:
    """The neighbour's broken pipe is noticed first, yet it is the symptom."""
    run.start()
    run.ended(0, code=5)
    run.at(run.now_ms + 20).ended(1, signal="SIGSEGV")
    run.stderr(1, "Fatal Python error: Segmentation fault\n")
    run.close(5)


def hung(run: Run) -> None:
    run.start()
    run.generate()
    run.at(run.now_ms + 10_000).fail(1, "hung", "said nothing for 10 s", "serving")
    run.ended(1, signal="SIGKILL", expected=True)
    run.ended(0, code=0, expected=True)
    run.close(5, "stage 1 on beta said nothing for 10 s")


def load_failed(run: Run) -> None:
    run.hello(0)
    run.fetch(0)
    run.hello(1)
    run.fetch(1)
    text = "model 'some/model' has no config.json"
    run.event(1, ModelLoadFailed(error=text, error_type="LoadFailed"))
    run.event(1, Exiting(code=3, reason="load_failed"))
    run.at(1020).fail(1, "not_ready", f"could not load the model: {text}")
    run.ended(1, code=3)
    run.ended(0, signal="SIGTERM", expected=True)
    run.close(3, f"stage 1 on beta could not load the model: {text}")


def memory_refused(run: Run) -> None:
    run.hello(0)
    run.fetch(0)
    run.check_memory(0, 7_000_000_000)
    text = "needs 7 GB, 6 GB are free"
    run.event(0, ModelLoadFailed(error=text, error_type="OutOfMemory"))
    run.ended(0, code=4)
    run.fail(0, "not_ready", text)
    run.close(4, f"stage 0 on alpha {text}")


def download_failed(run: Run) -> None:
    run.hello(1)
    run.fetch(1)
    run.event(1, DownloadFailed(reason="the connection was reset 5 times"))
    run.event(1, ModelLoadFailed(error="no weights", error_type="LoadFailed"))
    run.ended(1, code=3)
    run.close(3)


def uncaught(run: Run) -> None:
    run.start()
    run.event(
        0, UncaughtException(error="boom", error_type="RuntimeError", traceback="Traceback\nboom")
    )
    run.ended(0, code=1)
    run.close(5)


def unreachable(run: Run) -> None:
    run.start(0)
    run.stderr(1, "ssh: Could not resolve hostname beta: Name or service not known\n")
    run.fail(1, "host_unreachable", "could not be resolved", "connecting")
    run.ended(1, code=255)
    run.ended(0, code=0, expected=True)
    run.close(5, "stage 1 on beta could not be resolved")


def spawn_failed(run: Run) -> None:
    run.fail(0, "spawn_failed", "has no /opt/python", "connecting")
    run.ended(0, code=127)
    run.close(5, "stage 0 on alpha has no /opt/python")


def version_mismatch(run: Run) -> None:
    run.hello(0)
    run.hello(1, protocol_version="2.0")
    run.fail(1, "version_mismatch", "speaks protocol 2.0, this is 1.0", "connecting")
    run.ended(1, signal="SIGKILL", expected=True)
    run.close(5, "stage 1 on beta speaks protocol 2.0, this is 1.0")


def garbage(run: Run) -> None:
    run.start()
    run.writer.line(0, HOSTS[0], b"Loading checkpoint shards: 100%\n", T0_MS + run.now_ms)
    run.fail(0, "protocol_violation", "wrote a line that is no JSON", "idle")
    run.ended(0, signal="SIGKILL", expected=True)
    run.close(5, "stage 0 on alpha wrote a line that is no JSON")


def never_ready(run: Run) -> None:
    run.hello(0)
    run.at(110).event(0, Importing(library="torch"))
    run.at(60_000).fail(0, "not_ready", "was not ready within 60 s")
    run.ended(0, signal="SIGKILL", expected=True)
    run.close(5, "stage 0 on alpha was not ready within 60 s")


def crashed(run: Run) -> None:
    run.start()
    run.stderr(0, "first\nsecond\nthird\nfourth\n")
    run.ended(0, code=9)
    run.close(5)


def op_refused(run: Run) -> None:
    run.start()
    run.generate()
    run.event(1, OpTraceback(op="forward_and_sample", rid="r1", traceback="Traceback\nIndexError"))
    run.sent(1, "forward_and_sample", 4, "internal")
    error = "stage 1 on beta refused forward_and_sample (internal)"
    run.close(1, error)


def killed_orchestrator(run: Run) -> None:
    run.start()
    run.generate()
    run.close(None)
    events = run.path / "events.jsonl"
    events.write_bytes(events.read_bytes()[:-40])


def interrupted(run: Run) -> None:
    run.start()
    run.ended(0, signal="SIGKILL", expected=True)
    run.close(130)


def killed_at_the_end(run: Run) -> None:
    run.start()
    run.ended(0, signal="SIGKILL", expected=True)
    run.close(0)


def cache_damaged(run: Run) -> None:
    run.hello(1)
    run.fetch(1)
    checked = CacheVerified(
        model_id="some/model", commit="c0ffee", file="a.safetensors", size_bytes=9, ok=False
    )
    run.event(1, checked)
    text = "the hub cannot be reached (Connection refused); check the network"
    run.event(1, DownloadFailed(reason=text))
    run.event(1, ModelLoadFailed(error=text, error_type="LoadFailed"))
    run.fail(1, "not_ready", f"cannot serve: {text}")
    run.ended(1, code=3)
    run.close(3, f"stage 1 on beta cannot serve: {text}")


def slow_stage(run: Run) -> None:
    run.start()
    for _ in range(6):
        run.op(0, "decode_step")
        run.op(1, "forward_and_sample", own_ms=120)
    run.close(0)


def slow_link(run: Run) -> None:
    run.start()
    for _ in range(6):
        run.op(0, "decode_step")
        run.op(1, "forward_and_sample", wire_ms=90)
    run.close(0)


def clock_off(run: Run) -> None:
    run.clock_off_ms[1] = -2 * 3_600_000
    run.start()
    run.close(0)


def recovered(run: Run) -> None:
    run.start()
    run.generate()
    run.fail(1, "crashed", "was killed by SIGKILL while idle", "idle")
    run.ended(1, signal="SIGKILL")
    lost_ms = run.now_ms
    run.writer.recovery(
        RecoveryRecord(
            stage=1,
            host="beta",
            new_host="gamma",
            attempt=1,
            most_attempts=3,
            reason="stage 1 on beta was killed by SIGKILL while idle",
            wall_ms=T0_MS + lost_ms,
            restart_ms=900,
            replay_ms=100,
            requests=1,
            tokens=7,
            ok=True,
        )
    )
    run.at(lost_ms + 1100).close(0)


def newer_version(run: Run) -> None:
    """What a later version may write: kinds, fields and files that this one does not know."""
    run.start()
    run.event(0, UnknownEvent(fields={"event": "pp_telepathy", "strength": 11}))
    run.fail(1, "abducted", "was taken away", "levitating")
    run.close(6, "stage 1 on beta was taken away")
    run._edit("manifest.json", {"format": 99, "stages": "none", "mood": "fine"})
    (run.path / "aliens.jsonl").write_text("{}\n")


CASES: dict[str, Callable[[Run], None]] = {
    case.__name__: case
    for case in (
        finished,
        killed_worker,
        killed_for_memory,
        killed_remote_neighbour,
        hung,
        load_failed,
        memory_refused,
        download_failed,
        uncaught,
        unreachable,
        spawn_failed,
        version_mismatch,
        garbage,
        never_ready,
        crashed,
        op_refused,
        killed_orchestrator,
        interrupted,
        killed_at_the_end,
        cache_damaged,
        slow_stage,
        slow_link,
        clock_off,
        recovered,
        newer_version,
    )
}


def main() -> None:
    """Rewrite every recorded bundle."""
    for name, case in CASES.items():
        shutil.rmtree(RECORDED / name, ignore_errors=True)
        case(Run(RECORDED / name))


if __name__ == "__main__":
    main()
