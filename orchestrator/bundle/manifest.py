"""What a bundle says about the run as a whole: at its start, and at its end."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from orchestrator import __version__
from orchestrator.bundle.records import StageRecord
from worker.protocol.codec import PROTOCOL_VERSION
from worker.protocol.schema import (
    INTEGER,
    NON_NEGATIVE,
    NON_NEGATIVE_NUMBER,
    OBJECT,
    TEXT,
    TEXTS,
    ProtocolError,
    Rule,
    parse,
    rule,
    to_fields,
)

FORMAT_VERSION = 1


def _stages(values: list[dict[str, Any]]) -> tuple[StageRecord, ...]:
    stages = []
    for value in values:
        try:
            stages.append(parse(StageRecord, value))
        except ProtocolError:
            continue  # Another version's stage; the ready lines still tell what ran.
    return tuple(stages)


STAGES = Rule(
    "a list of objects",
    lambda v: isinstance(v, list) and all(isinstance(o, dict) for o in v),
    to_python=_stages,
    to_json=lambda stages: [to_fields(stage) for stage in stages],
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """The run as it was asked for; the caller gives `command`, `config` and `stages`."""

    format: int = rule(NON_NEGATIVE, "version of the bundle's format", 0)
    started: str = rule(TEXT, "ISO 8601, UTC", "")
    wall_ms: float = rule(NON_NEGATIVE_NUMBER, "the same in ms since the Unix epoch", 0.0)
    version: str = rule(TEXT, "product version", "")
    protocol_version: str = rule(TEXT, "protocol version", "")
    python: str = rule(TEXT, "python version", "")
    platform: str = rule(TEXT, "operating system and processor", "")
    host: str = rule(TEXT, "where the orchestrator ran", "")
    pid: int = rule(NON_NEGATIVE, "process id of the orchestrator", 0)
    command: tuple[str, ...] = rule(TEXTS, "the command line, secrets and texts masked", ())
    config: Mapping[str, Any] | None = rule(OBJECT, "options, secrets and texts masked", None)
    hosts: tuple[str, ...] = rule(TEXTS, "lines of the hosts file, secrets masked", ())
    stages: tuple[StageRecord, ...] = rule(STAGES, "the stages, or the hosts of a survey", ())
    plan: Mapping[str, Any] | None = rule(OBJECT, "what each stage needs, after a survey", None)

    def stamped(self, now_ns: int) -> Manifest:
        """Return the manifest with what this process knows about itself filled in."""
        return replace(
            self,
            format=FORMAT_VERSION,
            started=datetime.fromtimestamp(now_ns / 1e9, UTC).isoformat(timespec="milliseconds"),
            wall_ms=now_ns / 1e6,
            version=__version__,
            protocol_version=PROTOCOL_VERSION,
            python=platform.python_version(),
            platform=f"{sys.platform} {platform.machine()}",
            host=platform.node(),
            pid=os.getpid(),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class EndRecord:
    """The orderly end of a run; a bundle without it is of a killed or a running one."""

    wall_ms: float = rule(NON_NEGATIVE_NUMBER, "when the bundle was closed", 0.0)
    exit_code: int | None = rule(INTEGER, "exit code of the orchestrator", None)
    error: str | None = rule(TEXT, "what the user was told, where the run failed", None)
    dropped_bytes: int = rule(NON_NEGATIVE, "bytes left out because a file was full", 0)
