"""Take from a schema what no value fits, however deep: a reference that leads back for ever.

The grammar library follows such a reference, and an answer that has gone into it never ends.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from orchestrator.grammar.pointers import Pointers
from orchestrator.grammar.refused import GrammarRefused

Kinds = frozenset[str]

_NONE: Kinds = frozenset()
_ALL: Kinds = frozenset({"null", "boolean", "number", "string", "array", "object"})
# About a second; a schema that takes more is left as it is.
_MOST_STEPS = 300_000


def finite(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a schema that the same values fit, where no reference is one that nothing fits.

    Raises:
        GrammarRefused: nothing fits the schema itself, for such a reference.
    """
    pointers = Pointers(schema)
    refs = pointers.refs()
    kinds = _KindsOfValues(pointers)
    try:
        dead = {ref for ref in refs if not kinds.of({"$ref": ref})}
        is_dead = bool(dead) and not kinds.of(schema)
    except _TooMany:
        return schema
    if is_dead:
        first = next(ref for ref in refs if ref in dead)
        if pointers.is_hollow(first):
            reason = f"{first!r:.80} refers to itself without content; say what it is"
        else:
            reason = f"no value that ends fits {first!r:.80}; let it end without itself"
        raise GrammarRefused(f"the JSON schema cannot be held to: {reason}")
    return pointers.without(dead) if dead else schema


class _TooMany(Exception):
    """The schema is too large for this."""


class _KindsOfValues:
    """Finds of which kinds the values are that fit a schema: the least that its rules allow.

    Never too few: of a keyword that is not known here, or of two that only together exclude each
    other, values may fit.
    """

    def __init__(self, pointers: Pointers) -> None:
        self._pointers = pointers
        self._found: dict[int, Kinds] = {}
        self._readers: dict[int, set[int]] = {}
        # By identity; kept, so that none is given to another.
        self._nodes: dict[int, dict[str, Any]] = {}
        self._due: dict[int, None] = {}
        self._steps = 0

    def of(self, schema: dict[str, Any]) -> Kinds:
        """Return the kinds of the values that fit a schema.

        Raises:
            _TooMany: it takes too long.
        """
        self._read(schema, 0)
        while self._due:
            key = next(iter(self._due))
            del self._due[key]
            kinds = self._kinds(key, self._nodes[key])
            if kinds != self._found[key]:
                self._found[key] = kinds
                self._due.update(dict.fromkeys(self._readers[key]))
        return self._found[id(schema)]

    def _read(self, schema: object, reader: int) -> Kinds:
        """Return what is known of a schema yet; `reader` is told once it is more."""
        self._step()
        if not isinstance(schema, dict):
            return _NONE if schema is False else _ALL
        key = id(schema)
        if key not in self._nodes:
            self._nodes[key], self._found[key], self._readers[key] = schema, _NONE, set()
            self._due[key] = None
        if reader:
            self._readers[key].add(reader)
        return self._found[key]

    def _kinds(self, key: int, node: dict[str, Any]) -> Kinds:
        kinds, parts = _ALL, self._parts(node)
        for one in self._conjuncts(node):
            kinds &= self._read(one, key)
        for word in ("anyOf", "oneOf"):
            if isinstance(ways := node.get(word), list):
                kinds &= _NONE.union(*(self._way(parts, one, key) for one in ways))
        return kinds & self._shapes(parts, key)

    def _way(self, parts: list[dict[str, Any]], way: object, key: int) -> Kinds:
        kinds = self._read(way, key)
        if not kinds or not isinstance(way, dict):
            return kinds
        return kinds & self._shapes([*parts, *self._parts(way)], key)

    def _parts(self, node: dict[str, Any]) -> list[dict[str, Any]]:
        """Return the schemas that a value has to fit all, beside their choices."""
        parts, seen = [node], {id(node)}
        for part in parts:
            for one in self._conjuncts(part):
                self._step()
                if isinstance(one, dict) and id(one) not in seen:
                    seen.add(id(one))
                    parts.append(one)
        return parts

    def _conjuncts(self, node: dict[str, Any]) -> Iterator[object]:
        if "$ref" in node:
            yield self._pointers.target(node["$ref"])
        if isinstance(all_of := node.get("allOf"), list):
            yield from all_of

    def _shapes(self, parts: list[dict[str, Any]], key: int) -> Kinds:
        kinds = _ALL
        for part in parts:
            if (given := part.get("type")) is not None:
                words = given if isinstance(given, list) else [given]
                kinds &= {"number" if one == "integer" else str(one) for one in words}
        if "object" in kinds and not self._has_object(parts, key):
            kinds -= {"object"}
        if "array" in kinds and not self._has_array(parts, key):
            kinds -= {"array"}
        return kinds

    def _has_object(self, parts: list[dict[str, Any]], key: int) -> bool:
        required = [name for part in parts for name in _list(part, "required")]
        at_least = max(_number(part, "minProperties") for part in parts)
        for part in parts:
            named, matched = _dict(part, "properties"), _dict(part, "patternProperties")
            more = part.get("additionalProperties", True)
            for name in required:
                # Which patterns a name matches is not looked at.
                one = named.get(name, True if matched else more) if isinstance(name, str) else True
                if not self._read(one, key):
                    return False
            is_open = any(self._read(one, key) for one in (more, *matched.values()))
            if not is_open and at_least > sum(bool(self._read(of, key)) for of in named.values()):
                return False
        return True

    def _has_array(self, parts: list[dict[str, Any]], key: int) -> bool:
        at_least = max(_number(part, "minItems") for part in parts)
        for part in parts:
            first, rest = _list(part, "prefixItems"), part.get("items", True)
            if isinstance(rest, list):  # as before draft 2020-12
                first, rest = rest, part.get("additionalItems", True)
            needed = first[: int(min(at_least, len(first)))]
            if at_least > len(first):
                needed = [*needed, rest]
            if not all(self._read(one, key) for one in needed):
                return False
        return True

    def _step(self) -> None:
        self._steps += 1
        if self._steps > _MOST_STEPS:
            raise _TooMany


def _list(node: dict[str, Any], word: str) -> list[Any]:
    return value if isinstance(value := node.get(word), list) else []


def _dict(node: dict[str, Any], word: str) -> dict[str, Any]:
    return value if isinstance(value := node.get(word), dict) else {}


def _number(node: dict[str, Any], word: str) -> float:
    return value if isinstance(value := node.get(word), (int, float)) else 0
