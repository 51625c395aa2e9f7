"""The options of `orchestrator serve`."""

from __future__ import annotations

import argparse
from dataclasses import dataclass

from orchestrator import option_types
from orchestrator.pipeline_options import PipelineOptions, add_bundle_flags, add_pipeline_options
from orchestrator.plan_options import options_from
from orchestrator.serve import limits
from orchestrator.serve.http_options import (
    DEFAULT_CONNECTIONS,
    DEFAULT_PLACES,
    DEFAULT_QUEUE,
    HttpOptions,
    add_access_flags,
    add_address_flags,
    add_count_flags,
    add_time_flags,
    told_name,
)

DEFAULT_PORT = 8000


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeOptions(HttpOptions, PipelineOptions):
    """What the command line asked for; see `add_options` for the meaning of each."""

    served_model_name: str | None
    max_prompt_tokens: int | None
    max_new_tokens: int | None
    max_choices: int
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
    add_address_flags(group, DEFAULT_PORT)
    group.add_argument(
        "--served-model-name",
        metavar="NAME",
        help="what clients call the model (default: the hub id, or the name of the folder)",
    )
    add_access_flags(
        group,
        reason_goes_to="stderr and the bundle",
        origin="let pages of this origin ask (https://chat.example.org), * for all",
    )


def _add_bounds(group: argparse._ArgumentGroup) -> None:
    count, whole, bytes_ = option_types.count, option_types.whole, limits.DEFAULT_BODY_BYTES
    choices = "answers to one request, n times its prompts"
    context = "(default: what the context holds)"
    add_count_flags(
        group,
        ("--max-concurrent", count, DEFAULT_PLACES, "answers generated at once"),
        ("--max-connections", count, DEFAULT_CONNECTIONS, "connections at once; 503 above"),
        ("--max-body-bytes", count, bytes_, "size of a request; 413 above"),
        ("--max-choices", count, limits.DEFAULT_CHOICES, choices),
        ("--max-queue", whole, DEFAULT_QUEUE, "answers that wait for their turn; 429 above"),
        ("--max-prompt-tokens", count, None, f"tokens of a prompt; 400 above {context}"),
        ("--max-new-tokens", count, None, f"tokens of an answer; 400 above {context}"),
    )
    add_time_flags(
        group,
        receive="for the head of a request, and again for its body; 408 after it",
        send="that a client may leave unread what it asked for",
        drain="that answers may take to end after SIGTERM or Ctrl-C",
    )
