"""What the orchestrator takes from its surroundings; the only place that reads the environment."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

DEFAULT_SSH_COMMAND = "ssh"

# Their values are masked wherever a bundle would hold them.
_SECRET_VARIABLES = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HUGGINGFACE_HUB_TOKEN")


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """The surroundings of this process, read once.

    Attributes:
        state_dir: folder for what this program keeps between runs.
        cores: processors that this process may use.
        secrets: values that must not stand in any file.
        python_path: what PYTHONPATH says, "" where it is unset; local workers keep it, behind
            the folder of this program.
    """

    state_dir: Path
    cores: int
    secrets: tuple[str, ...]
    python_path: str = ""


def surroundings(environ: Mapping[str, str] | None = None) -> Surroundings:
    """Read the surroundings."""
    environ = os.environ if environ is None else environ
    return Surroundings(
        state_dir=_state_home(environ.get("XDG_STATE_HOME", "")) / "stageline",
        cores=_usable_cores(),
        secrets=tuple(environ[name] for name in _SECRET_VARIABLES if environ.get(name)),
        python_path=environ.get("PYTHONPATH", ""),
    )


def _state_home(given: str) -> Path:
    # The XDG specification says that a relative path is to be ignored.
    if given.startswith("/"):
        return Path(given)
    try:
        return Path.home() / ".local" / "state"
    except RuntimeError:  # A container's user may have no home.
        return Path(tempfile.gettempdir())


def _usable_cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
