"""The options of `orchestrator serve`."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

from orchestrator import option_types
from orchestrator.pipeline_options import PipelineOptions, add_bundle_flags, add_pipeline_options
from orchestrator.plan_options import options_from
from orchestrator.serve import limits
from worker.protocol import schema

DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 8000
DEFAULT_PLACES = 16
DEFAULT_QUEUE = 64
DEFAULT_CONNECTIONS = 1024
DEFAULT_DRAIN_S = 30.0
_LAST_PORT = 65535


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeOptions(PipelineOptions):
    """What the command line asked for; see `add_options` for the meaning of each."""

    host: str
    port: int
    served_model_name: str | None
    api_key_file: Path | None
    no_api_key_because: str | None
    allow_origin: list[str] | None
    max_concurrent: int
    max_queue: int
    max_connections: int
    max_body_bytes: int
    max_prompt_tokens: int | None
    max_new_tokens: int | None
    max_choices: int
    receive_timeout_s: float
    send_timeout_s: float
    drain_s: float
    access_log: bool

    @property
    def model_name(self) -> str:
        """What clients call the model."""
        return self.served_model_name or told_name(self.model_id)

    @property
    def limits(self) -> limits.Limits:
        """What one request may cost."""
        return limits.Limits(
            max_body_bytes=self.max_body_bytes,
            max_prompt_tokens=self.max_prompt_tokens,
            max_new_tokens=self.max_new_tokens,
            max_choices=self.max_choices,
            receive_timeout_s=self.receive_timeout_s,
            send_timeout_s=self.send_timeout_s,
        )


def read_options(parser: argparse.ArgumentParser, parsed: argparse.Namespace) -> ServeOptions:
    """Return the options; ends the program with a usage error where they contradict."""
    parsed.json = False
    options = options_from(ServeOptions, parsed)
    if (complaint := options.complaint()) is not None:
        parser.error(complaint)
    return options


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the flags."""
    add_pipeline_options(parser)
    _add_address(parser.add_argument_group("where it is served, and to whom"))
    _add_bounds(parser.add_argument_group("bounds"))
    output = parser.add_argument_group("output")
    output.add_argument(
        "--access-log",
        action="store_true",
        help="a line on stderr for each request: address, method, path, status, time",
    )
    add_bundle_flags(output)


def _add_address(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--host",
        default=DEFAULT_HOST,
        metavar="ADDRESS",
        help="where to listen (default: %(default)s; another than loopback needs an API key)",
    )
    group.add_argument(
        "--port",
        type=port,
        default=DEFAULT_PORT,
        metavar="PORT",
        help="0 takes a free one and says which (default: %(default)s)",
    )
    group.add_argument(
        "--served-model-name",
        metavar="NAME",
        help="what clients call the model (default: the hub id, or the name of the folder)",
    )
    keys = group.add_mutually_exclusive_group()
    keys.add_argument(
        "--api-key-file",
        type=Path,
        metavar="FILE",
        help="keys that clients must show one of, one a line (default: the one in "
        "$STAGELINE_API_KEY, if any)",
    )
    keys.add_argument(
        "--no-api-key-because",
        metavar="REASON",
        help="listen beyond loopback without a key; the reason goes to stderr and the bundle",
    )
    group.add_argument(
        "--allow-origin",
        action="append",
        type=option_types.origin,
        metavar="ORIGIN",
        help="let pages of this origin ask (https://chat.example.org), * for all; may be given "
        "several times",
    )


def _add_bounds(group: argparse._ArgumentGroup) -> None:
    for flag, default, text in (
        ("--max-concurrent", DEFAULT_PLACES, "answers generated at once"),
        ("--max-connections", DEFAULT_CONNECTIONS, "connections at once; 503 above"),
        ("--max-body-bytes", limits.DEFAULT_BODY_BYTES, "size of a request; 413 above"),
        ("--max-choices", limits.DEFAULT_CHOICES, "answers to one request, n times its prompts"),
    ):
        group.add_argument(
            flag,
            type=option_types.count,
            default=default,
            metavar="N",
            help=f"{text} (default: %(default)s)",
        )
    group.add_argument(
        "--max-queue",
        type=option_types.whole,
        default=DEFAULT_QUEUE,
        metavar="N",
        help="answers that wait for their turn; 429 above (default: %(default)s)",
    )
    for flag, text in (
        ("--max-prompt-tokens", "tokens of a prompt; 400 above (default: what the context holds)"),
        ("--max-new-tokens", "tokens of an answer; 400 above (default: what the context holds)"),
    ):
        group.add_argument(flag, type=option_types.count, metavar="N", help=text)
    for flag, default_s, text in (
        (
            "--receive-timeout-s",
            limits.DEFAULT_RECEIVE_TIMEOUT_S,
            "for the head of a request, and again for its body; 408 after it",
        ),
        (
            "--send-timeout-s",
            limits.DEFAULT_SEND_TIMEOUT_S,
            "that a client may leave unread what it asked for",
        ),
        ("--drain-s", DEFAULT_DRAIN_S, "that answers may take to end after SIGTERM or Ctrl-C"),
    ):
        group.add_argument(
            flag,
            type=option_types.number(schema.NON_NEGATIVE_NUMBER),
            default=default_s,
            metavar="S",
            help=f"{text} (default: %(default)g)",
        )


def port(text: str) -> int:
    """Read a port's number."""
    number = option_types.whole(text)
    if number > _LAST_PORT:
        raise argparse.ArgumentTypeError(f"{text!r} must be at most {_LAST_PORT}")
    return number


def told_name(model_id: str | None) -> str:
    """Return what others are told of a model; of a folder its name, for its path is nobody's."""
    if model_id is None:
        return "stub"
    is_path = Path(model_id).is_dir() or model_id.startswith(("/", ".", "~"))
    return Path(model_id).resolve().name if is_path else model_id
