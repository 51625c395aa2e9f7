"""Pipelines whose stages are killed, stopped, cut off or made to print junk at a chosen moment."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import psutil

from orchestrator.bundle.records import OpRecord, RecoveryRecord
from orchestrator.generate import generate
from orchestrator.recovery import RecoveryPolicy
from orchestrator.request import GenerationRequest
from orchestrator.specs import StageSpec, WorkerOptions
from orchestrator.stages import Stages
from tests.support.history_chain import expected_tokens
from tests.support.stages import PATIENT, ROOT, MemoryRecorder
from worker.protocol.codec import EventLine, decode_worker_line
from worker.protocol.events import LoadingModel, Starting
from worker.protocol.ops import Sampling

# What hangs is found soon, and a busy machine is not taken for hanging.
HASTY = replace(PATIENT, silence_s=1.5, idle_silence_s=1.5, idle_ping_s=0.2)
QUICK = RecoveryPolicy(most_attempts=3, backoff_s=(0.0, 0.1, 0.2))
BIN = ROOT / "tests" / "bin"
FAULTS = ("kill", "stop", "garbage", "cut")
MOMENTS = ("load", "prefill", "decode", "idle")
MODEL_OPS = ("embed_and_forward", "decode_step", "forward_range", "forward_and_sample")


def history_spec(
    stage: int, num_stages: int, *, model_id: str | None = None, **more: Any
) -> StageSpec:
    """Return a local worker of tests/support/history_worker.py."""
    return StageSpec(
        **{"stage": stage, "num_stages": num_stages, **more},
        python=str(BIN / "history_worker"),
        environment={"STAGELINE_TEST_PYTHON": sys.executable},
        options=WorkerOptions(stub=True, model_id=model_id),
    )


def linked(spec: StageSpec) -> StageSpec:
    """Return the same worker behind a link of its own."""
    environment = {
        **spec.environment,
        "STAGELINE_TEST_PYTHON": sys.executable,
        "STAGELINE_TEST_PROGRAM": spec.python or sys.executable,
    }
    return replace(spec, python=str(BIN / "linked_worker"), environment=environment)


def inflict(fault: str, pid: int) -> None:
    """Do it to a worker; `cut` ends the link that it is behind."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError, psutil.NoSuchProcess):
        match fault:
            case "kill":
                os.kill(pid, signal.SIGKILL)
            case "stop":
                os.kill(pid, signal.SIGSTOP)
                await_stop(pid)
            case "garbage":
                print_in(pid)
            case "cut":
                psutil.Process(pid).parent().kill()


def await_stop(pid: int) -> None:
    """Wait until every thread has stopped: those that are not told yet go on and answer."""
    deadline_s = time.monotonic() + 10
    while time.monotonic() < deadline_s:
        states = [
            path.read_text().rpartition(")")[2].split()[0]
            for path in Path(f"/proc/{pid}/task").glob("*/stat")
        ]
        if set(states) <= {"T"}:
            return
        os.sched_yield()


def print_in(pid: int) -> None:
    """Write what is no message to a worker's stdout, as a library in it might."""
    for fd in Path(f"/proc/{pid}/fd").iterdir():
        flags = int(Path(f"/proc/{pid}/fdinfo/{fd.name}").read_text().split()[3], 8)
        is_pipe = str(fd.readlink()).startswith("pipe:")
        if int(fd.name) > 2 and is_pipe and flags & os.O_ACCMODE == os.O_WRONLY:
            fd.write_bytes(b"Loading weights: 100%\n")


@dataclass
class Watch(MemoryRecorder):
    """Know each stage's newest pid, and tell of ops and loading as they are seen."""

    pids: dict[int, int] = field(default_factory=dict)
    on_op: Callable[[OpRecord], None] = lambda record: None
    on_loading: Callable[[int], None] = lambda stage: None
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def line(self, stage: int, host: str, line: bytes, wall_ms: float) -> None:
        super().line(stage, host, line, wall_ms)
        read = decode_worker_line(line)
        if isinstance(read, EventLine) and isinstance(read.event, Starting):
            self.pids[stage] = read.event.pid
        if isinstance(read, EventLine) and isinstance(read.event, LoadingModel):
            self.on_loading(stage)

    def op(self, record: OpRecord) -> None:
        super().op(record)
        self.on_op(record)

    def recovery(self, record: RecoveryRecord) -> None:
        super().recovery(record)
        self.changed.set()

    async def recovered(self, times: int) -> None:
        """Wait until so many attempts have brought a stage back."""
        async with asyncio.timeout(30):
            while sum(record.ok for record in self.recoveries) < times:
                self.changed.clear()
                await self.changed.wait()


@dataclass(frozen=True, slots=True)
class Ask:
    """Requests to send at once: how many, and whether they draw their tokens."""

    count: int = 1
    sampled: bool = False
    max_new_tokens: int = 12
    prefill_chunk: int = 4

    def requests(self) -> list[GenerationRequest]:
        """Return requests of different lengths and seeds."""
        return [
            GenerationRequest(
                request_id=f"r{i}",
                prompt=self.prompt(i),
                max_new_tokens=self.max_new_tokens,
                prefill_chunk=self.prefill_chunk,
                sampling=Sampling(temperature=0.8 if self.sampled else 0.0, seed=i),
                ignore_eos=True,
            )
            for i in range(self.count)
        ]

    def prompt(self, index: int) -> str:
        """Return the prompt of one request."""
        return f"request {index} " + "x" * (8 + 3 * index)

    def expected(self, num_stages: int) -> list[list[int]]:
        """Return the answers that nothing disturbs."""
        return [
            expected_tokens(
                request.prompt or "",
                num_stages=num_stages,
                prefill_chunk=self.prefill_chunk,
                max_new_tokens=self.max_new_tokens,
                temperature=request.sampling.temperature,
                seed=request.sampling.seed,
            )
            for request in self.requests()
        ]


async def answers(
    pipeline: Stages,
    watch: Watch,
    requests: Sequence[GenerationRequest],
    on_token: Callable[[str, int], None] = lambda rid, count: None,
) -> list[list[int]]:
    """Send all at once and return the tokens of each; `on_token` hears of each as it comes."""

    async def one(request: GenerationRequest) -> list[int]:
        tokens: list[int] = []
        async with contextlib.aclosing(generate(pipeline, request, watch)) as outputs:
            async for output in outputs:
                tokens.append(output.token_id)
                on_token(request.request_id, len(tokens))
        return tokens

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(one(request)) for request in requests]
    return [task.result() for task in tasks]


@dataclass(frozen=True, slots=True)
class Cell:
    """One fault, and the requests that must not notice it."""

    fault: str
    stage: int
    moment: str
    ask: Ask

    @property
    def name(self) -> str:
        """The cell in words."""
        kind = "sampled" if self.ask.sampled else "greedy"
        return f"{self.fault} {self.stage} {self.moment} {kind} x{self.ask.count}"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a cell.

    Attributes:
        same: whether every token is that of the undisturbed run.
        recovery_ms: restart and replay; None if no stage was lost.
    """

    same: bool
    recovery_ms: float | None

    @property
    def is_good(self) -> bool:
        """Whether there was a fault and no trace of it."""
        return self.same and self.recovery_ms is not None


async def play(pipeline: Stages, watch: Watch, cell: Cell, expected: Sequence[Any]) -> Outcome:
    """Send the cell's requests, inflict its fault once, and look at the answers."""
    before = len(watch.recoveries)
    back = sum(record.ok for record in watch.recoveries) + 1
    fired = False

    def fire() -> None:
        nonlocal fired
        if not fired:
            fired = True
            inflict(cell.fault, watch.pids[cell.stage])

    seen = 0

    def on_op(record: OpRecord) -> None:
        nonlocal seen
        if cell.moment == "prefill" and record.stage == cell.stage and record.op in MODEL_OPS:
            seen += 1  # The third op is in the prompt, which has more chunks than that.
            if seen == 3:
                fire()

    def on_token(rid: str, count: int) -> None:
        if cell.moment == "decode" and (rid, count) == ("r0", 5):
            fire()

    watch.on_op = on_op
    if cell.moment == "idle":
        fire()
        await watch.recovered(back)
    got = await answers(pipeline, watch, cell.ask.requests(), on_token)
    if fired:
        await watch.recovered(back)
    watch.on_op = lambda record: None
    return Outcome(got == list(expected), recovery_ms(watch.recoveries[before:]))


def recovery_ms(records: Sequence[RecoveryRecord]) -> float | None:
    """Return how long restart and replay took, or None where nothing was brought back."""
    times = [(r.restart_ms or 0.0) + (r.replay_ms or 0.0) for r in records if r.ok]
    return sum(times) if times else None


async def play_load(
    specs: Sequence[StageSpec], cells: Sequence[Cell], expected: Sequence[Any], **options: Any
) -> list[Outcome]:
    """Inflict the fault while the stage loads for the first time, then send all cells' requests.

    Args:
        specs: what to start.
        cells: of one fault and one stage.
        expected: the tokens of each cell.
        options: of the pipeline.
    """
    watch, fault, faulted = Watch(), cells[0].fault, cells[0].stage

    def on_loading(stage: int) -> None:
        if stage == faulted and not watch.recoveries:
            watch.on_loading = lambda stage: None
            # After this line's own turn: what is inflicted may be noticed at once.
            asyncio.get_running_loop().call_soon(inflict, fault, watch.pids[stage])

    watch.on_loading = on_loading
    async with await Stages.start(specs, recorder=watch, **options) as pipeline:
        took_ms = recovery_ms(watch.recoveries)
        got = [await answers(pipeline, watch, cell.ask.requests()) for cell in cells]
    return [
        Outcome(tokens == list(wanted), took_ms)
        for tokens, wanted in zip(got, expected, strict=True)
    ]


def held_back(specs: Sequence[StageSpec], stage: int, folder: Path) -> list[StageSpec]:
    """Return specs of which one stage's first start waits while it loads."""
    options = replace(specs[stage].options, model_id=f"hold:{folder / 'held'}")
    return [replace(spec, options=options) if spec.stage == stage else spec for spec in specs]
