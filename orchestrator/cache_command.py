"""The subcommand `orchestrator cache`: see, check and free the weights that hosts keep."""

from __future__ import annotations

import argparse
import re
import textwrap
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from orchestrator.cache_options import CacheOptions
from orchestrator.plan_options import (
    add_cache_flag,
    add_hosts_flag,
    add_json_flag,
    add_reach_flags,
    options_from,
)
from orchestrator.subcommand import Subcommand, SubcommandGroup

if TYPE_CHECKING:
    from contextlib import ExitStack

    from orchestrator.setting import Setting
    from orchestrator.specs import StageSpec

_COMMIT = re.compile(r"[0-9a-f]{4,40}")


def _add_options(action: str, parser: argparse.ArgumentParser) -> None:
    hosts = parser.add_mutually_exclusive_group()
    add_hosts_flag(hosts)
    hosts.add_argument(
        "--local", action="store_const", const=1, help="this machine alone (the default)"
    )
    default = "give --model-id or --all" if action == "rm" else "default: every model"
    model = parser.add_argument_group(f"model ({default})")
    model.add_argument("--model-id", metavar="ID", help="hub id")
    reach = parser.add_argument_group("hosts")
    add_reach_flags(reach)
    add_cache_flag(reach)
    parser.set_defaults(repair=False, all=False, revision=None)
    if action != "ls":
        model.add_argument(
            "--revision",
            type=str.lower,
            metavar="COMMIT",
            help="this commit of it alone, or its beginning, as `cache ls` shows it",
        )
    if action == "verify":
        parser.add_argument(
            "--repair", action="store_true", help="remove what is broken; the next run fetches it"
        )
    if action == "rm":
        model.add_argument("--all", action="store_true", help="remove every model")
    add_json_flag(parser)


def _read_options(parser: argparse.ArgumentParser, parsed: argparse.Namespace) -> CacheOptions:
    options = options_from(CacheOptions, parsed)
    if options.cache_action == "rm" and (options.model_id is None) != options.all:
        parser.error("give --model-id (what to remove), or --all for every model; one of them")
    if options.revision is not None and options.model_id is None:
        parser.error("--revision names a commit of a model; give --model-id too")
    commit = options.commit
    if commit is not None and not _COMMIT.fullmatch(commit):
        parser.error(
            f"{commit or repr(commit)} is no commit (4 to 40 hexadecimal digits); "
            "`orchestrator cache ls` shows them"
        )
    return options


def _run(options: CacheOptions, command: Sequence[str]) -> int:
    from orchestrator.command import finish

    return finish(lambda hold: _cache(options, hold), as_json=options.json)


async def _cache(options: CacheOptions, hold: ExitStack) -> int:
    from orchestrator.cache_report import report
    from orchestrator.config import surroundings
    from orchestrator.errand_run import run_errands
    from orchestrator.setting import reach_setting

    setting = reach_setting(options, surroundings(), hold)
    worker = replace(
        setting.worker,
        only=options.errand,
        model_id=options.model_id,
        revision=options.revision,
        repair=options.repair,
    )
    specs = host_specs(replace(setting, worker=worker))
    told = await run_errands(specs, setting.timeouts)
    by_host = [(spec.host, events) for spec, events in zip(specs, told, strict=True)]
    return report(options, by_host)


def host_specs(setting: Setting) -> Sequence[StageSpec]:
    """Return one worker for each host; lines that differ in the stages alone share it."""
    from orchestrator.stage_specs import Place, spec_of

    hosts = dict.fromkeys(
        replace(
            entry,
            line=0,
            slots=1,
            spare=False,
            layers=None,
            device=None,
            quantization=None,
            engine=None,
            memory_bytes=None,
            text="",
        )
        for entry in setting.entries
    )
    return [
        spec_of(Place(entry, index, len(hosts)), setting.worker, setting.ways, local_workers=1)
        for index, entry in enumerate(hosts)
    ]


def _action(name: str, short: str, about: str) -> Subcommand[CacheOptions]:
    return Subcommand(
        name=name,
        short=short,
        about=textwrap.fill(about, 92),
        add_options=partial(_add_options, name),
        read_options=_read_options,
        run=_run,
    )


CACHE = SubcommandGroup(
    name="cache",
    short="see, check and free the weights on hosts",
    about="See, check and free the weights that hosts keep; `cache ACTION --help` says more.",
    actions=(
        _action(
            "ls",
            "list models, layers and sizes",
            "List the weights that each host keeps: model, commit, layers, bytes.",
        ),
        _action(
            "verify",
            "read every byte and compare checksums",
            "Read every byte that each host keeps and compare it with the checksums that were "
            "noted as it was fetched. Exits with 3 where one is wrong.",
        ),
        _action(
            "rm",
            "remove weights and free the space",
            "Remove the weights of a model, or all, from each host.",
        ),
    ),
)
