"""How messages name an option: as a flag to whoever typed it, as a keyword to a program."""

from __future__ import annotations

from typing import Protocol


class Named(Protocol):
    """Names an option, and its value where the message is about one."""

    def __call__(self, name: str, value: object = None) -> str:
        """Return the name, and the value where one is given."""
        ...


def as_flag(name: str, value: object = None) -> str:
    """Return `--draft-model-id`, or `--speculate draft`, or `--stub` for True."""
    flag = f"--{name.replace('_', '-')}"
    return flag if value is None or value is True else f"{flag} {value}"


def as_keyword(name: str, value: object = None) -> str:
    """Return `draft_model_id=…`, or `speculate='draft'`."""
    return f"{name}=…" if value is None else f"{name}={value!r}"
