"""Bundles for pages and traces: wide, long, recovered and hostile runs, by the product's writer."""

from __future__ import annotations

import json
from pathlib import Path

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
    Device,
    DownloadProgress,
    Envelope,
    Event,
    FetchingModel,
    Heartbeat,
    Imported,
    Importing,
    LoadingModel,
    MemoryCheck,
    ModelFetched,
    ModelLoaded,
    Op,
    Starting,
    WorkerReady,
)
from worker.protocol.ready import Ready

T0_MS = 1_800_000_000_000.0
CLOCK_OFF_MS = 7_200_000.0  # Odd stages are on hosts whose clock is two hours ahead.
LAYERS = 4


class WideRun:
    """A run of any number of stages; times are in ms since it began.

    Args:
        path: the bundle to make.
        hosts: the host of each stage.
        command: the command line.
    """

    def __init__(
        self, path: Path, hosts: tuple[str, ...], command: tuple[str, ...] = ("orchestrator", "run")
    ) -> None:
        self.path = path
        self.hosts = list(hosts)
        self.born_ms = [20.0] * len(hosts)
        stages = tuple(
            StageRecord(stage=i, host=host, transport="ssh") for i, host in enumerate(hosts)
        )
        config = {"model_id": "some/model", "max_new_tokens": 64, "prompt": "a secret plan"}
        lines = tuple(f"{host} device=cpu" for host in hosts)
        manifest = Manifest(command=command, stages=stages, config=config, hosts=lines)
        self.writer = BundleWriter(path, manifest)

    def event(self, stage: int, at_ms: float, event: Event, late_ms: float = 0.4) -> None:
        """Write an event of the stage's newest process; it is received a little later."""
        wall_ms = T0_MS + at_ms + CLOCK_OFF_MS * (stage % 2)
        uptime_ms = max(0.0, at_ms - self.born_ms[stage])
        envelope = Envelope(stage=stage, wall_ms=wall_ms, uptime_ms=uptime_ms)
        line = encode_event(event, envelope)
        self.writer.line(stage, self.hosts[stage], line, T0_MS + at_ms + late_ms)

    def start(self, stage: int, born_ms: float = 20.0, slow: float = 1.0) -> float:
        """Start a process of the stage; return when it is ready."""
        self.born_ms[stage] = born_ms
        layers = f"{stage * LAYERS}:{stage * LAYERS + LAYERS}"
        host = self.hosts[stage]
        at = [born_ms + slow * ms for ms in (90, 95, 900, 905, 1400, 1900, 2400, 2405, 3600)]
        hello = Starting(
            protocol_version="1.0",
            version="0.1.0",
            python="3.11.7",
            torch="2.13.0",
            transformers="5.24.0",
            pid=700 + stage,
            host=host,
        )
        self.event(stage, at[0], hello)
        device = Device(device="cpu", name="a processor", threads=8, total_bytes=8_000_000_000)
        self.event(stage, at[0] + 1, device)
        self.event(stage, at[1], Importing(library="torch"))
        self.event(stage, at[2], Imported(library="torch", elapsed_ms=at[2] - at[1]))
        self.event(stage, at[3], FetchingModel(model_id="some/model"))
        for step, done in zip(at[3:7], (0, 200_000_000, 560_000_000, 1_000_000_000), strict=True):
            progress = DownloadProgress(
                stage_index=stage,
                bytes_done=done,
                bytes_total=1_000_000_000,
                elapsed_ms=step - at[3],
                mbps=done / max(1.0, step - at[3]) / 1000,
            )
            self.event(stage, step, progress)
        self.event(stage, at[6], ModelFetched(bytes_total=1_000_000_000, elapsed_ms=1500))
        self._load(stage, layers, at[7], at[8])
        return at[8]

    def _load(self, stage: int, layers: str, begin_ms: float, end_ms: float) -> None:
        check = MemoryCheck(
            device="cpu",
            fits=True,
            weights_bytes=1_000_000_000,
            kv_bytes=300_000_000,
            scratch_bytes=150_000_000,
            process_bytes=350_000_000,
            need_bytes=1_800_000_000,
            free_bytes=4_000_000_000,
            limit="cgroup",
        )
        self.event(stage, begin_ms, check)
        loading = LoadingModel(
            model_id="some/model", model_type="llama", layer_range=layers, quantization="bfloat16"
        )
        self.event(stage, begin_ms, loading)
        loaded = ModelLoaded(
            elapsed_ms=end_ms - begin_ms, weights_bytes=1_000_000_000, rss_mb=1500, peak_rss_mb=1600
        )
        self.event(stage, end_ms, loaded)
        self.event(stage, end_ms, WorkerReady(layer_range=layers))
        ready = Ready(
            pid=700 + stage,
            stage=stage,
            num_stages=len(self.hosts),
            protocol_version="1.0",
            version="0.1.0",
            layer_range=(stage * LAYERS, stage * LAYERS + LAYERS),
            total_blocks=LAYERS * len(self.hosts),
            hidden_dim=64,
            vocab_size=512,
            model_type="llama",
            model_id="some/model",
            quantization="bfloat16",
            device="cpu",
        )
        self.writer.line(stage, self.hosts[stage], encode_ready(ready), T0_MS + end_ms + 0.4)

    def op(self, stage: int, at_ms: float, took_ms: float, op: str, rid: str = "r1") -> float:
        """Write an op sent at that time, which the worker computed; return when it was answered."""
        wire_ms = 0.6
        record = OpRecord(
            stage=stage,
            host=self.hosts[stage],
            op=op,
            rid=rid,
            wall_ms=T0_MS + at_ms,
            duration_ms=took_ms + wire_ms,
            sent_bytes=900,
            received_bytes=880,
            ok=True,
        )
        self.writer.op(record)
        done = Op(
            op=op,
            rid=rid,
            duration_ms=took_ms,
            idle_ms_before=2.0,
            ok=True,
            in_bytes=900,
            out_bytes=880,
            seq_len=1,
        )
        self.event(stage, at_ms + wire_ms / 2 + took_ms, done, late_ms=wire_ms / 2)
        return at_ms + took_ms + wire_ms

    def tokens(self, count: int, at_ms: float, rid: str = "r1") -> float:
        """Generate tokens one after another; return when the last is there."""
        last = len(self.hosts) - 1
        for number in range(count):
            for stage in range(last + 1):
                op = "forward_range" if stage else "decode_step"
                op = "forward_and_sample" if stage == last else op
                at_ms = self.op(stage, at_ms, 3.0 + (stage * 7 + number) % 5 * 0.5, op, rid)
        return at_ms

    def beat(self, stage: int, at_ms: float, rss_mb: float) -> None:
        """Write a heartbeat."""
        self.event(stage, at_ms, Heartbeat(rss_mb=rss_mb, requests_served=1, kv_bytes=40_000_000))

    def request(self, begin_ms: float, end_ms: float, tokens: int, rid: str = "r1") -> None:
        """Write a finished request."""
        took_ms = end_ms - begin_ms
        record = RequestRecord(
            rid=rid,
            wall_ms=T0_MS + begin_ms,
            prompt_tokens=12,
            completion_tokens=tokens,
            finish_reason="length",
            ttft_ms=took_ms / 20,
            duration_ms=took_ms,
            decode_tokens_per_s=tokens / took_ms * 1000,
        )
        self.writer.request(record)

    def lose(self, stage: int, at_ms: float, text: str) -> None:
        """Write that a process was killed and what was said about it."""
        host = self.hosts[stage]
        failure = FailureRecord(
            stage=stage,
            host=host,
            kind="crashed",
            phase="decode",
            cause=text,
            sentence=f"stage {stage} on {host} {text}",
            wall_ms=T0_MS + at_ms,
            exit_status="signal SIGKILL",
            last_events=('{"event":"op","op":"forward_range"}',),
            stderr_tail=("warming up", "Killed"),
        )
        self.writer.failure(failure)
        end = ExitRecord(
            stage=stage,
            host=host,
            wall_ms=T0_MS + at_ms + 1,
            signal="SIGKILL",
            expected=False,
            sentence=f"the process of stage {stage} on {host} was ended by SIGKILL",
        )
        self.writer.exit(end)

    def bring_back(self, stage: int, at_ms: float, new_host: str, tokens: int) -> float:
        """Write a failed and a good attempt, and start the process; return when it serves."""
        host = self.hosts[stage]
        first = RecoveryRecord(
            stage=stage,
            host=host,
            new_host=host,
            attempt=1,
            most_attempts=3,
            reason=f"stage {stage} on {host} was killed by SIGKILL in decode",
            wall_ms=T0_MS + at_ms,
            restart_ms=700.0,
            ok=False,
            error=f"{host} refused the connection",
        )
        self.writer.recovery(first)
        self.hosts[stage] = new_host
        begin_ms = at_ms + 1700
        ready_ms = self.start(stage, begin_ms, slow=0.4)
        back = RecoveryRecord(
            stage=stage,
            host=host,
            new_host=new_host,
            attempt=2,
            most_attempts=3,
            reason=first.reason,
            wall_ms=T0_MS + begin_ms,
            restart_ms=ready_ms - begin_ms,
            replay_ms=90.0,
            requests=1,
            tokens=tokens,
            ok=True,
        )
        self.writer.recovery(back)
        return ready_ms + 90

    def close(self, at_ms: float, exit_code: int, error: str | None = None) -> None:
        """End the run and give its clock fixed values."""
        self.writer.close(exit_code, error)
        fixed = {"started": "2027-01-15T08:00:00.000+00:00", "wall_ms": T0_MS, "python": "3.11.7"}
        fixed |= {"platform": "linux x86_64", "host": "hub", "pid": 4711, "version": "0.1.0"}
        changed = (("manifest.json", fixed), ("end.json", {"wall_ms": T0_MS + at_ms}))
        for name, changes in changed:
            values = json.loads((self.path / name).read_text()) | changes
            (self.path / name).write_text(json.dumps(values, indent=1) + "\n")


def healthy(path: Path) -> None:
    """Three stages, one request, nothing wrong."""
    run = WideRun(path, ("gpu1.lan", "gpu2.lan", "alice@10.0.0.7:2222"))
    ready_ms = max(run.start(stage, slow=1 + 0.2 * stage) for stage in range(3))
    end_ms = run.tokens(60, ready_ms + 40)
    run.request(ready_ms + 40, end_ms, 60)
    run.close(end_ms + 60, 0)


def recovered(path: Path) -> None:
    """The middle stage is lost and comes back on another host; the answer is whole."""
    run = WideRun(path, ("gpu1.lan", "gpu2.lan", "gpu3.lan"))
    ready_ms = max(run.start(stage) for stage in range(3))
    lost_ms = run.tokens(40, ready_ms + 40)
    run.lose(1, lost_ms, "was killed by SIGKILL in decode; its last line was `Killed`")
    back_ms = run.bring_back(1, lost_ms + 5, "gpu9.lan", 52)
    end_ms = run.tokens(60, back_ms)
    run.request(ready_ms + 40, end_ms, 100)
    run.close(end_ms + 60, 0)


def crashed(path: Path) -> None:
    """A stage is killed in the middle of two requests and that is the end."""
    run = WideRun(path, ("gpu1.lan", "gpu2.lan"))
    ready_ms = max(run.start(stage) for stage in range(2))
    lost_ms = run.tokens(30, ready_ms + 40)
    run.writer.stderr(1, "gpu2.lan", b"warming up\nKilled\n")
    run.lose(1, lost_ms, "was killed by SIGKILL in decode")
    run.close(lost_ms + 20, 5, "stage 1 on gpu2.lan was killed by SIGKILL in decode")


def wide(path: Path, stages: int = 20, tokens: int = 250, requests: int = 8) -> None:
    """Many stages and thousands of ops, several requests one after another, memory that grows."""
    run = WideRun(path, tuple(f"node-{stage:02}.cluster.example" for stage in range(stages)))
    ready_ms = max(run.start(stage, slow=0.6 + stage % 7 * 0.15) for stage in range(stages))
    at_ms = ready_ms + 100
    for number in range(requests):
        end_ms = run.tokens(tokens // requests, at_ms, f"r{number}")
        run.request(at_ms, end_ms, tokens // requests, f"r{number}")
        for stage in range(stages):
            run.beat(stage, end_ms, 1500 + 60 * number + 10 * stage)
        at_ms = end_ms + 400
    run.close(at_ms, 0)


HOSTILE = (
    "</script><script>document.title='owned'</script>",
    "\"'><img src=x onerror=\"document.title='owned'\">",
    "<svg/onload=document.title='owned'>{{ 7*7 }}{% raw %}",
    "\u202eevil\u2066 \x00\x1b[31m\u2028<!--",
    "javascript:document.title='owned'",
)


def hostile(path: Path) -> None:
    """Whatever a worker, a host or a command line can say tries to become markup."""
    run = WideRun(path, (HOSTILE[0], HOSTILE[1]), ("orchestrator", *HOSTILE))
    ready_ms = max(run.start(stage) for stage in range(2))
    at_ms = ready_ms + 40
    for number, text in enumerate(HOSTILE):
        at_ms = run.op(number % 2, at_ms, 4.0, text, text[:200])
        run.request(ready_ms, at_ms, 3, text[:200])
        run.event(number % 2, at_ms, Importing(library=text))
        run.event(
            number % 2,
            at_ms,
            LoadingModel(model_id=text, model_type=text, layer_range=text, quantization=text),
        )
        notes = ModelLoaded(
            elapsed_ms=1, weights_bytes=1, rss_mb=1, peak_rss_mb=1, notes=(text, text)
        )
        run.event(number % 2, at_ms, notes)
        run.writer.stderr(0, run.hosts[0], f"{text}\n".encode("utf-8", "replace"))
        run.lose(number % 2, at_ms, text)
        run.writer.line(1, text, text.encode("utf-8", "replace"), T0_MS + at_ms)
    run.bring_back(1, at_ms, HOSTILE[2], 3)
    run.writer.close(5, HOSTILE[0])
    values = json.loads((path / "manifest.json").read_text())
    fields = ("started", "version", "protocol_version", "python", "platform", "host")
    values |= dict(zip(fields, HOSTILE * 2, strict=False))
    values |= {"wall_ms": T0_MS, "config": {text: text for text in HOSTILE}}
    (path / "manifest.json").write_text(json.dumps(values))
