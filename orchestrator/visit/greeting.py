"""The first lines from a host: what login scripts print, then its shell, then its Python."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from orchestrator.stage.handshake import MAX_NOISE_BYTES
from orchestrator.visit.check import Check
from orchestrator.visit.departure import VisitFailed

_NOISE_LINES_KEPT = 10


@dataclass(frozen=True, slots=True)
class Interpreter:
    """The Python that answered."""

    version: tuple[int, int, int]
    path: str

    @property
    def words(self) -> str:
        """Its version as people write it."""
        return ".".join(map(str, self.version))


@dataclass(slots=True)
class Greeting:
    """Tell our lines, which have the nonce, from noise.

    Attributes:
        has_shell: whether a shell of the host has spoken.
        noise: the last lines that were not ours.
    """

    nonce: str
    has_shell: bool = False
    noise: list[str] = field(default_factory=list)
    _noise_bytes: int = 0

    def take(self, line: bytes) -> Interpreter | None:
        """Take one line; return the interpreter once it has said what it is.

        Raises:
            VisitFailed: there is too much noise.
        """
        text = line.decode("utf-8", "replace").strip("\r\n")
        if text.endswith(f"{self.nonce} shell"):
            self.has_shell = True
            return None
        found = re.fullmatch(rf"{self.nonce} python (\d+)\.(\d+)\.(\d+) (.*)", text)
        if found:
            return Interpreter((int(found[1]), int(found[2]), int(found[3])), found[4])
        self.noise = [*self.noise, text[:300]][-_NOISE_LINES_KEPT:]
        self._noise_bytes += len(line)
        if self._noise_bytes > MAX_NOISE_BYTES:
            raise too_noisy()
        return None

    def too_late(self, limit_s: float) -> VisitFailed:
        """Return the failure of a host that does not get so far in time."""
        check, what = (Check.PYTHON, "its Python") if self.has_shell else (Check.LOGIN, "its shell")
        return VisitFailed(
            check,
            f"does not answer within {limit_s:g} s: {what} did not begin; wait for it longer "
            "with --start-timeout-s",
        )


def too_noisy() -> VisitFailed:
    """Return the failure of a host that prints too much."""
    return VisitFailed(
        Check.LOGIN,
        f"writes more than {MAX_NOISE_BYTES >> 10} KiB to stdout at login; keep its shell's "
        "start-up files quiet when nobody types ('case $- in *i*) ;; *) return ;; esac' first)",
    )
