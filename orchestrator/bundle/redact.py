"""Take out of a bundle what its reader has no need of: secrets, user names, home folders, hosts."""

from __future__ import annotations

import ipaddress
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

from orchestrator.bundle.manifest import EndRecord, Manifest
from orchestrator.bundle.mask import Masker
from orchestrator.bundle.records import (
    ExitRecord,
    FailureRecord,
    OpRecord,
    RecoveryRecord,
    RequestRecord,
    StageRecord,
)
from worker.protocol.events import EVENTS, Envelope
from worker.protocol.ready import Ready
from worker.protocol.schema import rules_of

_TOKENS = re.compile(
    r"\b(?:hf_|api_org_|gh[pousr]_|github_pat_|glpat-|xox[abprs]-|sk-|AKIA|AIza)[\w-]{16,}"
    r"|\beyJ[\w-]{10,}\.[\w-]{10,}\.[\w-]+"  # a JSON web token
    r"|(?<=://)[^/\s:@'\"]+:[^/\s@'\"]+(?=@)"  # user:password of an address
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|$)",
    re.DOTALL,
)
_HOME = re.compile(
    r"(?:(?<![\w.~/-])|(?<=file://))(?:/(?:[\w.-]+/)*?home|/Users)/([\w-]+(?:\.[\w-]+)*)"
)
_ROOT = re.compile(r"(?:(?<![\w.~/-])|(?<=file://))/root(?![\w.-])")
_ADDRESS = re.compile(
    r"(?<![\w.:])(?:\d{1,3}\.){3}\d{1,3}(?![\w.]*\w)"
    r"|(?<![\w.:])(?=[0-9a-fA-F]*:[0-9a-fA-F]*:)[0-9a-fA-F:]{3,39}(?![\w:.]*\w)"
    r"|(?<=://)[\w.-]+|(?<=@)[\w-]+(?:\.[\w-]+)+"
)
# What keeps its value although a host may be called the same: the reader goes by these.
_STRUCTURE = frozenset(
    "event op kind transport device status signal code started finish_reason library layer_range "
    "quantization limit version".split()
)
_RECORDS = (
    *(Manifest, StageRecord, EndRecord, ExitRecord, FailureRecord),
    *(OpRecord, RecoveryRecord, RequestRecord),
)
_KNOWN_KEYS = frozenset(
    field.name
    for message in (*EVENTS.values(), *_RECORDS, Ready, Envelope)
    for field, _ in rules_of(message)
)
_REPLACED = re.compile(r"(?:user|host)\d+")  # By an earlier packing.
# The last two because ssh names its own ciphers so: `aes128-gcm@openssh.com`.
_PUBLIC = frozenset(
    "? local localhost 127.0.0.1 ::1 huggingface.co openssh.com libssh.org".split()
) | {""}


class Redactor:
    """Replaces, the same by the same throughout a bundle, and counts.

    Args:
        users: names of users, to be replaced where they stand in paths or before an `@`.
        hosts: names of hosts to be replaced; none to keep names and addresses.
        hide_hosts: whether to replace them, and every address.

    Attributes:
        counts: how often each kind of thing was replaced.
    """

    def __init__(
        self, users: Iterable[str] = (), hosts: Iterable[str] = (), *, hide_hosts: bool = False
    ) -> None:
        self.counts: Counter[str] = Counter()
        self._masker = Masker()
        self._hides_hosts = hide_hosts
        named_users = sorted({user.lower() for user in users if _is_named(user)} - {"root"})
        self._users = {user: f"user{n}" for n, user in enumerate(named_users, start=1)}
        self._user = _any_of(self._users, r"(?<=/){}(?![\w.-])|(?<![\w.-]){}(?=@)")
        self._hosts: dict[str, str] = {}
        named_hosts = {host.lower() for host in hosts if hide_hosts and _is_named(host)}
        for host in sorted(named_hosts - _PUBLIC):
            alias = self._alias(host)
            if not host.replace(".", "").isdecimal():
                self._hosts.setdefault(host.partition(".")[0], alias)
        self._host = _any_of(self._hosts, r"(?<![\w-]){}(?![\w-])")

    def text(self, text: str) -> str:
        """Return a text with everything replaced."""
        masked = self._masker.text(text)
        self.counts["secret"] += masked.count("***") - text.count("***")
        text = self._replace("secret", _TOKENS, lambda match: "***", masked)
        text = self._replace("home folder", _HOME, lambda match: "~", text)
        text = self._replace("home folder", _ROOT, lambda match: "~", text)
        if self._user is not None:
            text = self._replace("user name", self._user, lambda m: self._users[m[0].lower()], text)
        if self._host is not None:
            text = self._replace("host", self._host, lambda m: self._hosts[m[0].lower()], text)
        return (
            self._replace("address", _ADDRESS, self._address, text) if self._hides_hosts else text
        )

    def line(self, line: str) -> str:
        """Return a line of a file of JSON lines; where it is cut, as text."""
        try:
            values = json.loads(line)
        except (ValueError, RecursionError):
            return self.text(line)
        return json.dumps(self.value(values), separators=(",", ":"), ensure_ascii=False)

    def value(self, value: Any, name: str = "") -> Any:
        """Return a JSON value with the texts in it replaced; `name` is the key it stands under."""
        if isinstance(value, str):
            return value if name in _STRUCTURE else self.text(value)
        if isinstance(value, list):
            return [self.value(item, name) for item in value]
        if isinstance(value, dict):
            # A key of another's may be a path, or the name of a host.
            return {
                key if key in _KNOWN_KEYS else self.text(key): self.value(item, key)
                for key, item in value.items()
            }
        return value

    def _alias(self, host: str) -> str:
        return self._hosts.setdefault(host, f"host{len(set(self._hosts.values())) + 1}")

    def _address(self, match: re.Match[str]) -> str:
        found = match[0].lower()
        if found in _PUBLIC or found in self._hosts.values() or not _is_foreign(found):
            self.counts["address"] -= 1
            return match[0]
        return self._alias(found)

    def _replace(
        self, what: str, pattern: re.Pattern[str], by: Callable[[re.Match[str]], str], text: str
    ) -> str:
        text, count = pattern.subn(by, text)
        self.counts[what] += count
        return text


def user_names(text: str) -> set[str]:
    """Return the names of users that the home folders in a text tell."""
    return {match[1] for match in _HOME.finditer(text)}


def _is_named(name: str) -> bool:
    return _REPLACED.fullmatch(name) is None


def _is_foreign(found: str) -> bool:
    """Tell a name, or an address that is not one of this machine's own, from other numbers."""
    try:
        address = ipaddress.ip_address(found)
    except ValueError:
        return ":" not in found and not found.replace(".", "").isdecimal()
    return not (address.is_loopback or address.is_unspecified)


def _any_of(names: Iterable[str], around: str) -> re.Pattern[str] | None:
    longest_first = sorted(names, key=len, reverse=True)
    if not longest_first:
        return None
    either = "(?:" + "|".join(map(re.escape, longest_first)) + ")"
    return re.compile(around.replace("{}", either), re.IGNORECASE)
