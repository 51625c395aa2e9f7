"""An orchestrator with the deadlines of a test: `drive.py JSON` on the first host of a lab.

It starts a pipeline as the product does and tells on stdout, one JSON object a line, whatever its
recorder is told. On stdin it takes one request a line; end of file ends it in order.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import os
import sys
import time
from typing import Any

from orchestrator.bundle.records import (
    ExitRecord,
    FailureRecord,
    NoRecorder,
    OpRecord,
    RecoveryRecord,
)
from orchestrator.failures import StageFailure
from orchestrator.generate import generate
from orchestrator.recovery import RecoveryPolicy, SpareSlot
from orchestrator.request import GenerationRequest
from orchestrator.specs import StageSpec, WorkerOptions
from orchestrator.stage import StageStatus
from orchestrator.stages import Stages
from orchestrator.timeouts import Timeouts
from orchestrator.transport.ssh import SshTarget
from worker.protocol.ops import Sampling


class Teller(NoRecorder):
    """Tell what happens."""

    def op(self, record: OpRecord) -> None:
        """Tell of an op."""
        tell("op", op=record.op, stage=record.stage, duration_ms=record.duration_ms)

    def exit(self, record: ExitRecord) -> None:
        """Tell of the end of a process."""
        tell("exit", stage=record.stage, sentence=record.sentence)

    def failure(self, record: FailureRecord) -> None:
        """Tell of a failure."""
        tell("failure", **dataclasses.asdict(record))

    def recovery(self, record: RecoveryRecord) -> None:
        """Tell of an attempt to bring a stage back."""
        tell("recovery", **dataclasses.asdict(record))


def tell(what: str, /, **facts: Any) -> None:
    """Write one line; `at_s` is a clock that all processes of this machine share."""
    print(json.dumps({"is": what, "at_s": time.monotonic(), **facts}), flush=True)


def specs_of(task: dict[str, Any]) -> list[StageSpec]:
    """Return the stages: each has an `address`, and a `program` in place of Python if it likes."""
    stages = task["stages"]
    return [
        StageSpec(
            stage=stage,
            num_stages=len(stages),
            host=place["host"],
            transport="ssh",
            python=place.get("program", sys.executable),
            code="installed" if "program" in place else "shipped",
            environment={"PYTHONPATH": os.environ["PYTHONPATH"]},
            ssh=SshTarget(host=place["address"], ssh_command=task["ssh_command"]),
            options=WorkerOptions(
                stub=True, lease_s=task["lease_s"], model_id=place.get("model_id")
            ),
        )
        for stage, place in enumerate(stages)
    ]


def spare_of(task: dict[str, Any], place: dict[str, str]) -> SpareSlot:
    """Return room for a stage on another host."""
    target = SshTarget(host=place["address"], ssh_command=task["ssh_command"])
    return SpareSlot(
        place["host"], lambda lost: dataclasses.replace(lost, host=place["host"], ssh=target)
    )


async def answer(pipeline: Stages, teller: Teller, line: bytes) -> None:
    """Answer one request, telling each token."""
    asked = json.loads(line)
    if asked.get("raise"):
        raise RuntimeError("asked to raise")
    request = GenerationRequest(
        request_id=f"r{time.monotonic_ns()}",
        prompt=asked["prompt"],
        messages=None,
        max_new_tokens=asked["new"],
        sampling=Sampling(),
        prefill_chunk=asked.get("chunk", 256),
    )
    tokens = []
    async with contextlib.aclosing(generate(pipeline, request, teller)) as outputs:
        async for output in outputs:
            tokens.append(output.token_id)
            tell("token", token_id=output.token_id, index=len(tokens))
    tell("answer", token_ids=tokens)


async def run(task: dict[str, Any]) -> None:
    """Start the stages and answer what comes on stdin."""

    def status(seen: StageStatus) -> None:
        tell("status", stage=seen.stage, phase=seen.phase)

    lines = asyncio.StreamReader(limit=1 << 26)
    teller = Teller()
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(lines), sys.stdin
    )
    starting = Stages.start(
        specs_of(task),
        recorder=teller,
        timeouts=Timeouts(**task["timeouts"]),
        on_status=status,
        policy=RecoveryPolicy(most_attempts=task["restarts"]),
        spares=[spare_of(task, place) for place in task["spares"]],
        on_notice=lambda text: tell("notice", text=text),
        links=task["links"],
    )
    async with await starting as pipeline:
        tell("serving", links=pipeline.links_live)
        while line := await lines.readline():
            await answer(pipeline, teller, line)
    tell("closed")


def main() -> None:
    """Run it; a stage's failure is told and ends it with code 5."""
    try:
        asyncio.run(run(json.loads(sys.argv[1])))
    except StageFailure as failure:
        tell("lost", sentence=str(failure))
        sys.exit(5)


if __name__ == "__main__":
    main()
