"""What a program gives by keyword -> held to the types that it is declared with."""

from __future__ import annotations

import collections.abc
import os
import reprlib
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from types import MappingProxyType, NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from orchestrator.spelling import closest

_SHOWN_CHARACTERS = 60
# One, and many where a sequence or a mapping may be of them.
_WORDS: Mapping[Any, tuple[str, str]] = MappingProxyType(
    {
        NoneType: ("None", ""),
        bool: ("True or False", ""),
        int: ("an int", "ints"),
        float: ("a finite number", "finite numbers"),
        str: ("a text", "texts"),
        os.PathLike: ("a path", "paths"),
        collections.abc.Sequence: ("a sequence", "sequences"),
        collections.abc.Mapping: ("a mapping", "mappings"),
        collections.abc.Callable: ("a function", ""),
    }
)


@cache  # classes never change, and every request asks
def kinds_of(declared: Any) -> Mapping[str, Any]:
    """Return the type of each keyword that a TypedDict declares."""
    return get_type_hints(declared, include_extras=True)


def check_all(
    given: Mapping[str, object],
    kinds: Mapping[str, Any],
    elsewhere: Callable[[], Mapping[str, str]],
) -> None:
    """See that every keyword is known and that its value has its type.

    Args:
        given: the values by their names.
        kinds: the types by the names that there are.
        elsewhere: tells where names of other calls belong; each text completes "NAME …".

    Raises:
        TypeError, ValueError: one sentence.
    """
    for name, value in given.items():
        if name not in kinds:
            raise TypeError(_unknown(name, kinds, elsewhere()))
        check(name, value, kinds[name])


def check(name: str, value: object, kind: Any) -> None:
    """See that a value has its type, its choices and its numbers in reach.

    Args:
        name: what the caller calls it.
        value: what was given.
        kind: the type; `Annotated[type, "words"]` says in its own words what is needed.

    Raises:
        TypeError: it is of another type.
        ValueError: it is a text that is no choice, or a number that is not finite.
    """
    if fits(value, kind):
        return
    is_near = any(
        isinstance(value, str) if get_origin(one) is Literal else one is float is type(value)
        for one in _alternatives(kind)
    )
    mistake = ValueError if is_near else TypeError
    raise mistake(f"{name}={shown(value)} must be {_words(kind)}")


def fits(value: Any, kind: Any) -> bool:
    """Tell whether a value has a type; a bool is no int, bytes are no sequence of ints."""
    origin, inner = get_origin(kind), get_args(kind)
    if kind is Any:
        return True
    if origin is Annotated:
        return fits(value, inner[0])
    if origin in (Union, UnionType):
        return any(fits(value, one) for one in inner)
    if origin is Literal:
        return any(type(value) is type(one) and value == one for one in inner)
    if origin is collections.abc.Sequence:
        is_one = isinstance(value, Sequence) and not isinstance(value, str | bytes | bytearray)
        return is_one and all(fits(item, inner[0]) for item in value)
    if origin is collections.abc.Mapping:
        return isinstance(value, Mapping) and all(
            fits(key, inner[0]) and fits(item, inner[1]) for key, item in value.items()
        )
    if kind in (int, float):
        # Huge integers cannot become floats, and NaN compares false.
        is_number = isinstance(value, int if kind is int else int | float)
        return is_number and type(value) is not bool and (kind is int or -1e308 <= value <= 1e308)
    return isinstance(value, origin or kind)


def shown(value: object) -> str:
    """Return a value as messages quote it, cut where it is long."""
    short = reprlib.Repr()
    short.maxstring = short.maxother = _SHOWN_CHARACTERS
    return short.repr(value)


def _unknown(name: str, kinds: Mapping[str, Any], elsewhere: Mapping[str, str]) -> str:
    if name in elsewhere:
        return f"{name} {elsewhere[name]}"
    near = closest(name, kinds)
    hint = "see docs/api.md" if near is None else f"did you mean {near}?"
    return f"there is no option {name!r}; {hint}"


def _alternatives(kind: Any) -> tuple[Any, ...]:
    if get_origin(kind) is Annotated:
        return _alternatives(get_args(kind)[0])
    return get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)


def _words(kind: Any) -> str:
    """Return what completes "must be …"."""
    if get_origin(kind) is Annotated:
        return str(get_args(kind)[1])
    *others, last = [_one(one) for one in _alternatives(kind)]
    return f"{', '.join(others)} or {last}" if others else last


def _one(kind: Any) -> str:
    plain, inner = get_origin(kind) or kind, get_args(kind)
    if plain is Literal:
        return "one of " + ", ".join(map(repr, inner))
    word, _ = _WORDS.get(plain, (f"a {plain.__name__}", ""))
    if plain not in (collections.abc.Sequence, collections.abc.Mapping):
        return word
    many = [_WORDS.get(get_origin(item) or item, ("", ""))[1] for item in inner]
    return f"{word} of {' to '.join(many)}" if all(many) else word
