"""Options of every command that answers over HTTP: where, to whom, and how much at once."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from orchestrator import option_types
from orchestrator.serve import limits
from worker.protocol import schema

DEFAULT_HOST = "127.0.0.1"
DEFAULT_PLACES = 16
DEFAULT_QUEUE = 64
DEFAULT_CONNECTIONS = 1024
DEFAULT_DRAIN_S = 30.0
_LAST_PORT = 65535
# A flag, what reads it, its default, what it bounds.
Count = tuple[str, Callable[[str], int], int | None, str]


# Without slots: a class of options has this one and another as its bases.
@dataclass(frozen=True, kw_only=True)
class HttpOptions:
    """What the command line says of it; docs/serve.md tells the meaning of each."""

    host: str
    port: int
    api_key_file: Path | None
    no_api_key_because: str | None
    allow_origin: list[str] | None
    max_concurrent: int
    max_queue: int
    max_connections: int
    max_body_bytes: int
    receive_timeout_s: float
    send_timeout_s: float
    drain_s: float


def add_address_flags(group: argparse._ArgumentGroup, default_port: int | None = None) -> None:
    """Declare --host and --port, which must be given where it has no default."""
    group.add_argument(
        "--host",
        default=DEFAULT_HOST,
        metavar="ADDRESS",
        help="where to listen (default: %(default)s; another than loopback needs an API key)",
    )
    free = "0 takes a free one and says which"
    if default_port is None:
        group.add_argument("--port", type=_port, required=True, metavar="P", help=free)
    else:
        group.add_argument(
            "--port",
            type=_port,
            default=default_port,
            metavar="PORT",
            help=f"{free} (default: %(default)s)",
        )


def add_access_flags(group: argparse._ArgumentGroup, *, reason_goes_to: str, origin: str) -> None:
    """Declare who may ask; the texts tell where the reason goes and what an origin is for."""
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
        help=f"listen beyond loopback without a key; the reason goes to {reason_goes_to}",
    )
    group.add_argument(
        "--allow-origin",
        action="append",
        type=option_types.origin,
        metavar="ORIGIN",
        help=f"{origin}; may be given several times",
    )


def add_count_flags(group: argparse._ArgumentGroup, *counts: Count) -> None:
    """Declare the bounds that are numbers; where the default is None, the text tells it."""
    for flag, kind, default, text in counts:
        told = text if default is None else f"{text} (default: %(default)s)"
        group.add_argument(flag, type=kind, default=default, metavar="N", help=told)


def add_time_flags(group: argparse._ArgumentGroup, *, receive: str, send: str, drain: str) -> None:
    """Declare the bounds that are seconds; the texts tell what each is for."""
    for flag, default_s, text in (
        ("--receive-timeout-s", limits.DEFAULT_RECEIVE_TIMEOUT_S, receive),
        ("--send-timeout-s", limits.DEFAULT_SEND_TIMEOUT_S, send),
        ("--drain-s", DEFAULT_DRAIN_S, drain),
    ):
        group.add_argument(
            flag,
            type=option_types.number(schema.NON_NEGATIVE_NUMBER),
            default=default_s,
            metavar="S",
            help=f"{text} (default: %(default)g)",
        )


def told_name(model_id: str | None) -> str:
    """Return what others are told of a model; of a folder its name, for its path is nobody's."""
    if model_id is None:
        return "stub"
    is_path = Path(model_id).is_dir() or model_id.startswith(("/", ".", "~"))
    return Path(model_id).resolve().name if is_path else model_id


def _port(text: str) -> int:
    number = option_types.whole(text)
    if number > _LAST_PORT:
        raise argparse.ArgumentTypeError(f"{text!r} must be at most {_LAST_PORT}")
    return number
