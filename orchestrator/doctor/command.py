"""The subcommand `orchestrator doctor`: are the hosts fit for a run, and what mends them."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from orchestrator import option_types
from orchestrator.plan_options import (
    ReachOptions,
    add_cache_flag,
    add_hosts_flag,
    add_json_flag,
    add_model_flags,
    add_reach_flags,
    options_from,
)
from orchestrator.subcommand import Subcommand
from orchestrator.worker_flags import add_device_flag, add_quantization_flag, add_trust_flag
from worker.protocol.exits import ExitCode

if TYPE_CHECKING:
    from contextlib import ExitStack

    from orchestrator.doctor.result import HostReport
    from orchestrator.setting import Setting

# A person waits; --start-timeout-s is for hosts that need longer.
_MEET_S = 20.0
_MODEL_S = 120.0
_AT_ONCE = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorOptions(ReachOptions):
    """What the command line says."""

    model_id: str | None
    revision: str | None
    quantization: str | None
    device: str | None
    trust_remote_code: bool
    json: bool


def _add_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("hosts and model")
    hosts = group.add_mutually_exclusive_group(required=True)
    add_hosts_flag(hosts)
    hosts.add_argument(
        "--local",
        type=option_types.slots,
        metavar="N",
        help="look at this machine alone, for N stages on it",
    )
    add_model_flags(group, needs_model=False)
    add_quantization_flag(group)
    add_device_flag(group)
    add_trust_flag(group)
    add_reach_flags(group)
    add_cache_flag(group)
    add_json_flag(parser)


def _run(options: DoctorOptions, command: Sequence[str]) -> int:
    from orchestrator.command import finish

    return finish(lambda hold: _doctor(options, hold), as_json=options.json)


async def _doctor(options: DoctorOptions, hold: ExitStack) -> int:
    from orchestrator.command import put
    from orchestrator.config import surroundings
    from orchestrator.setting import reach_setting

    setting = reach_setting(options, surroundings(), hold)
    worker = replace(
        setting.worker,
        model_id=options.model_id,
        revision=options.revision,
        quantization=options.quantization,
        device=options.device,
        trust_remote_code=options.trust_remote_code,
    )
    reports = await _examine(options, replace(setting, worker=worker))
    if options.json:
        put(json.dumps(_fields(reports), indent=2))
    else:
        _show(reports, with_model=options.model_id is not None)
    return exit_code(reports)


async def _examine(options: DoctorOptions, setting: Setting) -> list[HostReport]:
    import asyncio

    from orchestrator.doctor.examine import Examination
    from orchestrator.doctor.judge_python import compare_versions
    from orchestrator.doctor.mend import Mend
    from orchestrator.doctor.model import look_at_model
    from orchestrator.doctor.subject import subjects_of
    from orchestrator.interruption import Interruption
    from orchestrator.setup.pins import read_pins
    from orchestrator.stage.gate import StartGate
    from orchestrator.stderr import say

    pins, limit_s, gate = read_pins(), options.start_timeout_s, StartGate()
    examinations = [
        Examination(
            Mend(subject, setting.ways.hosts_name),
            pins,
            meet_s=limit_s or _MEET_S,
            cache_dir=options.cache_dir,
            gate=gate,
        )
        for subject in subjects_of(setting)
    ]
    room = asyncio.Semaphore(_AT_ONCE)

    async def run(examination: Examination) -> None:
        async with room:
            await examination.run()

    with Interruption(say):
        async with asyncio.TaskGroup() as group:
            for examination in examinations:
                group.create_task(run(examination))
        if options.model_id is not None:
            timeouts = replace(setting.timeouts, survey_s=limit_s or _MODEL_S)
            await look_at_model(examinations, setting.worker, timeouts)
    reports = [examination.report for examination in examinations]
    compare_versions(reports, [examination.mend for examination in examinations])
    return reports


def exit_code(reports: Sequence[HostReport]) -> ExitCode:
    """Return what the program ends with."""
    from orchestrator.visit.check import Check

    failed = {check for report in reports for check in report.failed()}
    if failed == {Check.MODEL}:
        return ExitCode.LOAD_FAILED
    return ExitCode.PEER_GONE if failed else ExitCode.OK


def _show(reports: Sequence[HostReport], *, with_model: bool) -> None:
    from orchestrator.bundle.screen import screen_for
    from orchestrator.doctor.show import show_reports

    can_tick = _can_print("✓✗")
    show_reports(reports, screen_for(sys.stdout), with_model=with_model, can_tick=can_tick)


def _can_print(text: str) -> bool:
    try:
        text.encode(sys.stdout.encoding or "ascii")
    except UnicodeEncodeError:
        return False
    return True


def _fields(reports: Sequence[HostReport]) -> dict[str, Any]:
    from dataclasses import asdict

    from orchestrator.visit.check import Check

    return {
        "ok": exit_code(reports) == ExitCode.OK,
        "hosts": [
            {
                "name": report.name,
                "host": report.label,
                "spare": report.is_spare,
                "checks": {check: asdict(report.result(check)) for check in Check},
                "facts": report.facts,
            }
            for report in reports
        ],
    }


DOCTOR = Subcommand(
    name="doctor",
    short="check every host, with the command that mends it",
    about="""\
Look at every host of a hosts file at once, spare ones too: name, port, host key, login, Python,
packages, code, device, memory, disk, clock and link; with --model-id also whether it can get at
the model. Prints a table, and below it one line for each thing to mend, with the command that
mends it. Installs nothing and starts no model.""",
    usage="%(prog)s (--hosts FILE | --local N | --slurm) [--model-id ID] [options]",
    add_options=_add_options,
    read_options=lambda parser, parsed: options_from(DoctorOptions, parsed),
    run=_run,
)
