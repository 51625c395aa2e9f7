"""The references in a schema to other parts of it."""

from __future__ import annotations

import urllib.parse
from collections.abc import Iterator
from typing import Any

# What stands in them is a value, and no schema.
_VALUES = ("const", "enum", "default", "examples")


class Pointers:
    """Follows the references of one schema.

    Args:
        root: the schema.
    """

    def __init__(self, root: dict[str, Any]) -> None:
        self._root = root
        self._anchors: dict[str, Any] = {}
        # Whether a part has an address of its own, from which references in it would count.
        self._is_joined = False
        for part in _dicts(root):
            if isinstance(anchor := part.get("$anchor"), str):
                self._anchors[anchor] = part
            if part is not root and any(isinstance(part.get(word), str) for word in ("$id", "id")):
                self._is_joined = True

    def refs(self) -> list[str]:
        """Return all references, each once."""
        given = (part.get("$ref") for part in _dicts(self._root))
        return list(dict.fromkeys(one for one in given if isinstance(one, str)))

    def target(self, ref: object) -> object:
        """Return the schema that a reference means; True where that is not known."""
        if self._is_joined or not isinstance(ref, str) or not ref.startswith("#"):
            return True
        place = urllib.parse.unquote(ref[1:])
        if place and not place.startswith("/"):
            return self._anchors.get(place, True)
        at: Any = self._root
        for word in place.split("/")[1:]:
            word = word.replace("~1", "/").replace("~0", "~")
            if isinstance(at, dict) and word in at:
                at = at[word]
            elif isinstance(at, list) and word.isdecimal() and int(word) < len(at):
                at = at[int(word)]
            else:
                return True
        return at

    def is_hollow(self, ref: str) -> bool:
        """Tell whether a reference leads back to itself over nothing but references."""
        seen: set[str] = set()
        while ref not in seen:
            seen.add(ref)
            target = self.target(ref)
            if not isinstance(target, dict) or not isinstance(target.get("$ref"), str):
                return False
            ref = target["$ref"]
        return True

    def without(self, refs: set[str]) -> dict[str, Any]:
        """Return the schema with `false`, which nothing fits, in the place of these references."""
        return {word: _without(one, refs, word) for word, one in self._root.items()}


def _without(value: Any, refs: set[str], word: str = "") -> Any:
    if word in _VALUES:
        return value
    if isinstance(value, list):
        return [_without(one, refs) for one in value]
    if not isinstance(value, dict):
        return value
    if isinstance(ref := value.get("$ref"), str) and ref in refs:
        return False
    return {word: _without(one, refs, word) for word, one in value.items()}


def _dicts(root: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield whatever may be a schema."""
    due: list[Any] = [root]
    while due:
        one = due.pop()
        if isinstance(one, list):
            due += one[::-1]
        elif isinstance(one, dict):
            yield one
            due += [value for word, value in one.items() if word not in _VALUES][::-1]
