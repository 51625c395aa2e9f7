"""What starts a stage that is a script of ours, with the lines that it says of itself."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from orchestrator.specs import StageSpec
from worker import __version__
from worker.protocol.codec import PROTOCOL_VERSION, encode_event, encode_ready
from worker.protocol.events import Envelope, Starting
from worker.protocol.ready import Ready


def scripted_spec(
    program: Path,
    words: Sequence[str],
    *,
    stage: int,
    num_stages: int,
    hidden_chars: int,
    **ready: Any,
) -> StageSpec:
    """Return a stage whose script is given its first line, its ready line, then these words.

    Args:
        program: the script; its first line has NONCE for the nonce.
        words: what else it is told.
        stage: index of the stage.
        num_stages: how many there are.
        hidden_chars: length of the base64 text of a hidden state.
        **ready: further fields of the ready line.
    """
    host = program.stem.partition("_")[0]
    hello = Starting(
        protocol_version=PROTOCOL_VERSION,
        version=__version__,
        python="3",
        pid=0,
        host=host,
        nonce="NONCE",
    )
    readiness = Ready(
        pid=0,
        stage=stage,
        num_stages=num_stages,
        protocol_version=PROTOCOL_VERSION,
        version=__version__,
        layer_range=(stage, stage + 1),
        total_blocks=num_stages,
        hidden_dim=hidden_chars * 3 // 8,
        vocab_size=100,
        **ready,
    )
    lines = (encode_event(hello, Envelope(stage=stage)), encode_ready(readiness))
    told = [line.decode().strip() for line in lines]
    return StageSpec(
        stage=stage,
        num_stages=num_stages,
        host=host,
        transport="command",
        code="installed",
        command=(sys.executable, "-I", "-S", str(program), *told, *words),
    )
