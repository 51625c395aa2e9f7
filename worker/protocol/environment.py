"""Which variables a worker may be given after its start, on no command line."""

from __future__ import annotations

import re

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
# What has been read by the time a worker can be told: by the loader, by Python, by the worker's
# own command line. To take them and do nothing would be a lie.
_READ_AT_START = re.compile(r"LD_.*|PYTHON.*|PATH|HOME|STAGE|NUM_STAGES|MODEL|PP_.*|STAGELINE_.*")


def why_not_given(name: str) -> str | None:
    """Return why a variable cannot be given to a worker that runs, as a clause; None if it can."""
    if not _NAME.fullmatch(name):
        return f"{name!r} is not a variable's name"
    if _READ_AT_START.fullmatch(name):
        return f"{name} is read when a worker starts, so it cannot be given afterwards"
    return None


def complaint(variables: dict[str, str]) -> str | None:
    """Return what is wrong with variables, without any value; None if nothing is."""
    for name, value in variables.items():
        if (why := why_not_given(name)) is not None:
            return f"cannot be taken: {why}"
        try:
            # As the operating system takes it: bytes that are no UTF-8 travel as lone surrogates.
            raw = value.encode("utf-8", "surrogateescape")
        except UnicodeEncodeError:
            return f"has a value for {name} that is no text"
        if b"\0" in raw:
            return f"has a value for {name} with a NUL in it"
    return None
