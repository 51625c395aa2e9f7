"""The options of `Pipeline.open`: for the reader, the type checker, and as they are read."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import Annotated, Any, TypedDict

from orchestrator.asking import AnswerOptions
from orchestrator.hosts import HostsError
from orchestrator.keywords import check_all, kinds_of, shown
from orchestrator.option_names import as_keyword
from orchestrator.pipeline_options import (
    PipelineOptions,
    ReuseKind,
    add_bundle_flags,
    add_pipeline_options,
)
from orchestrator.speculation.drafter import SpeculationKind


class OpenOptions(TypedDict, total=False):
    """The flags of `orchestrator chat` that say what is opened, with the defaults there.

    Attributes:
        stub: workers without a model, for trying out.
        revision: branch, tag or commit on the hub.
        quantization: bfloat16 (default), int8, nf4, int8-weight or int4-weight.
        engine: fast (default), stock or graphs.
        device: auto (default), cpu, cuda, cuda:N or mps.
        threads: compute threads of each worker; cores / local stages.
        max_context: most tokens of prompt and answer together; what the model allows.
        prefill_chunk: tokens of a prompt per step, 256.
        trust_remote_code: run code that comes with the model.
        even_split: split the layers evenly, without asking the hosts what they can hold.
        slurm: options of salloc, "" for the allocation that this program runs in; the event loop
            stands still until it is granted.
        slurm_wait_s: that an allocation may wait in Slurm's queue.
        accept_new: accept SSH host keys that are not known yet.
        ssh_command: ssh client with options of your own.
        start_timeout_s: that a worker may take to connect, and then for its work, downloads aside.
        forward: variables of the environment here to give to workers elsewhere.
        cache_dir: folder on each host that keeps fetched weights.
        fetch_connections: of each stage to the hub, 4.
        whole_files: fetch whole weight files.
        restarts: times in a row that a lost stage is started again, 3; 0 ends the pipeline at the
            first failure.
        links: star (default), chain or auto; see docs/scheduling.md.
        wire_encoding: auto (default), bf16, bf16-planes-zstd or int8-row-top8; see docs/wire.md.
        speculate: auto (default), off, ngram or draft; see docs/speculation.md.
        draft_model_id: a small model of the same family, to guess with; it runs here.
        draft_quantization: of the draft model.
        draft_device: of the draft model.
        prefix_reuse: turns (default), chunks or off; see docs/prefixes.md.
        bundle_dir: folder to make the diagnostic bundle in.
        no_bundle: write no diagnostic bundle.
    """

    stub: bool
    revision: str | None
    quantization: str | None
    engine: str | None
    device: str | None
    threads: int | None
    max_context: int | None
    prefill_chunk: int
    trust_remote_code: bool
    even_split: bool
    slurm: str | None
    slurm_wait_s: float
    accept_new: bool
    ssh_command: str
    start_timeout_s: float | None
    forward: Sequence[str] | None
    cache_dir: str | None
    fetch_connections: int | None
    whole_files: bool
    restarts: int
    links: str
    wire_encoding: str
    speculate: SpeculationKind
    draft_model_id: str | None
    draft_quantization: str | None
    draft_device: str | None
    prefix_reuse: ReuseKind
    bundle_dir: str | os.PathLike[str] | None
    no_bundle: bool


class _Opening(OpenOptions, total=False):
    """Everything that `Pipeline.open` takes."""

    model_id: str | os.PathLike[str] | None
    hosts: Annotated[
        str | os.PathLike[str] | Sequence[str] | None,
        "the path of a hosts file or a sequence of its lines, as hosts=['local slots=2']",
    ]
    local: int | None
    record: Callable[..., Any]
    on_status: Callable[..., Any]
    on_notice: Callable[..., Any]


def read_options(given: Mapping[str, Any]) -> PipelineOptions:
    """Return the options of a program; each value is read as its flag reads it.

    Args:
        given: the keywords of `Pipeline.open`; what is not there has the flag's default.

    Raises:
        TypeError: there is no option of that name, or a value is of another type.
        ValueError: a value cannot be, or two contradict each other; one sentence.
        HostsError: there is no hosts file where one is named.
    """
    check_all(given, kinds_of(_Opening), _elsewhere)
    parser = argparse.ArgumentParser(add_help=False)
    add_pipeline_options(parser)
    add_bundle_flags(parser.add_argument_group())
    actions = {action.dest: action for action in parser._actions}
    values = {name: _read(actions[name], one) for name, one in given.items() if name in actions}
    for group in parser._mutually_exclusive_groups:
        names = [action.dest for action in group._group_actions]
        both = [name for name in names if values.get(name) not in (None, False)]
        if len(both) > 1:
            raise ValueError(f"{both[0]} and {both[1]} are both given; give one of them")
    _check_hosts(given.get("hosts"))
    names = [field.name for field in fields(PipelineOptions) if field.name != "json"]
    defaults = {name: parser.get_default(name) for name in names}
    options = PipelineOptions(**{**defaults, **values, "json": False})
    complaint = options.complaint(as_keyword)
    if complaint is not None:
        raise ValueError(complaint)
    return options


def _read(action: argparse.Action, value: Any) -> Any:
    """Return a value as the flag would have read its text.

    Raises:
        ValueError: the flag would have refused it.
    """
    if value is None or isinstance(value, bool):
        return value
    if not isinstance(value, str | int | float | os.PathLike):
        # Lines of a hosts file are read with the file's own rules.
        is_list = isinstance(action, argparse._AppendAction)
        return tuple(_read(action, one) if is_list else one for one in value)
    text = os.fspath(value) if isinstance(value, os.PathLike) else str(value)
    if action.choices is not None and text not in action.choices:
        known = ", ".join(map(repr, action.choices))
        raise ValueError(f"{action.dest}={shown(value)} must be one of {known}")
    if not callable(action.type):
        return text
    try:
        return action.type(text)
    except argparse.ArgumentTypeError as error:
        why = str(error)
        # As a rule it begins with what is said here already.
        for opening in (repr(text), f"{action.dest}={text}", text):
            why = why.removeprefix(opening)
        raise ValueError(f"{action.dest}={shown(value)} {why.lstrip()}") from None


def _check_hosts(hosts: object) -> None:
    """See that a name of a hosts file is one.

    Raises:
        HostsError: there is no such file.
    """
    # `Path.exists` would raise for a name that is too long.
    if isinstance(hosts, str) and not os.path.exists(hosts):  # noqa: PTH110
        raise HostsError(
            f"{hosts}: cannot read the hosts file: there is none; hosts takes a path or a sequence "
            f"of lines: hosts=[{hosts!r}]"
        )


def _elsewhere() -> dict[str, str]:
    """Return where a keyword belongs that says how to answer."""
    answers = (*kinds_of(AnswerOptions), "tools", "template_options")
    where = "says how to answer: give it to generate, chat or complete, not to open"
    chat = {name: where.replace("generate, chat or complete", "chat") for name in answers[-2:]}
    system = "is a message: give chat one with the role 'system' before the others"
    return {**dict.fromkeys(answers, where), **chat, "system": system}
