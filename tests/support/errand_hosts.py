"""Hosts files whose lines are the peer `surveyed`, each as a test wants its host."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def peer_line(words: str = "", /, **environment: object) -> str:
    """Return a line of a hosts file; `environment` is the peer's, without `PEER_`."""
    settings = [f"PEER_{name.upper()}={value}" for name, value in environment.items()]
    program = ["env", f"PYTHONPATH={ROOT}", *settings, sys.executable]
    return f'command="{" ".join(program)} -m tests.support.peers.surveyed" {words}'.strip()


def hosts_file(folder: Path, *lines: str) -> str:
    """Write a hosts file and return its path."""
    path = folder / "hosts.txt"
    path.write_text("\n".join(lines) + "\n")
    return str(path)
