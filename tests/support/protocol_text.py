"""Take protocol.md's examples out of its text."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

DOCUMENT = Path(__file__).resolve().parents[2] / "protocol.md"
_BLOCK = re.compile(r"^( *)```(\w+)([^\n]*)\n(.*?)^\1```$", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Exchange:
    """Requests and replies with one stub stage; each request has one reply."""

    stage: int
    num_stages: int
    requests: tuple[str, ...]
    replies: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.stage}-of-{self.num_stages}: {self.requests[0][:40]}"


def blocks(kind: str) -> list[tuple[str, str]]:
    """Return (what follows the kind, content) of each fenced block of a kind."""
    found = _BLOCK.findall(DOCUMENT.read_text(encoding="utf-8"))
    return [(info.strip(), body) for _, name, info, body in found if name == kind]


def exchanges() -> list[Exchange]:
    """Return the document's exchanges in order.

    Raises:
        ValueError: a block is not made of requests and replies.
    """
    result = []
    for info, body in blocks("exchange"):
        settings = dict(part.split("=") for part in info.split())
        lines = body.splitlines()
        sent = tuple(line[2:] for line in lines[::2] if line.startswith("> "))
        received = tuple(line[2:] for line in lines[1::2] if line.startswith("< "))
        if len(sent) + len(received) != len(lines):
            raise ValueError(f"not requests and replies in turn: {body}")
        result.append(Exchange(int(settings["stage"]), int(settings["num_stages"]), sent, received))
    return result
