"""What the orchestrator takes from its surroundings; the only place that reads the environment."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from urllib.parse import urlsplit

DEFAULT_SSH_COMMAND = "ssh"

# Their values are masked wherever a bundle would hold them.
API_KEY = "STAGELINE_API_KEY"
_SECRET_VARIABLES = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HUGGINGFACE_HUB_TOKEN", API_KEY)
# What a worker needs to reach the hub as this machine does; programs differ in the case they read.
_PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY")
FORWARDED = ("HF_TOKEN", "HF_ENDPOINT", *_PROXIES, *map(str.lower, _PROXIES))


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """The surroundings of this process, read once.

    Attributes:
        state_dir: folder for what this program keeps between runs.
        cores: processors that this process may use.
        secrets: values that must not stand in any file.
        variables: the environment itself, for what is forwarded by name.
        python_path: what PYTHONPATH says, "" where it is unset; local workers keep it, behind
            the folder of this program.
        api_key: what clients of a server must show, "" where the environment names none.
    """

    state_dir: Path
    cores: int
    secrets: tuple[str, ...]
    python_path: str = ""
    api_key: str = field(default="", repr=False)
    variables: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}), repr=False)

    def forwarded(self, names: Sequence[str] = ()) -> dict[str, str]:
        """Return the variables that workers elsewhere are given: those of `FORWARDED` and `names`.

        Raises:
            NotForwarded: one of `names` is not set here.
        """
        for name in names:
            if name not in self.variables:
                raise NotForwarded(f"--forward {name}: {name} is not set here; export it first")
        return {
            name: self.variables[name]
            for name in dict.fromkeys((*FORWARDED, *names))
            if self.variables.get(name) or name in names
        }

    def masked(self, names: Sequence[str] = ()) -> tuple[str, ...]:
        """Return the values that must not stand in a bundle, with those forwarded by name.

        Of an endpoint or a proxy only the password: where it leads to is needed to explain a
        failure.
        """
        found = {*self.secrets, *(self.variables[name] for name in names if name in self.variables)}
        for name in FORWARDED[1:]:
            password = _password(self.variables.get(name, ""))
            found |= {password} if password else set()
        return tuple(sorted(found))


class NotForwarded(ValueError):
    """A variable that is to be forwarded and is not there; one sentence."""


def _password(text: str) -> str | None:
    try:
        return urlsplit(text).password
    except ValueError:  # No address; whoever uses it will say so.
        return None


def surroundings(environ: Mapping[str, str] | None = None) -> Surroundings:
    """Read the surroundings."""
    environ = os.environ if environ is None else environ
    return Surroundings(
        state_dir=_state_home(environ.get("XDG_STATE_HOME", "")) / "stageline",
        cores=_usable_cores(),
        secrets=tuple(environ[name] for name in _SECRET_VARIABLES if environ.get(name)),
        python_path=environ.get("PYTHONPATH", ""),
        api_key=environ.get(API_KEY, ""),
        variables=MappingProxyType(dict(environ)),
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
