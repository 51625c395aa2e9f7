"""hosts.txt: one stage slot a line. docs/hosts.md describes the format."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from orchestrator.address import Address, parse_address
from orchestrator.host_keys import KEYS
from orchestrator.spelling import closest
from orchestrator.words import split_words

_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
# The plan alone says which stage a worker is.
_RESERVED_ENV = ("STAGE", "NUM_STAGES")
_NEW_LINE = re.compile(r"\r\n|\n|\r")


class HostsError(Exception):
    """A hosts file that cannot be used; one sentence that begins with `file:line:`, or `file:`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostEntry:
    """One line of a hosts file: `slots` stages in one place.

    Attributes:
        line: line number in the file, from 1; 0 for an entry from the command line.
        address: where to go with ssh; None for a process here or a command.
        command: a launcher that gives stdin and stdout, split as a shell would; or None.
        spare: kept aside, no stage is planned on it.
        layers: half-open range of layers that this slot must hold, or None.
        code: whether the worker's code is sent there, or what is installed there is run.
        text: the line itself, for the bundle.
        name: what messages call the place, where its command would say too little.
    """

    line: int
    address: Address | None = None
    command: str | None = None
    spare: bool = False
    slots: int = 1
    layers: tuple[int, int] | None = None
    python: str | None = None
    code: Literal["shipped", "installed"] = "shipped"
    device: str | None = None
    quantization: str | None = None
    engine: str | None = None
    memory_bytes: int | None = None
    env: tuple[tuple[str, str], ...] = ()
    text: str = field(default="", compare=False)
    name: str | None = None

    @property
    def is_local(self) -> bool:
        """Whether it is a subprocess here."""
        return self.address is None and self.command is None

    @property
    def label(self) -> str:
        """Name of the place in messages."""
        return self.name or self.command or str(self.address or "local")


def read_hosts(path: Path) -> list[HostEntry]:
    """Read a hosts file.

    Raises:
        HostsError: it cannot be read, has a mistake, or has no host.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise HostsError(
            f"{path}: cannot read the hosts file ({reason}); give the path of a text file with "
            "one stage a line, or use --local N"
        ) from None
    return parse_hosts(data, str(path))


def parse_hosts(data: bytes, name: str = "hosts.txt") -> list[HostEntry]:
    """Read the bytes of a hosts file; `name` begins its messages.

    Raises:
        HostsError: there is a mistake, or no host.
    """
    lines = _NEW_LINE.split(_decode(data, name))
    entries: list[HostEntry] = []
    for number, line in enumerate(lines, start=1):
        try:
            words = split_words(line)
            if words:
                entries.append(replace(_entry(words, number), text=line.strip()))
        except ValueError as error:
            raise HostsError(f"{name}:{number}: {error}") from None
    if not any(not entry.spare for entry in entries):
        what = "only spare hosts" if entries else "no host in the file"
        raise HostsError(
            f"{name}: {what}; write one stage a line, for example 'local' or 'user@gpu1.lan'"
        )
    return entries


def _decode(data: bytes, name: str) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = data[: error.start].decode("utf-8-sig", "replace")
        number = len(_NEW_LINE.split(before))
        raise HostsError(
            f"{name}:{number}: byte 0x{data[error.start]:02x} is not UTF-8; save the file as UTF-8"
        ) from None


def _entry(words: list[str], number: int) -> HostEntry:
    entry = HostEntry(line=number)
    if words[0] == "spare":
        entry, words = replace(entry, spare=True), words[1:]
        if not words:
            raise ValueError("'spare' needs a host after it, as in 'spare gpu9.lan'")
    place, options = words[0], words[1:]
    if place.startswith("command="):
        entry = replace(entry, command=_command(place.removeprefix("command=")))
    elif place != "local":
        key, equals, _ = place.partition("=")
        if equals and (key in KEYS or key.startswith("env.")):
            raise ValueError(f"'{key}=' stands before any host; begin the line with the host")
        entry = replace(entry, address=parse_address(place))
    return _checked(_with_options(entry, options))


def _with_options(entry: HostEntry, options: list[str]) -> HostEntry:
    values: dict[str, Any] = {}
    env: dict[str, str] = {}
    for option in options:
        key, equals, value = option.partition("=")
        if option == "spare":
            raise ValueError("'spare' stands behind the host; write 'spare' before the host")
        if not equals:
            raise ValueError(
                f"{option!r} is not of the form key=value; put each host on a line of its own"
            )
        if key.startswith("env."):
            name = _env_name(key.removeprefix("env."), env)
            env[name] = value
            continue
        if key not in KEYS:
            raise ValueError(_unknown_key(key))
        name, read = KEYS[key]
        if name in values:
            raise ValueError(f"'{key}=' is given twice; keep one of them")
        if not value:
            raise ValueError(f"'{key}=' has no value; give one or leave the key out")
        values[name] = read(value)
    return replace(entry, **values, env=tuple(env.items()))


def _checked(entry: HostEntry) -> HostEntry:
    if entry.layers and entry.slots > 1:
        raise ValueError(
            f"layers= names the layers of one stage, but the line has slots={entry.slots}; "
            "write one line for each stage"
        )
    if entry.layers and entry.spare:
        raise ValueError("a spare host has no layers of its own; leave layers= out")
    if entry.is_local and entry.code == "installed":
        raise ValueError("code= is for workers elsewhere; one here runs the code of this program")
    return entry


def _env_name(name: str, env: dict[str, str]) -> str:
    if not _ENV_NAME.fullmatch(name):
        raise ValueError(f"{name!r} is not a variable's name; write env.NAME=value")
    if name in _RESERVED_ENV:
        raise ValueError(f"env.{name} would contradict the plan; use layers= to choose layers")
    if name in env:
        raise ValueError(f"'env.{name}=' is given twice; keep one of them")
    return name


def _unknown_key(key: str) -> str:
    known = [*KEYS, "env.NAME"]
    close = closest(key, known)
    hint = f"did you mean '{close}='?" if close else f"known are {', '.join(known)}"
    return f"unknown key '{key}='; {hint}"


def _command(text: str) -> str:
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise ValueError(f"command={text!r} cannot be split into words: {error}") from None
    if not words:
        raise ValueError('command= is empty; write for example command="kubectl exec -i llm-0 --"')
    return text.strip()
