"""Field rules: how one JSON value becomes one dataclass field, and what is said when it does not.

A message is a frozen dataclass whose fields carry a `Rule`. Parsing, encoding, error texts, the
tables of protocol.md and the generators of the property tests all follow from the rules.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass
from functools import cache
from typing import Any, TypeVar

from worker.protocol import environment
from worker.protocol.errors import ErrorCode as ErrorCode
from worker.protocol.errors import ProtocolError as ProtocolError

T = TypeVar("T")


def _as_it_is(value: Any) -> Any:
    return value


def _no_complaint(value: Any) -> None:
    return None


@dataclass(frozen=True, slots=True)
class Rule:
    """How a field is read and described.

    Attributes:
        expects: completes the sentence "'name' must be …".
        accepts: tells whether a decoded JSON value obeys the rule.
        doc: what the field means, for protocol.md.
        absent: completes the sentence when the field is missing, where that differs.
        to_python: turns the accepted JSON value into the field's Python value.
        to_json: the reverse.
        check: a complaint about an accepted value ("must be non-empty"), or None.
    """

    expects: str
    accepts: Callable[[Any], bool]
    doc: str = ""
    absent: str | None = None
    to_python: Callable[[Any], Any] = _as_it_is
    to_json: Callable[[Any], Any] = _as_it_is
    check: Callable[[Any], str | None] = _no_complaint


def rule(base: Rule, doc: str, default: Any = MISSING, *, secret: bool = False) -> Any:
    """Declare a dataclass field that obeys `base`; without a default it is required.

    A secret one does not stand in the message's `repr`.
    """
    metadata = {"rule": dataclasses.replace(base, doc=doc)}
    if default is MISSING:
        return dataclasses.field(metadata=metadata, repr=not secret)
    return dataclasses.field(default=default, metadata=metadata, repr=not secret)


def _is_int(value: object) -> bool:
    return type(value) is int  # bool is never an integer


def _is_ints(value: object) -> bool:
    return isinstance(value, list) and all(type(v) is int and v >= 0 for v in value)


def _nonempty_text(value: object) -> str | None:
    return None if value else "must be non-empty"


def _lone_surrogate(value: str) -> str | None:
    try:
        value.encode("utf-8")
    except UnicodeEncodeError as error:
        return f"must be valid Unicode; character {error.start} is half of a surrogate pair"
    return None


def _is_number(value: Any) -> bool:
    # NaN and infinity are no JSON, but Python's parser lets them pass.
    return type(value) in (int, float) and -1e308 <= value <= 1e308


REQUEST_ID = Rule(
    "an int or a string of at most 256 characters",
    lambda v: v is None or type(v) is int or (isinstance(v, str) and len(v) <= 256),
)
TEXT = Rule("a string", lambda v: isinstance(v, str), check=_lone_surrogate)
FLAG = Rule("true or false", lambda v: isinstance(v, bool))
NON_NEGATIVE = Rule("a non-negative int", lambda v: _is_int(v) and v >= 0)
PORT = Rule("an int from 1 to 65535", lambda v: _is_int(v) and 1 <= v <= 65535)
TICKET = Rule("an int from 0 to 2**63 - 1", lambda v: _is_int(v) and 0 <= v < 2**63)
LINK_TOKEN = Rule(
    "64 hexadecimal digits",
    lambda v: isinstance(v, str) and len(v) == 64 and set(v) <= set("0123456789abcdef"),
)
POSITIVE = Rule("a positive int", lambda v: _is_int(v) and v >= 1)
INTEGER = Rule("an int", _is_int)
NUMBER = Rule("a finite number", _is_number)
NON_NEGATIVE_NUMBER = Rule("a finite number >= 0", lambda v: _is_number(v) and v >= 0)
POSITIVE_NUMBER = Rule("a finite number > 0", lambda v: _is_number(v) and v > 0)
FRACTION = Rule("a number between 0 and 1", lambda v: _is_number(v) and 0 <= v <= 1)
TOKENS = Rule(
    "a list of non-negative ints",
    _is_ints,
    absent="a list of ints",
    to_python=tuple,
    to_json=list,
)
NONEMPTY_TOKENS = dataclasses.replace(TOKENS, check=_nonempty_text)
TEXTS = Rule(
    "a list of strings",
    lambda v: isinstance(v, list) and all(isinstance(t, str) for t in v),
    to_python=tuple,
    to_json=list,
)
NUMBERS = Rule(
    "a list of finite numbers",
    lambda v: isinstance(v, list) and all(_is_number(n) for n in v),
    to_python=tuple,
    to_json=list,
)
SHAPE = Rule(
    "a list of positive ints",
    lambda v: isinstance(v, list) and bool(v) and all(type(n) is int and n >= 1 for n in v),
    to_python=tuple,
    to_json=list,
)
OBJECT = Rule("an object", lambda v: isinstance(v, dict))
VARIABLES = Rule(
    "an object of strings by the name of a variable",
    lambda v: isinstance(v, dict) and all(isinstance(text, str) for text in v.values()),
    check=environment.complaint,
)
OBJECTS = Rule(
    "a list of objects",
    lambda v: isinstance(v, list) and all(isinstance(o, dict) for o in v),
    to_python=tuple,
    to_json=list,
)
BASE64 = Rule(
    "a string",
    lambda v: isinstance(v, (str, bytes)),
    # Base64 travels as bytes inside the programs: it is spliced into lines, never scanned.
    to_python=lambda v: v if isinstance(v, bytes) else v.encode("utf-8", "replace"),
    to_json=lambda v: v.decode("ascii"),
)


def one_of(*choices: str) -> Rule:
    """Accept one of a few strings."""
    return Rule("one of " + ", ".join(map(repr, choices)), lambda v: v in choices)


def rules_of(message: Any) -> tuple[tuple[dataclasses.Field[Any], Rule], ...]:
    """Return the fields of a message class that travel, with their rules, in order."""
    return _rules_of(message)


@cache  # classes never change, and every line of the wire asks
def _rules_of(message: Any) -> tuple[tuple[dataclasses.Field[Any], Rule], ...]:
    return tuple(
        (f, f.metadata["rule"]) for f in dataclasses.fields(message) if "rule" in f.metadata
    )


def parse(message: type[T], values: Mapping[str, Any]) -> T:
    """Build a message from decoded JSON; unknown fields are ignored, null means absent.

    Raises:
        ProtocolError: `missing_field` or `bad_field`, naming the field and what it must be.
    """
    kept: dict[str, Any] = {}
    kind: Any = message
    fields, complains = _readings(kind)
    for name, is_optional, known, to_python, check in fields:
        value = values.get(name)
        if value is None and is_optional:
            continue
        if value is None and name not in values:
            expects = known.absent or known.expects
            raise ProtocolError(ErrorCode.MISSING_FIELD, f"'{name}' must be {expects}")
        if not known.accepts(value):
            raise ProtocolError(ErrorCode.BAD_FIELD, f"'{name}' must be {known.expects}")
        if check is not None and (why := check(value)) is not None:
            raise ProtocolError(ErrorCode.BAD_FIELD, f"'{name}' {why}")
        kept[name] = value if to_python is None else to_python(value)
    built = message(**kept)
    if complains and (why := built.complaint()) is not None:  # type: ignore[attr-defined]
        raise ProtocolError(ErrorCode.BAD_FIELD, why)
    return built


def to_fields(message: Any, *, without: str = "") -> dict[str, Any]:
    """Return the message as a JSON object; fields that hold their default are left out.

    Args:
        message: what to write.
        without: name of a field that is left out as well, and not turned into JSON.
    """
    kind: Any = type(message)
    return {
        name: value if to_json is None else to_json(value)
        for name, default, to_json in _writings(kind, without)
        if (value := getattr(message, name)) is not default and value != default
    }


_Reading = tuple[str, bool, Rule, Callable[[Any], Any] | None, Callable[[Any], str | None] | None]
_Writing = tuple[str, Any, Callable[[Any], Any] | None]


# Parsing and writing run for every line of the wire: what follows from the class is worked out
# once, and functions that do nothing are not called.
@cache
def _readings(message: Any) -> tuple[tuple[_Reading, ...], bool]:
    """Return name, whether it may be absent, rule, Python form and check of each field."""
    fields = tuple(
        (
            field.name,
            field.default is not MISSING,
            known,
            None if known.to_python is _as_it_is else known.to_python,
            None if known.check is _no_complaint else known.check,
        )
        for field, known in rules_of(message)
    )
    return fields, hasattr(message, "complaint")


@cache
def _writings(message: Any, without: str) -> tuple[_Writing, ...]:
    """Return name, default and JSON form of each field."""
    return tuple(
        (field.name, field.default, None if known.to_json is _as_it_is else known.to_json)
        for field, known in rules_of(message)
        if field.name != without
    )
