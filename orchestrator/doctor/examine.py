"""Look at one host, check after check, over one connection."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from importlib.resources import files
from typing import Any

from orchestrator.doctor.judge_machine import judge_clock, judge_disk, judge_link, judge_memory
from orchestrator.doctor.judge_python import (
    DISTRIBUTION,
    judge_code,
    judge_device,
    judge_packages,
    judge_python,
)
from orchestrator.doctor.link import measure_down, measure_pings, measure_up
from orchestrator.doctor.mend import Mend
from orchestrator.doctor.result import HostReport, Result, Status
from orchestrator.setup.pins import Pins
from orchestrator.stage.gate import StartGate
from orchestrator.visit.check import OF_SSH, Check
from orchestrator.visit.departure import VisitFailed
from orchestrator.visit.greeting import Interpreter
from orchestrator.visit.launch import worker_python
from orchestrator.visit.meeting import met
from orchestrator.visit.visit import Visit

# For one answer of the program; the slowest, nvidia-smi, is given five.
ANSWER_S = 10.0
# For all of them; what then lacks an answer is told.
_LOOK_S = 25.0
# Older ones cannot run the program that looks.
_OLDEST_THAT_LOOKS = (3, 7)


class Examination:
    """The checks of one host.

    Args:
        mend: the host and how to mend it.
        pins: what it needs.
        meet_s: how long it may take until Python runs there.
        cache_dir: where workers are told to keep weights.
        gate: bounds the logins of all examinations.
    """

    def __init__(
        self, mend: Mend, pins: Pins, *, meet_s: float, cache_dir: str | None, gate: StartGate
    ) -> None:
        subject = mend.subject
        self.mend = mend
        self.report = HostReport(subject.name, subject.spec.host, subject.is_spare)
        self._pins = pins
        self._meet_s = meet_s
        self._cache_dir = cache_dir
        self._gate = gate
        self._at = Check.PACKAGES

    async def run(self) -> None:
        """Fill the report; whatever is wrong with the host stands in it."""
        spec, results = self.mend.subject.spec, self.report.results
        if spec.transport != "ssh":
            results |= {check: Result(Status.NOT_APPLICABLE) for check in OF_SSH}
        try:
            meeting = met(spec, worker_python(spec), self._meet_s, self._gate)
            async with meeting as (visit, interpreter):
                self._arrived(interpreter)
                if interpreter.version[:2] >= _OLDEST_THAT_LOOKS:
                    async with asyncio.timeout(_LOOK_S):
                        await visit.teach(_program(), ANSWER_S)
                        await self._look(visit)
        except (VisitFailed, TimeoutError) as error:
            self._stopped(error)

    def _arrived(self, interpreter: Interpreter) -> None:
        self._reached(Check.LOGIN)
        self.mend = replace(self.mend, interpreter=interpreter.path)
        self.report.facts["python"] = {"version": interpreter.words, "path": interpreter.path}
        self.report.results[Check.PYTHON] = judge_python(interpreter, self.mend)

    async def _look(self, visit: Visit) -> None:
        is_usable = self.report.result(Check.PYTHON).status is Status.OK
        versions = await self._packages(visit) if is_usable else {}
        machine = await self._answer(visit, Check.MEMORY, {"ask": "machine"})
        if machine is not None:
            torch = versions.get("torch")
            gpus, cores = machine["gpus"], int(machine["cores"])
            self._judge(Check.DEVICE, lambda: judge_device(gpus, self.mend, torch, cores))
            self._judge(Check.MEMORY, lambda: judge_memory(machine, self.mend))
        disk = await self._answer(visit, Check.DISK, {"ask": "disk", "folder": self._cache_dir})
        if disk is not None:
            self._judge(Check.DISK, lambda: judge_disk(disk, self.mend))
        await self._link(visit)

    async def _packages(self, visit: Visit) -> dict[str, str | None]:
        names = [*self._pins.ranges(), DISTRIBUTION]
        answer = await self._answer(visit, Check.PACKAGES, {"ask": "packages", "names": names})
        if answer is None:
            return {}
        versions: dict[str, str | None] = answer["versions"]
        self.report.facts["packages"] = versions
        self.mend = replace(self.mend, is_managed=bool(answer.get("is_managed")))
        self._judge(Check.PACKAGES, lambda: judge_packages(versions, self.mend, self._pins))
        self._judge(Check.CODE, lambda: judge_code(versions.get(DISTRIBUTION), self.mend))
        return versions

    async def _link(self, visit: Visit) -> None:
        self._at = Check.LINK
        pings = await measure_pings(visit, ANSWER_S)
        self._judge(Check.CLOCK, lambda: judge_clock(pings, self.mend))
        up = await measure_up(visit, pings.round_trip_ms)
        down = None if visit.is_cut else await measure_down(visit, pings.round_trip_ms)
        self.report.facts["link"] = {
            "round_trip_ms": round(pings.round_trip_ms, 3),
            "clock_ahead_s": round(pings.clock_ahead_s, 3),
            "up_bytes_per_s": round(up.bytes_per_s),
            "down_bytes_per_s": None if down is None else round(down.bytes_per_s),
        }
        if self.mend.subject.spec.transport == "local":
            self.report.results[Check.LINK] = Result(Status.OK, "is this machine")
        else:
            self._judge(Check.LINK, lambda: judge_link(pings, up, down))

    async def _answer(
        self, visit: Visit, check: Check, question: dict[str, Any]
    ) -> dict[str, Any] | None:
        """Ask, keep what is told as facts, and return it; None where the look itself failed."""
        self._at = check
        visit.ask(question)
        answer = await visit.hear(ANSWER_S)
        if "error" in answer:
            self.report.results[check] = Result(
                Status.FAILED, f"could not be looked at: {answer['error']}"
            )
            return None
        if check is not Check.PACKAGES:
            self.report.facts[str(question["ask"])] = answer
        return answer

    def _judge(self, check: Check, judge: Callable[[], Result]) -> None:
        self.report.results[check] = judge()

    def _reached(self, last: Check) -> None:
        """Mark every check up to the last as passed."""
        for check in Check:
            self.report.results.setdefault(check, Result(Status.OK))
            if check is last:
                return

    def _stopped(self, error: VisitFailed | TimeoutError) -> None:
        if isinstance(error, TimeoutError):
            failed = VisitFailed(
                self._at, f"did not answer within {ANSWER_S:g} s; look whether it is overloaded"
            )
        else:
            failed = error if not self.report.facts else VisitFailed(self._at, error.cause)
        if not self.report.facts and not failed.here:
            checks = list(Check)
            # A connection that was lost after the login has shown no more than the login.
            last = checks.index(Check.PYTHON if failed.lost else failed.check)
            if last:
                self._reached(checks[last - 1])
        mend = self.mend.visit(failed)
        seen, _, advice = failed.cause.partition("; ")
        self.report.results[failed.check] = Result(Status.FAILED, seen, mend=mend or advice)


def _program() -> str:
    return files("orchestrator.doctor").joinpath("probe.py").read_text("utf-8")
