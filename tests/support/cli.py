"""The orchestrator's command line as a user starts it: a process of its own."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
COMMAND = (sys.executable, "-P", "-m", "orchestrator")


def environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return this environment with the checkout as the only place the packages come from."""
    return {**os.environ, "PYTHONPATH": str(ROOT), **(extra or {})}


def run_cli(
    *words: str, stdin: str = "", timeout_s: float = 60, **kwargs: Any
) -> subprocess.CompletedProcess[str]:
    """Run the command line to its end."""
    return subprocess.run(
        [*COMMAND, *words],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        env=environment(),
        **kwargs,
    )


def start_cli(*words: str, **kwargs: Any) -> subprocess.Popen[bytes]:
    """Start the command line; all three streams are unbuffered pipes, unless `kwargs` say so."""
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen([*COMMAND, *words], bufsize=0, env=environment(), **{**pipes, **kwargs})


def stub_tokens(prompt: str) -> list[int]:
    """Tokenize as the protocol's stub chapter says."""
    return [sum(map(ord, word)) % 1024 + i for i, word in enumerate(prompt.split())]


def stub_answer(prompt: str, num_stages: int, num_new: int, chunk: int = 256) -> list[int]:
    """Return the ids that stub workers choose, computed from the protocol's words alone."""
    ids = stub_tokens(prompt)
    num_prompt = len(ids)
    start = (num_prompt - 1) // chunk * chunk
    while len(ids) < num_prompt + num_new:
        part = ids[start:]
        hidden = _first(part, start)
        for _ in range(num_stages - 2):
            hidden = _middle(hidden, start, len(part))
        digest = _hash(b"pp-stub-sample:" + start.to_bytes(8, "little") + hidden)
        start = len(ids)
        ids.append(int.from_bytes(digest[:4], "little") % 32)
    return ids[num_prompt:]


def _first(ids: Sequence[int], position: int) -> bytes:
    text = ",".join(map(str, ids))
    return _rows(_hash(f"pp-stub:{position}|{text}".encode()), len(ids))


def _middle(hidden: bytes, position: int, seq_len: int) -> bytes:
    return _rows(_hash(b"pp-stub-fr:" + position.to_bytes(8, "little") + hidden), seq_len)


def _rows(seed: bytes, seq_len: int) -> bytes:
    size = seq_len * 16 * 2
    blocks = (_hash(seed + i.to_bytes(8, "little")) for i in range(size // 32 + 1))
    return b"".join(blocks)[:size]


def _hash(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()
