"""The fields of a JSON object, each read by a rule or refused by name."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from orchestrator.serve.errors import ApiError, refusal
from orchestrator.spelling import closest

_SHOWN_CHARS = 60


class Fields:
    """One object of a body, from which fields are taken one by one; null is as good as absent.

    A field that nobody took is refused in the end, so that nothing is ignored silently.

    Args:
        values: the decoded object.
        path: its name in the body, as `messages[0]`; "" for the body itself.
    """

    def __init__(self, values: Mapping[str, Any], path: str = "") -> None:
        self._left = {name: value for name, value in values.items() if value is not None}
        self._path = path
        # Whatever was asked for, given or not: what a misspelt name may have been meant to be.
        self._known: dict[str, None] = {}

    def name(self, field: str) -> str:
        """Return the full name of a field."""
        return f"{self._path}.{field}" if self._path else field

    def refused(self, field: str, value: object, expects: str) -> ApiError:
        """Return the error of a field whose value is not what it must be."""
        name = self.name(field)
        return refusal(name, f"'{name}' is {_shown(value)}, it must be {expects}")

    def has(self, field: str) -> bool:
        """Tell whether a field is given and not yet taken."""
        self._known[field] = None
        return field in self._left

    def names(self) -> tuple[str, ...]:
        """Return the names of the fields that are given and not yet taken."""
        return tuple(self._left)

    def take(self, field: str) -> Any:
        """Return a field's value as it is; None where it is absent."""
        self._known[field] = None
        return self._left.pop(field, None)

    def number(self, field: str, default: float, low: float, high: float) -> float:
        """Return a number from `low` to `high`."""
        value = self.take(field)
        if value is None:
            return default
        if type(value) not in (int, float) or not low <= value <= high:
            raise self.refused(field, value, f"a number from {low:g} to {high:g}")
        return float(value)

    def integer(
        self, field: str, default: int, low: int, high: int | None = None, flag: str | None = None
    ) -> int:
        """Return an integer from `low` to `high`; `flag` is the server's that sets `high`."""
        value = self.take(field)
        if value is None:
            return default
        # A boolean is no integer here.
        if type(value) is not int or value < low or (high is not None and value > high):
            bound = f"of at least {low}" if high is None else f"from {low} to {high}"
            whose = "" if high is None or flag is None else f" ({flag} of the server)"
            raise self.refused(field, value, f"an integer {bound}{whose}")
        return value

    def flag(self, field: str, default: bool = False) -> bool:
        """Return true or false."""
        value = self.take(field)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.refused(field, value, "true or false")
        return value

    def text(self, field: str) -> str | None:
        """Return a string; None where it is absent."""
        value = self.take(field)
        if value is not None and not isinstance(value, str):
            raise self.refused(field, value, "a string")
        return value

    def needed_text(self, field: str) -> str:
        """Return a string that is not empty."""
        value = self.text(field)
        if not value:
            name = self.name(field)
            raise refusal(name, f"'{name}' is {lacking(value)}; give a string")
        return value

    def word(self, field: str, words: Collection[str], default: str | None = None) -> str:
        """Return one of some words."""
        value = self.take(field)
        value = default if value is None else value
        if not isinstance(value, str) or value not in words:
            raise self.refused(field, value, "one of " + ", ".join(f"'{word}'" for word in words))
        return value

    def object(self, field: str) -> dict[str, Any] | None:
        """Return an object; None where it is absent."""
        value = self.take(field)
        if value is not None and not isinstance(value, dict):
            raise self.refused(field, value, "an object")
        return value

    def list(self, field: str) -> list[Any] | None:
        """Return a list; None where it is absent."""
        value = self.take(field)
        if value is not None and not isinstance(value, list):
            raise self.refused(field, value, "a list")
        return value

    def only(self, field: str, allowed: Collection[Any], why: str) -> None:
        """Accept a field where it asks for what is done anyway."""
        value = self._left.pop(field, None)
        if allowed:
            self._known[field] = None
        if value is not None and not any(_same(value, one) for one in allowed):
            name = self.name(field)
            raise refusal(
                name,
                f"'{name}' is {_shown(value)}, which is not served here: {why}",
                code="unsupported_value",
            )

    def belongs(self, field: str, path: str) -> None:
        """Refuse a field of another endpoint."""
        if field in self._left:
            raise refusal(
                field,
                f"'{field}' belongs to {path}: ask there, or leave it away",
                code="unknown_parameter",
            )

    def end(self) -> None:
        """Refuse whatever was not taken, naming the field that it may have been meant to be."""
        if self._left:
            field = next(iter(self._left))
            name, meant = self.name(field), closest(field, self._known)
            hint = "leave it away" if meant is None else f"did you mean '{self.name(meant)}'?"
            raise refusal(name, f"unknown field '{name:.200}': {hint}", code="unknown_parameter")


def lacking(value: object) -> str:
    """Return what is wrong with a value that is needed and is not there."""
    return "missing" if value is None else "empty"


def _same(value: object, other: object) -> bool:
    return type(value) is type(other) and value == other  # 1 is not true


def _shown(value: object) -> str:
    if value is None:
        return "absent"
    text = repr(value) if not isinstance(value, bool) else str(value).lower()
    return text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]}…"
