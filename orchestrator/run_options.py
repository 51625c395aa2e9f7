"""The options of `orchestrator run`: their flags, and the frozen values that come of them."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from orchestrator.config import DEFAULT_SSH_COMMAND
from orchestrator.host_keys import MAX_SLOTS, QUANTIZATIONS, read_device
from orchestrator.request import DEFAULT_NEW_TOKENS, DEFAULT_PREFILL_CHUNK
from worker.protocol import schema


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """What the command line asked for; see `add_options` for the meaning of each."""

    hosts: Path | None
    local: int | None
    model_id: str | None
    revision: str | None
    prompt: str | None
    prompt_file: str | None
    raw: bool
    system: str | None
    max_new_tokens: int | None
    temperature: float
    top_p: float
    top_k: int
    min_p: float
    repetition_penalty: float
    seed: int | None
    stop: tuple[str, ...]
    ignore_eos: bool
    json: bool
    stub: bool
    quantization: str | None
    device: str | None
    threads: int | None
    max_context: int | None
    prefill_chunk: int
    trust_remote_code: bool
    bundle_dir: Path | None
    no_bundle: bool
    accept_new: bool
    ssh_command: str
    start_timeout_s: float | None


def read_options(parser: argparse.ArgumentParser, parsed: argparse.Namespace) -> RunOptions:
    """Return the options; ends the program with a usage error where they contradict."""
    values: dict[str, Any] = {
        field.name: getattr(parsed, field.name) for field in fields(RunOptions)
    }
    options = RunOptions(**{**values, "stop": tuple(values["stop"] or ())})
    if options.model_id is None and not options.stub:
        parser.error(
            "give --model-id (a folder or a hub id), or --stub for workers without a model"
        )
    if options.raw and options.system is not None:
        parser.error("--system needs the chat template, which --raw leaves out; give one of them")
    return options


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the flags."""
    _add_model(parser.add_argument_group("model and hosts"))
    _add_prompt(parser.add_argument_group("prompt (default: stdin when it is no terminal)"))
    _add_generation(parser.add_argument_group("generation (greedy unless --temperature is given)"))
    _add_workers(parser.add_argument_group("workers (a key in the hosts file wins)"))
    _add_output(parser.add_argument_group("output"))


def _add_model(group: argparse._ArgumentGroup) -> None:
    hosts = group.add_mutually_exclusive_group(required=True)
    hosts.add_argument(
        "--hosts", type=Path, metavar="FILE", help="hosts file, one stage a line; see docs/hosts.md"
    )
    hosts.add_argument("--local", type=_slots, metavar="N", help="N stages on this machine")
    group.add_argument("--model-id", metavar="ID", help="folder with SafeTensors, or hub id")
    group.add_argument("--revision", metavar="REV", help="revision on the hub")
    group.add_argument(
        "--stub", action="store_true", help="workers without a model, for trying out"
    )
    group.add_argument(
        "--accept-new", action="store_true", help="accept SSH host keys that are not known yet"
    )
    group.add_argument(
        "--ssh-command",
        type=_words,
        default=DEFAULT_SSH_COMMAND,
        metavar="CMD",
        help="ssh client with options of your own (default: %(default)s)",
    )
    group.add_argument(
        "--start-timeout-s",
        type=_number(schema.POSITIVE_NUMBER),
        metavar="S",
        help="seconds a stage may take to serve (default: 3600, of them 60 to connect)",
    )


def _add_prompt(group: argparse._ArgumentGroup) -> None:
    prompt = group.add_mutually_exclusive_group()
    prompt.add_argument("--prompt", metavar="TEXT", help="the prompt")
    prompt.add_argument(
        "--prompt-file",
        metavar="FILE",
        help="read it from a UTF-8 file, - for stdin; one line break at the end is dropped",
    )
    group.add_argument("--system", metavar="TEXT", help="system message before the prompt")
    group.add_argument(
        "--raw", action="store_true", help="complete the plain text, without the chat template"
    )


def _add_generation(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--max-new-tokens",
        type=_count,
        metavar="N",
        help=f"most tokens to generate (default: {DEFAULT_NEW_TOKENS}, or what the context leaves)",
    )
    for flag, default, rule, text in (
        ("--temperature", 0.0, schema.NON_NEGATIVE_NUMBER, "0 is greedy"),
        ("--top-p", 1.0, schema.FRACTION, "keep the smallest set with this probability"),
        ("--min-p", 0.0, schema.FRACTION, "drop tokens below this fraction of the likeliest"),
        ("--repetition-penalty", 1.0, schema.POSITIVE_NUMBER, "above 1 avoids repetition"),
    ):
        group.add_argument(
            flag,
            type=_number(rule),
            default=default,
            metavar="X",
            help=f"{text} (default: %(default)s)",
        )
    group.add_argument(
        "--top-k", type=_whole, default=0, metavar="K", help="keep the K likeliest; 0 keeps all"
    )
    group.add_argument(
        "--seed", type=int, metavar="N", help="same seed, same text (default: random)"
    )
    group.add_argument(
        "--stop",
        action="append",
        type=_stop,
        metavar="TEXT",
        help="end before this text; may be given several times",
    )
    group.add_argument("--ignore-eos", action="store_true", help="go on past end-of-text tokens")


def _add_workers(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--quantization", choices=QUANTIZATIONS, help="default: bfloat16")
    group.add_argument(
        "--device", type=_device, metavar="DEVICE", help="auto, cpu, cuda, cuda:N, mps"
    )
    group.add_argument(
        "--threads",
        type=_count,
        metavar="N",
        help="compute threads (default: cores / local stages)",
    )
    group.add_argument(
        "--max-context", type=_count, metavar="N", help="most tokens of prompt and answer together"
    )
    group.add_argument(
        "--prefill-chunk",
        type=_count,
        default=DEFAULT_PREFILL_CHUNK,
        metavar="N",
        help="tokens of the prompt per step (default: %(default)s)",
    )
    group.add_argument(
        "--trust-remote-code", action="store_true", help="run code that comes with the model"
    )


def _add_output(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--json", action="store_true", help="print one JSON object at the end in place of the text"
    )
    bundle = group.add_mutually_exclusive_group()
    bundle.add_argument(
        "--bundle-dir",
        type=Path,
        metavar="DIR",
        help="folder to make the diagnostic bundle in (default: $XDG_STATE_HOME/stageline/bundles)",
    )
    bundle.add_argument("--no-bundle", action="store_true", help="write no diagnostic bundle")


def _number(rule: schema.Rule) -> Callable[[str], float]:
    def read(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = float("nan")
        if not rule.accepts(value):
            raise argparse.ArgumentTypeError(f"{text!r} must be {rule.expects}")
        return value

    return read


def _count(text: str) -> int:
    return _integer(text, 1)


def _whole(text: str) -> int:
    return _integer(text, 0)


def _slots(text: str) -> int:
    count = _integer(text, 1)
    if count > MAX_SLOTS:
        raise argparse.ArgumentTypeError(f"{text!r} is more than {MAX_SLOTS} stages")
    return count


def _integer(text: str, least: int) -> int:
    try:
        value = int(text)
    except ValueError:
        value = least - 1
    if value < least:
        raise argparse.ArgumentTypeError(f"{text!r} must be a whole number, at least {least}")
    return value


def _stop(text: str) -> str:
    if not text:
        raise argparse.ArgumentTypeError("an empty text would end the answer at once; give a text")
    return text


def _words(text: str) -> str:
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} cannot be split into words: {error}") from None
    if not words:
        raise argparse.ArgumentTypeError("is empty; give an ssh client")
    return text


def _device(text: str) -> str:
    try:
        return read_device(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
