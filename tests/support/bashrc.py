"""Homes whose login scripts do what login scripts do, and ports of an sshd that lead to them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

SCRIPTS = {
    "banner": r"printf '\033[1;32mWelcome\033[0m\r\nno newline at its end'",
    "flood": "head -c 1048576 /dev/zero | tr '\\0' 'x'",
    "eats_stdin": "read -t 0.2 eaten; true",
    "exits": "exit 7",
    "slow": "sleep 1.5",
}


def write_homes(folder: Path) -> Mapping[str, str]:
    """Make a home for each script of `SCRIPTS`; return the rules of a door to each."""
    doors = {}
    for name, script in SCRIPTS.items():
        home = folder / f"home_{name}"
        home.mkdir(parents=True)
        (home / ".bashrc").write_text(f"{script}\n")
        doors[name] = f"SetEnv HOME={home}"
    return doors
