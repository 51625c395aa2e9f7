"""Keep secrets, and what the user wrote, out of a bundle."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from urllib.parse import unquote

MASK = "***"
SHORTEST_SECRET = 6

_SECRET_WORDS = frozenset(
    {"token", "key", "apikey", "secret", "password", "passwd", "passphrase", "credential"}
    | {"credentials", "auth", "authorization", "bearer", "cookie"}
)
# What follows such a word where the whole means none: `token_id`, `StrictHostKeyChecking`.
_HARMLESS_AFTER = frozenset(
    {"id", "ids", "file", "path", "alias", "types", "checking", "algorithms", "exchange"}
    | {"authentication"}
)
# A switch, or what stands for a value in a message of ours: `key=value`.
_HARMLESS_VALUES = frozenset({"yes", "no", "true", "false", "none", "ask", "value", "…"})
_PRIVATE_WORDS = frozenset({"prompt", "system", "messages", "stop"})
_HIDDEN = re.compile(r"<\d+ characters>")
_WORD = re.compile(r"[A-Z]?[a-z0-9]+|[A-Z0-9]+(?![a-z])")
# From a word's begin on, and never from within: a long one, as of base64, is read once.
_ASSIGNMENT = re.compile(r"""(?<![\w.-])([\w.-]++)=('[^']*'|"[^"]*"|[^\s'"]+)""")
# The password of an address; it may hold an `@` itself.
_USERINFO = re.compile(rb"""(://[^\s/:@'"<>]*:)[^\s/'"<>]+(?=@)""")
_KNOWN_SHAPES = re.compile(rb"\b(?:hf_[A-Za-z0-9]{16,}|(?i:bearer )[A-Za-z0-9._~+/=-]{8,})")


def is_secret_name(name: str) -> bool:
    """Tell whether an option or variable of this name may hold a secret.

    `HF_TOKEN` and `--api-key` do, `max_new_tokens` and `token_id` do not.
    """
    words = [word.lower() for word in _WORD.findall(name)]
    return any(
        word in _SECRET_WORDS and _HARMLESS_AFTER.isdisjoint(words[i + 1 : i + 2])
        for i, word in enumerate(words)
    )


class Masker:
    """Replace secrets.

    Args:
        secrets: values to be replaced wherever they stand; very short ones are ignored, for they
            would turn up in innocent text.
    """

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        shapes = set()
        for secret in secrets:
            # Within an address it may be quoted, and stand elsewhere as it is.
            for shape in {secret, unquote(secret)}:
                if len(shape) >= SHORTEST_SECRET:
                    shapes.add(shape.encode("utf-8", "replace"))
                    shapes.add(json.dumps(shape)[1:-1].encode("ascii"))  # As within JSON.
        self._known = tuple(sorted(shapes, key=len, reverse=True))

    def raw(self, data: bytes) -> bytes:
        """Return the bytes without known secrets and without what looks like one."""
        for secret in self._known:
            data = data.replace(secret, MASK.encode())
        if b"hf_" in data or b"earer " in data:
            data = _KNOWN_SHAPES.sub(MASK.encode(), data)
        if b"://" in data:
            data = _USERINFO.sub(rb"\1" + MASK.encode(), data)
        return data

    def line(self, text: str) -> str:
        """Return the text without known secrets and without what looks like one."""
        return self.raw(text.encode("utf-8", "surrogatepass")).decode("utf-8", "surrogatepass")

    def text(self, text: str) -> str:
        """Return the text without secrets, also those assigned by name: `env HF_TOKEN=…`."""
        return self.raw(_ASSIGNMENT.sub(_assignment, text).encode("utf-8", "replace")).decode(
            "utf-8", "replace"
        )

    def command(self, words: Sequence[str]) -> tuple[str, ...]:
        """Return a command line without secrets and without the user's texts."""
        masked: list[str] = []
        name = ""  # The option whose value comes next.
        for word in words:
            if name:
                is_option = word.startswith("--") and " " not in word
                masked.append(self.text(word) if is_option else _hide(name, word))
                name = ""
                continue
            option, equals, value = word.partition("=")
            if word.startswith("--") and _is_hidden(option):
                masked.append(f"{option}={_hide(option, value)}" if equals else word)
                name = "" if equals else option
            else:
                masked.append(self.text(word))
        return tuple(masked)

    def value(self, value: Any, name: str = "") -> Any:
        """Return a JSON-like value without secrets; `name` is the key it stands under."""
        if isinstance(value, str):
            return _hide(name, value) if value and _is_hidden(name) else self.text(value)
        if isinstance(value, Mapping):
            return {str(key): self.value(item, str(key)) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.value(item, name) for item in value]
        if value is None or isinstance(value, (bool, int, float)):
            return value
        return self.text(str(value))


def _is_hidden(name: str) -> bool:
    bare = name.lstrip("-").lower()
    # argparse takes `--prom` for `--prompt`.
    is_private = bool(bare) and any(word.startswith(bare) for word in _PRIVATE_WORDS)
    return is_private or is_secret_name(name)


def _hide(name: str, value: str) -> str:
    if _HIDDEN.fullmatch(value):
        return value
    return MASK if is_secret_name(name) else f"<{len(value)} characters>"


def _assignment(match: re.Match[str]) -> str:
    value = match[2].rstrip(";,")
    if value.lower() in _HARMLESS_VALUES or not is_secret_name(match[1]):
        return match[0]
    return f"{match[1]}={MASK}{match[2][len(value) :]}"
