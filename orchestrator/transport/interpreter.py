"""Which Python runs a worker on another host, where its line in the hosts file names none."""

from __future__ import annotations

# Relative to the home there; `orchestrator setup` makes it.
SETUP_VENV = ".local/share/stageline/venv"
FALLBACK = "python3"

# POSIX sh, whatever the login shell is. `exec` leaves no shell behind the interpreter.
_FIND = f'p="${{HOME:-}}/{SETUP_VENV}/bin/python"; [ -x "$p" ] || p={FALLBACK}; exec "$p" "$@"'


def interpreter_words(python: str | None) -> tuple[str, ...]:
    """Return the words that start Python there; its arguments follow them."""
    return (python,) if python is not None else ("sh", "-c", _FIND, "sh")
