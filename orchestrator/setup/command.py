"""The subcommand `orchestrator setup`: what workers need, where there is only Python and SSH."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from orchestrator.plan_options import (
    DEFAULT_SLURM_WAIT_S,
    ReachOptions,
    add_hosts_file_flag,
    add_json_flag,
    add_reach_flags,
    options_from,
)
from orchestrator.subcommand import Subcommand
from worker.protocol.exits import ExitCode

if TYPE_CHECKING:
    from contextlib import ExitStack

    from orchestrator.doctor.subject import Subject
    from orchestrator.setting import Setting
    from orchestrator.setup.equip import Equipped, Goal

_MEET_S = 30.0
_INSTALL_S = 3600.0
_AT_ONCE = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class SetupOptions(ReachOptions):
    """What the command line says."""

    torch: str | None
    python: str | None
    dry_run: bool
    json: bool


def _add_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("hosts")
    # No --slurm: the Python of an allocation's workers is the one that runs here.
    add_hosts_file_flag(group, required=True)
    add_reach_flags(group, with_slurm=False)
    parser.add_argument(
        "--torch",
        type=_build,
        metavar="BUILD",
        help="the build of torch, as cpu or cu130, which the host's index must have "
        "(default: the one that the index gives)",
    )
    parser.add_argument(
        "--python",
        metavar="PATH",
        help="interpreter on the hosts to make the venv with "
        "(default: python3, else python3.14 to python3.11)",
    )
    parser.add_argument("--dry-run", action="store_true", help="print what would be installed")
    add_json_flag(parser)
    parser.set_defaults(local=None, slurm=None, slurm_wait_s=DEFAULT_SLURM_WAIT_S, cache_dir=None)


def _run(options: SetupOptions, command: Sequence[str]) -> int:
    from orchestrator.command import finish

    return finish(lambda hold: _setup(options, hold), as_json=options.json)


async def _setup(options: SetupOptions, hold: ExitStack) -> int:
    from orchestrator.command import put
    from orchestrator.config import surroundings
    from orchestrator.doctor.subject import subjects_of
    from orchestrator.setting import reach_setting
    from orchestrator.setup.equip import Goal, Outcome
    from orchestrator.setup.pins import read_pins
    from orchestrator.setup.wheel import own_wheel

    setting, pins = reach_setting(options, surroundings(), hold), read_pins()
    goal = Goal(
        pins=pins,
        wheel=own_wheel(pins),
        torch=options.torch or "",
        python=options.python,
        only_look=options.dry_run,
    )
    subjects = _once_each(subjects_of(setting))
    outcomes = await _equip_all(subjects, goal, setting, options)
    if options.json:
        hosts = [
            {"name": subject.name, "host": subject.spec.host, **asdict(outcome)}
            for subject, outcome in zip(subjects, outcomes, strict=True)
        ]
        put(json.dumps({"hosts": hosts}, indent=2))
    else:
        hosts_of: dict[str, list[str]] = {}
        for subject, outcome in zip(subjects, outcomes, strict=True):
            hosts_of.setdefault(outcome.text, []).append(subject.spec.host)
        for text, names in hosts_of.items():
            put(f"{', '.join(names)} {text}")
    has_failed = any(outcome.outcome is Outcome.FAILED for outcome in outcomes)
    return ExitCode.PEER_GONE if has_failed else ExitCode.OK


async def _equip_all(
    subjects: Sequence[Subject], goal: Goal, setting: Setting, options: SetupOptions
) -> list[Equipped]:
    import asyncio

    from orchestrator.bundle.words import printable
    from orchestrator.doctor.mend import Mend
    from orchestrator.interruption import Interruption
    from orchestrator.setup.equip import equip
    from orchestrator.stage.gate import StartGate
    from orchestrator.stderr import say

    room, gate = asyncio.Semaphore(_AT_ONCE), StartGate()

    async def one(subject: Subject) -> Equipped:
        async with room:
            return await equip(
                Mend(subject, setting.ways.hosts_name),
                goal,
                meet_s=options.start_timeout_s or _MEET_S,
                limit_s=_INSTALL_S,
                gate=gate,
                on_step=lambda step: say(printable(f"{subject.spec.host}: {step}", 300)),
            )

    with Interruption(say):
        return await asyncio.gather(*(one(subject) for subject in subjects))


def _once_each(subjects: Sequence[Subject]) -> list[Subject]:
    """Return one subject for each user on each host: they share a home folder and its venv."""
    kept: dict[object, Subject] = {}
    for subject in subjects:
        spec = subject.spec
        is_given = spec.python is not None
        place = (spec.transport, spec.ssh, spec.command, spec.python)
        # A launcher that chooses a machine each time is used for each of its lines.
        kept.setdefault((place, subject.name if spec.command and not is_given else ""), subject)
    return list(kept.values())


def _build(text: str) -> str:
    if not re.fullmatch(r"cpu|xpu|cu\d+|rocm\d+(\.\d+)*", text):
        raise argparse.ArgumentTypeError(
            f"{text!r} is no build of torch; give cpu, cu130, rocm7.0 or xpu"
        )
    return text


SETUP = Subcommand(
    name="setup",
    short="install what workers need on hosts that have only Python and SSH",
    about="""\
Make a virtual environment on every host of a hosts file, spare ones too, and install Stageline
and its pinned packages into it, from the index that pip is configured for there. It is in
~/.local/share/stageline/venv, where run finds it. Run it again at any time: what is there is left
as it is, what is half-made is made whole, what is old is exchanged. The hosts need Python 3.11 or
newer with ensurepip (Debian: python3-venv), and pip's index.""",
    usage="%(prog)s --hosts FILE [--dry-run] [options]",
    add_options=_add_options,
    read_options=lambda parser, parsed: options_from(SetupOptions, parsed),
    run=_run,
)
